"""A master in an election: what the campaign does with the server it belongs to."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from moonpool.pool.ha_campaign import Campaign

if TYPE_CHECKING:
    from moonpool.pool.master import MasterServer


class Office:
    """The campaign's candidate. Losing the lead, the server gets a machine that knows nothing, and
    everybody connects anew: so that nothing of an old rule is taken over into a new one."""

    def __init__(self, server: MasterServer, address: str) -> None:
        self._server = server
        self.instance_text = os.urandom(8).hex()
        config = server.config
        self._campaign = Campaign(
            self,
            config.ha,
            config.advertise or address,
            config.election_lease_ms / 1000,
            server.clock,
        )
        self._running = asyncio.ensure_future(self._campaign.run())
        self._running.add_done_callback(self._ended)

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self._campaign.close()

    def _ended(self, running: asyncio.Future[None]) -> None:
        """Without its campaign a master would neither renew its lead nor ever take it again."""
        if not running.cancelled() and (error := running.exception()) is not None:
            self._server.broke(error)

    # The campaign's calls.

    def lead(self, term: int, nodes: set[str] | None) -> None:
        clock = self._server.clock
        self._server.perform(
            self._server.machine.lead(term, nodes, clock.monotonic(), clock.wall_ms())
        )

    def raise_term(self, term: int) -> None:
        clock = self._server.clock
        self._server.perform(
            self._server.machine.raise_term(term, clock.monotonic(), clock.wall_ms())
        )

    def stand_by(self) -> None:
        self._server.start_over()

    def leads_until(self, moment: float) -> None:
        self._server.machine.leads_until = moment
        self._server.tick()  # what waited for the certainty

    def leader_is(self, address: str) -> None:
        self._server.machine.standby.leader = address

    def known_nodes(self) -> list[str]:
        return self._server.machine.known_nodes

    def term_wanted(self) -> int:
        return self._server.machine.nodes.joins.term_wanted
