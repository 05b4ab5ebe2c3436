"""The shell of an election: a master's part in it, in the master's event loop, etcd in a thread.

While etcd cannot be asked, whoever leads goes on: what its agents confirm under its term is proved
by them. Only what needs the certainty that nobody else leads waits until it is back.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from moonpool.core.clock import Clock
from moonpool.core.errors import MoonpoolError
from moonpool.pool.ha_election import (
    LOOKS_A_LEASE,
    STEPS_A_LEASE,
    SURE,
    LeaderRecord,
    Patience,
    Seen,
    next_term,
)
from moonpool.pool.ha_registry import MASTER_TTL_S, NODES_MAX, Registry

log = logging.getLogger("moonpool.master")
T = TypeVar("T")


class Candidate(Protocol):
    """What a campaign asks of its master."""

    instance_text: str

    def lead(self, term: int, nodes: set[str] | None) -> None: ...
    def raise_term(self, term: int) -> None: ...
    def stand_by(self) -> None: ...
    def leads_until(self, moment: float) -> None: ...
    def leader_is(self, address: str) -> None: ...
    def known_nodes(self) -> list[str]: ...
    def term_wanted(self) -> int: ...


class Campaign:
    """States: standing by -> leading -> standing by -> ..."""

    def __init__(
        self, candidate: Candidate, url: str, address: str, lease_s: float, clock: Clock
    ) -> None:
        self.leading = False
        self._candidate = candidate
        self._address = address
        self._lease_s = lease_s
        self._clock = clock
        self._registry = Registry(url, timeout_s=lease_s, try_s=lease_s / 4)
        self._roster = Registry(url)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="moonpool-election")
        self._roster_thread = ThreadPoolExecutor(1, thread_name_prefix="moonpool-roster")
        self._revision = 0
        self._number = 0
        self._record = LeaderRecord(0, "", "")
        self._claimed_at = -math.inf
        self._said = ""

    async def run(self) -> None:
        """Until cancelled, or until something goes wrong that nobody expected: that is raised."""
        parts = [asyncio.ensure_future(self._take_part()), asyncio.ensure_future(self._enlist())]
        try:
            await asyncio.gather(*parts)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _take_part(self) -> None:
        patience = Patience(self._lease_s)
        while True:
            try:
                if self.leading:
                    await self._renew()
                else:
                    await self._look(patience)
                self._said = ""
            except MoonpoolError as error:
                self._say(f"election: {error}")
            if not self.leading:
                await asyncio.sleep(self._lease_s / LOOKS_A_LEASE)
            else:
                await asyncio.sleep(self._lease_s / STEPS_A_LEASE)

    async def close(self) -> None:
        """After `run` has ended: let others lead and be found, at once."""
        try:
            if self.leading:
                # First of all: who takes the lead now does not wait for a lease of ours.
                self._candidate.leads_until(-math.inf)
                names = self._candidate.known_nodes()[:NODES_MAX]
                await self._ask(lambda: self._registry.resign(self._revision, names))
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._roster_thread, self._roster.leave)
        except MoonpoolError as error:
            self._say(f"election: not resigned: {error}")
        self._thread.shutdown()
        self._roster_thread.shutdown()
        self._registry.close()
        self._roster.close()

    async def _look(self, patience: Patience) -> None:
        asked_at = self._clock.monotonic()
        seen = await self._ask(self._registry.read)
        if seen.leader is not None:
            if seen.leader.instance == self._record.instance and self._record.instance:
                # We claimed and the answer was lost: the record is ours after all, and the others'
                # patience counts from when it came.
                await self._take(seen, seen.leader_revision, seen.leader, self._claimed_at)
                return
            self._candidate.leader_is(seen.leader.address)
        if patience.ripe(seen, asked_at, self._clock.monotonic()):
            await self._claim(seen)

    async def _claim(self, seen: Seen) -> None:
        term = next_term(seen, self._clock.wall_ms(), self._candidate.term_wanted())
        asked_at = self._clock.monotonic()
        record = LeaderRecord(term, self._address, self._candidate.instance_text)
        self._record, self._claimed_at = record, asked_at
        names = self._candidate.known_nodes()
        revision = await self._ask(
            lambda: self._registry.claim(seen, record, {*seen.beat.nodes, *names})
        )
        if revision:
            await self._take(seen, revision, record, asked_at)

    async def _take(self, seen: Seen, revision: int, record: LeaderRecord, asked_at: float) -> None:
        self._revision, self._record, self.leading = revision, record, True
        self._candidate.leads_until(asked_at + SURE * self._lease_s)
        known = seen.beat_revision != 0 and len(seen.beat.nodes) < NODES_MAX
        self._candidate.lead(record.term, set(seen.beat.nodes) if known else None)
        log.warning("this master leads under term %d", record.term)

    async def _renew(self) -> None:
        if self._candidate.term_wanted() > self._record.term:
            await self._new_term()
            return
        self._number += 1
        asked_at = self._clock.monotonic()
        names = self._candidate.known_nodes()[:NODES_MAX]
        if await self._ask(lambda: self._registry.renew(self._revision, self._number, names)):
            self._candidate.leads_until(asked_at + SURE * self._lease_s)
        else:
            self._deposed()

    async def _new_term(self) -> None:
        """A segment has seen a higher term than ours: ask for one above it, if we still lead."""
        seen = await self._ask(self._registry.read)
        if seen.leader_revision != self._revision:
            self._deposed()
            return
        term = next_term(seen, self._clock.wall_ms(), self._candidate.term_wanted())
        record = LeaderRecord(term, self._address, self._record.instance)
        asked_at = self._clock.monotonic()
        revision = await self._ask(lambda: self._registry.claim(seen, record, seen.beat.nodes))
        if not revision:
            self._deposed()
            return
        self._revision, self._record = revision, record
        self._candidate.leads_until(asked_at + SURE * self._lease_s)
        self._candidate.raise_term(term)

    def _deposed(self) -> None:
        log.warning("another master leads; this one stands by")
        self.leading = False
        self._record = LeaderRecord(0, "", "")
        self._candidate.leads_until(-math.inf)
        self._candidate.stand_by()

    async def _enlist(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            name = self._candidate.instance_text
            try:
                await loop.run_in_executor(
                    self._roster_thread, self._roster.enlist, self._address, name
                )
            except MoonpoolError as error:
                self._say(f"election: {error}")
            await asyncio.sleep(MASTER_TTL_S / 5)

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, question)

    def _say(self, text: str) -> None:
        """Once, not every few milliseconds."""
        if text != self._said:
            log.warning("%s", text)
            self._said = text
