"""A master that stands by: it follows what the nodes of the leader hold, grants nothing, obeys and
orders nobody, and can lead from one moment to the next.

A node tells all it holds, then its changes, slot by slot as they are at that moment. Of two values
of one key the older one stays until its copies are gone: the leader's replacement may yet come to
nothing. Whoever holds such a value is asked for its whole inventory when this master takes the
lead.
"""

from __future__ import annotations

import numpy as np

from moonpool.pool import messages as m
from moonpool.pool.catalog.base import COMMITTED, I32, Bool
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.catalog.inventory import Report, rows_of
from moonpool.pool.columns import u32
from moonpool.pool.effects import Effect, Send
from moonpool.pool.master_links import Links, LinkState, NodeLink
from moonpool.pool.master_reports import forged, report_of

WAITING_MAX = 4096  # newer values of a segment that wait for the older ones to go


class Standby:
    """Between the start, or the loss of the lead, and `Joins.lead`."""

    def __init__(
        self, catalog: Catalog, links: Links, outbox: list[Effect], going_on: bool
    ) -> None:
        self._catalog = catalog
        self._links = links
        self._outbox = outbox
        self.going_on = going_on
        self.leader = ""  # its address, as far as known
        self.changes = 0
        self._waiting: dict[int, dict[int, Report]] = {}  # by segment and slot
        self._unsure: set[int] = set()  # segments that hold what is not known here

    def follow(self, link: NodeLink, able: bool) -> None:
        """A node has joined: it is to report, all of it. One of an older release is not `able`:
        it is asked for its inventory when this master leads."""
        self._begin(link)
        assert link.session is not None
        if able:
            self._outbox.append(Send(link.session, 0, m.Follow(link.segment.id)))

    def _begin(self, link: NodeLink) -> None:
        link.state = LinkState.FOLLOWED
        link.segment.known = False  # what it reports is taken in, whatever was known before
        link.progress = self._catalog.inventory.begin(link.segment)
        link.followed_to = -1
        self._waiting.pop(link.segment.id, None)
        self._unsure.discard(link.segment.id)

    def chunk(self, session: int, call: m.InventoryChunk, now: float, wall_ms: int) -> None:
        link = self._links.followed(session, call.segment)
        if link is None or link.progress is None:
            return
        self._take(link, report_of(call), now, wall_ms)
        if call.last:
            self._catalog.inventory.finish(link.segment, link.progress, wall_ms, now)
            link.segment.known = False
            link.progress = None
            link.followed_to = 0

    def changed(self, session: int, call: m.Changed, now: float, wall_ms: int) -> None:
        link = self._links.followed(session, call.segment)
        if link is None:
            return
        if call.gap:
            self._begin(link)
        elif link.progress is None and link.followed_to >= 0:
            self._apply(link, call, now, wall_ms)

    def _apply(self, link: NodeLink, call: m.Changed, now: float, wall_ms: int) -> None:
        slots, report = u32(call.slot), report_of(call.sealed)
        self._catalog.inventory.changed(link.segment, slots, report, now, wall_ms)
        waiting = self._waiting.get(link.segment.id)
        if waiting:
            for slot in slots.tolist():
                waiting.pop(slot, None)
        if report.slots.size:
            self._take(link, report, now, wall_ms)
        self._try_again(now, wall_ms)
        link.followed_to = call.sequence
        self.changes += int(slots.size)

    def whole(self, link: NodeLink) -> int:
        """The change number up to which all of this segment is known as it is; -1: it is not."""
        segment = link.segment.id
        if link.progress is not None or segment in self._unsure or self._waiting.get(segment):
            return -1
        return link.followed_to if link.state is LinkState.FOLLOWED else -1

    def end(self) -> None:
        self.going_on = False
        self._waiting.clear()
        self._unsure.clear()

    @property
    def waiting(self) -> int:
        return sum(len(some) for some in self._waiting.values())

    def _take(self, link: NodeLink, report: Report, now: float, wall_ms: int) -> None:
        table = self._catalog.table
        if self._catalog.rows.shares is not None and (strange := forged(report)).any():
            self._unsure.add(link.segment.id)  # all told anew, it is retired
            report = rows_of(report, np.flatnonzero(~strange))
        rows: I32 = table.find(report.blob, report.ends)
        other = rows >= 0
        other &= table.state[rows] == COMMITTED
        other &= (table.term[rows] != report.terms) | (table.seq[rows] != report.sequences)
        self._wait(link, report, other)
        if other.any():
            report = rows_of(report, np.flatnonzero(~other))
        refused = self._catalog.inventory.follow(link.segment, link.progress, report, now, wall_ms)
        self._wait(link, report, np.isin(report.slots, refused))

    def _wait(self, link: NodeLink, report: Report, which: Bool) -> None:
        waiting = self._waiting.setdefault(link.segment.id, {})
        for i in np.flatnonzero(which).tolist():
            if len(waiting) >= WAITING_MAX:
                self._unsure.add(link.segment.id)
                return
            waiting[int(report.slots[i])] = rows_of(report, np.array([i]))

    def _try_again(self, now: float, wall_ms: int) -> None:
        """Values whose older ones have gone meanwhile."""
        table = self._catalog.table
        for segment, waiting in self._waiting.items():
            link = self._links[segment]
            if link.state is not LinkState.FOLLOWED:
                continue
            for slot, report in list(waiting.items()):
                row = int(table.find(report.blob, report.ends)[0])
                if row < 0 or table.state[row] != COMMITTED:
                    del waiting[slot]
                    self._take(link, report, now, wall_ms)
