"""What the master tells its agents: retire, expire, remember what was removed."""

from __future__ import annotations

import numpy as np

from moonpool.pool import messages as m
from moonpool.pool.catalog.base import Expiry, Retirement
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.effects import Effect, Send
from moonpool.pool.master_links import Links, NodeLink
from moonpool.pool.master_orders import RetireOrders
from moonpool.pool.tombstones import DIGEST_BYTES, Tomb, Tombstones, digest
from moonpool.pool.unheard import Unheard

NO_SLOTS = np.empty(0, np.uint32)
NO_GENERATIONS = np.empty(0, np.uint64)


class Agents:
    """Speaks to the agents; one that is away is told, or reports, when it is back."""

    def __init__(
        self,
        catalog: Catalog,
        links: Links,
        orders: RetireOrders,
        tombstones: Tombstones,
        outbox: list[Effect],
    ) -> None:
        self._catalog = catalog
        self._links = links
        self._orders = orders
        self._outbox = outbox
        self.tombstones = tombstones
        self.unheard = Unheard(tombstones.tombs_max)

    def retire(self, retirements: list[Retirement], number: int = 0) -> None:
        """Nobody waits for these (`number` 0); an agent that is away learns when it reports."""
        for one in retirements:
            link = self._links[one.segment]
            if link.session is not None:
                message = m.Retire(
                    number,
                    one.segment,
                    self._catalog.term,
                    one.slots.tobytes(),
                    one.generations.tobytes(),
                    one.hold_ms,
                )
                self._outbox.append(Send(link.session, 0, message))

    def confirm(self, link: NodeLink) -> None:
        """The answers to its open orders were lost with a connection. What was to be retired is by
        now, or by what its inventory brought about: let the agent say so, in its turn."""
        for number in self._orders.open_orders(link.segment.id):
            self.retire([Retirement(link.segment.id, NO_SLOTS, NO_GENERATIONS)], number)

    def expire(self, expiries: list[Expiry]) -> None:
        for one in expiries:
            link = self._links[one.segment]
            if link.session is None or not link.obeys:
                # It would not obey yet: told once it is adopted.
                link.missed.append(one)
            else:
                terms = np.full(one.sequences.size, one.term, np.uint64)
                message = m.Expire(
                    one.segment, self._catalog.term, terms.tobytes(), one.sequences.tobytes()
                )
                self._outbox.append(Send(link.session, 0, message))

    def catch_up(self, link: NodeLink) -> None:
        """What an agent missed until it was adopted."""
        missed = list(link.missed)
        link.missed.clear()
        self.expire(missed)

    # Tombstones.

    def bury_missed(self, segment: int, now: float) -> None:
        """Removals this segment has not confirmed: others remember them for it."""
        self.bury(self._orders.missed(segment), {segment}, now)

    def supersede(self, key: bytes, term: int, sequence: int, now: float) -> None:
        """All values of this key up to this version are dead: not only those that are known."""
        if segments := self.unheard.take(key):
            self.bury([(key, term, sequence)], segments, now)

    def bury(
        self, missed: list[tuple[bytes, int, int]], missing: set[int] | None, now: float
    ) -> None:
        """Remember these (key, term, sequence); `missing`: the segments that hold a replica."""
        self.bury_tombs([Tomb(digest(key), t, s) for key, t, s in missed], missing, now)

    def bury_tombs(self, tombs: list[Tomb], missing: set[int] | None, now: float) -> None:
        fresh = [tomb for tomb in tombs if self.tombstones.add(tomb, missing, now)]
        if fresh:
            for link in self._links:
                self.send_tombs(link, fresh, [])

    def forget_tombs(self, tombs: list[Tomb]) -> None:
        if tombs:
            for link in self._links:
                self.send_tombs(link, [], tombs)

    def send_tombs(self, link: NodeLink, add: list[Tomb], forget: list[Tomb]) -> None:
        if link.session is None or not link.obeys or not (add or forget):
            return
        message = m.Tombstones(
            link.segment.id,
            self._catalog.term,
            _digests(add),
            np.array([tomb.term for tomb in add], np.uint64).tobytes(),
            np.array([tomb.sequence for tomb in add], np.uint64).tobytes(),
            _digests(forget),
        )
        self._outbox.append(Send(link.session, 0, message))


def _digests(tombs: list[Tomb]) -> m.KeyColumn:
    ends = np.arange(1, len(tombs) + 1, dtype=np.uint32) * np.uint32(DIGEST_BYTES)
    return m.KeyColumn(b"".join(tomb.digest for tomb in tombs), ends.tobytes())
