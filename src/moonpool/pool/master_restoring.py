"""Segments taken in from a snapshot instead of from their nodes, as far as their nodes agree.

    Adopt(since) -> Adopted(resumed), Changed ...  -> rows of the snapshot, piece by piece -> LIVE
                 -> Adopted(not resumed), inventory: the snapshot has no part in it
    a count that differs, a damaged piece          -> Adopt(since -1), inventory

A slot that changed after the snapshot is what the node says of it. The number of objects that come
together must be the number that the agent has: only then is nothing there that nobody knows of, a
removed object that is still to be retired above all. Until all is taken in, the node's heartbeats
are not acknowledged, because nobody may read on the strength of a report that was not judged.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from moonpool.core.errors import BadFrame, BadInput, Corrupt
from moonpool.pool import messages as m
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.catalog.inventory import Report, rows_of
from moonpool.pool.columns import u32
from moonpool.pool.effects import Effect, Send
from moonpool.pool.master_links import Links, LinkState, NodeLink
from moonpool.pool.master_reports import Reports, report_of
from moonpool.pool.snapshot.saved import Restore, Saved

log = logging.getLogger("moonpool.master")
RECENT = 0xFFFFFFFF  # rank of what came after the snapshot


class Restoring:
    """`saved` None: there is no snapshot."""

    def __init__(
        self,
        catalog: Catalog,
        links: Links,
        reports: Reports,
        outbox: list[Effect],
        saved: Saved | None,
    ) -> None:
        self._catalog = catalog
        self._links = links
        self._reports = reports
        self._outbox = outbox
        self._saved = saved
        self._ready: list[NodeLink] = []
        self.objects = 0
        self.segments = 0
        self.distrusted = 0  # segments whose node did not agree

    @property
    def going_on(self) -> bool:
        """There are pieces to be taken in."""
        return bool(self._ready)

    @property
    def needed(self) -> bool:
        """Something may still be read from the snapshot: also for a node that has not answered."""
        return self._saved is not None or any(link.restore is not None for link in self._links)

    def forget(self) -> None:
        """No more segments are begun from this snapshot."""
        self._saved = None

    def since(self, link: NodeLink) -> int:
        """The change number to adopt this segment with; -1: its node is to tell all."""
        link.restore = None
        segment = link.segment
        if self._saved is None or segment.known or segment.below:
            return -1
        part = self._saved.find(segment.incarnation, segment.slots)
        if part is None:
            return -1
        link.restore = Restore(self._saved, part)
        return part.since

    def adopted(self, link: NodeLink, call: m.Adopted) -> None:
        assert link.restore is not None
        link.restore.sealed = call.sealed
        if not call.resumed:
            link.restore = None

    def takes(self, segment: int) -> bool:
        """What this segment's node says of changes belongs to a snapshot."""
        link = self._links.get(segment)
        return link is not None and link.restore is not None

    def changed(self, session: int, call: m.Changed, now: float, wall_ms: int) -> None:
        """What the node says that changed after the snapshot."""
        link = self._links.spoken_for(session, call.segment, call.term)
        if link is None or link.restore is None or link.state is not LinkState.REPORTING:
            return
        self._reports.presence.heard(link, now)
        restore, slots, report = link.restore, u32(call.slot), report_of(call.sealed)
        self._catalog.inventory.changed(link.segment, slots, report, now, wall_ms)
        restore.changed[slots] = True
        restore.filled[slots] = False
        restore.filled[report.slots] = True
        if report.slots.size:
            recent = np.full(report.slots.size, RECENT, np.uint32)
            report = replace(report, last_used=recent)
        if self._reports.take(link, report, now, wall_ms) and call.last:
            restore.told = True
            self._ready.append(link)

    def step(self, now: float, wall_ms: int) -> list[NodeLink]:
        """One piece of the snapshot, or the end of one segment; call while `going_on`. The
        segments whose nodes have to tell all they hold after all."""
        link = self._ready[0]
        restore = link.restore
        if restore is None or not restore.told:  # its node went, or came anew
            self._ready.pop(0)
            return []
        if restore.over:
            self._ready.pop(0)
            return self._end(link, restore, now, wall_ms)
        try:
            report = _piece(restore)
        except (Corrupt, BadFrame, BadInput) as error:
            log.warning("the snapshot is damaged and not used any more: %s", error)
            self._saved = None
            begun, self._ready = self._ready, []
            return [one for one in begun if one.restore is not None]
        restore.next += 1
        self.objects += report.slots.size
        self._reports.take(link, report, now, wall_ms)
        return []

    def _end(self, link: NodeLink, restore: Restore, now: float, wall_ms: int) -> list[NodeLink]:
        if not restore.agrees:
            self.distrusted += 1
            log.info(
                "node %s has %d objects, snapshot and changes have %d: it tells all of them",
                *(link.endpoint.node, restore.sealed, int(restore.filled.sum())),
            )
            return [link]
        link.restore = None
        self.segments += 1
        self._reports.reported(link, now, wall_ms)
        assert link.session is not None
        ack = m.HeartbeatAck(link.segment.id, self._catalog.term)
        self._outbox.extend([Send(link.session, 0, ack)] * restore.unanswered)
        return []


def _piece(restore: Restore) -> Report:
    """The next rows, without what changed after them. Raises Corrupt, BadFrame, BadInput."""
    report = report_of(restore.saved.rows(restore.segment.places[restore.next]))
    if report.slots.size and int(report.slots.max()) >= restore.segment.slots:
        raise BadInput(f"slot {int(report.slots.max())} of {restore.segment.slots}")
    kept = ~restore.changed[report.slots]
    restore.filled[report.slots[kept]] = True
    return report if kept.all() else rows_of(report, np.flatnonzero(kept))
