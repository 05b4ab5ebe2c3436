"""What nodes report: their inventories, and with each heartbeat what changed since the last."""

from __future__ import annotations

import numpy as np

from moonpool.core.errors import BadInput
from moonpool.pool import messages as m
from moonpool.pool.catalog.base import Bool, Retirement
from moonpool.pool.catalog.catalog import Catalog, split_keys
from moonpool.pool.catalog.distinct import distinct
from moonpool.pool.catalog.inventory import Report
from moonpool.pool.columns import i64, u8, u32, u64
from moonpool.pool.effects import Effect, Send
from moonpool.pool.master_agents import Agents
from moonpool.pool.master_links import Heard, Links, LinkState, NodeLink
from moonpool.pool.master_presence import Presence
from moonpool.pool.tenancy.scope import fits

_SEALED = 1


class Reports:
    """Takes reports into the catalog and has retired what nobody knows."""

    def __init__(
        self,
        catalog: Catalog,
        links: Links,
        agents: Agents,
        presence: Presence,
        outbox: list[Effect],
    ) -> None:
        self._catalog = catalog
        self._links = links
        self._agents = agents
        self.presence = presence
        self._outbox = outbox
        self.refused_chunks = 0
        self.retired_unknown = 0

    # Inventory.

    def chunk(self, session: int, call: m.InventoryChunk, now: float, wall_ms: int) -> None:
        link = self._links.spoken_for(session, call.segment, call.term)
        if link is None or link.progress is None or link.state is LinkState.ADOPTING:
            return
        self.presence.heard(link, now)
        if self.take(link, report_of(call), now, wall_ms) and call.last:
            self.reported(link, now, wall_ms)

    def take(self, link: NodeLink, report: Report, now: float, wall_ms: int) -> bool:
        """A piece of an inventory that is on its way; False: it broke a bound."""
        assert link.progress is not None and link.session is not None
        try:
            retirements = self._catalog.inventory.take(
                link.segment, link.progress, report, self._removed, now, wall_ms
            )
        except ValueError as error:
            # Nothing more is believed of it, and nobody waits for it, until it joins again.
            self.refused_chunks += 1
            self._outbox.append(Send(link.session, 0, m.Failure("bad_input", str(error))))
            self.presence.detach(link, now)
            self._links.changed()
            return False
        if report.sequences.size:
            admission = self._catalog.admission
            admission.next_sequence = max(admission.next_sequence, int(report.sequences.max()) + 1)
        self.retired_unknown += sum(one.slots.size for one in retirements)
        self._agents.retire(retirements)
        return True

    def resumed(self, session: int, call: m.Changed, now: float, wall_ms: int) -> None:
        """Instead of an inventory: what has changed since this master heard of it standing by."""
        link = self._links.spoken_for(session, call.segment, call.term)
        if link is None or link.progress is None or link.state is not LinkState.REPORTING:
            return
        self.presence.heard(link, now)
        slots, report = u32(call.slot), report_of(call.sealed)
        self._catalog.inventory.changed(link.segment, slots, report, now, wall_ms)
        self._agents.retire(
            self._catalog.inventory.take(
                link.segment, link.progress, report, self._removed, now, wall_ms
            )
        )
        if call.last:
            self.reported(link, now, wall_ms)

    def reported(self, link: NodeLink, now: float, wall_ms: int) -> None:
        """All that the segment holds was taken in."""
        assert link.progress is not None
        if link.progress.first and not link.segment.objects and self._catalog.config.slow_start_s:
            link.segment.start_slowly(now)
        self._catalog.inventory.finish(link.segment, link.progress, wall_ms, now)
        link.progress = None
        link.state = LinkState.LIVE
        link.segment.open = True
        self._links.changed()
        self._agents.forget_tombs(self._agents.tombstones.reported(link.segment.id))
        self._agents.unheard.reported(link.segment.id)
        self._agents.confirm(link)

    def _removed(self, report: Report) -> Bool:
        """Which reported versions a tombstone covers, or have a key that is not their tenant's."""
        removed = np.zeros(report.slots.size, np.bool_)
        if self._catalog.rows.shares is not None:
            removed |= forged(report)
        tombstones = self._agents.tombstones
        if len(tombstones):
            start = 0
            columns = zip(
                report.ends.tolist(), report.terms.tolist(), report.sequences.tolist(), strict=True
            )
            for i, (end, term, sequence) in enumerate(columns):
                removed[i] |= tombstones.covers(report.blob[start:end], term, sequence)
                start = end
        return removed

    # Heartbeats.

    def heartbeat(self, session: int, call: m.Heartbeat, now: float, wall_ms: int) -> None:
        link = self._links.spoken_for(session, call.segment, call.term)
        if link is None or link.state is LinkState.ADOPTING:
            return
        if link.lost:
            self.presence.back(link, wall_ms)
        link.usage = call.usage
        link.segment.settle(now, now)
        link.segment.warm(now, self._catalog.config.slow_start_s)
        self._changes(link, call, now, wall_ms)
        self.heard(link, call.sequence)
        want = call.gap or link.ask_again
        if want and link.progress is not None:
            link.ask_again, want = True, False
        elif want:
            link.ask_again = False
            link.progress = self._catalog.inventory.begin(link.segment)
        self.presence.heard(link, now)
        if link.restore is not None:
            # Acknowledged, it would renew a lease before what was removed is retired.
            link.restore.unanswered += 1
            return
        self._outbox.append(
            Send(session, 0, m.HeartbeatAck(call.segment, self._catalog.term, want))
        )

    def heard(self, link: NodeLink, sequence: int) -> None:
        """All changes up to `sequence` are known."""
        attempt, copy = self._catalog.admission.next_sequence, self._catalog.copying.next
        link.heard_changes.append(Heard(sequence, attempt, copy))

    def _changes(self, link: NodeLink, call: m.Heartbeat, now: float, wall_ms: int) -> None:
        """Sealed slots nobody promised or committed are retired; slots the agent let go of are
        lost."""
        kinds = u8(call.change_kind)
        if kinds.size == 0:
            return
        slots, generations = u32(call.change_slot), u64(call.change_generation)
        terms, sequences = u64(call.change_version_term), u64(call.change_version_sequence)
        if not kinds.size == slots.size == generations.size == terms.size == sequences.size:
            raise BadInput("heartbeat: change columns of unequal length")
        if int(slots.max()) >= link.segment.slots:
            raise BadInput(f"heartbeat: slot {int(slots.max())} of {link.segment.slots}")
        if link.restore is not None:
            link.restore.changed[slots] = True
        table = self._catalog.table
        replicas = link.segment.by_slot[slots]
        rows = table.replica_object[replicas]
        ours = replicas >= 0
        ours &= (table.seq[rows] == sequences) & (table.term[rows] == terms)
        current = ours & (table.replica_generation[replicas] == generations)
        sealed = kinds == _SEALED
        unknown = sealed & ~current
        reservations, term = self._catalog.reservations, self._catalog.term
        for i in np.flatnonzero(unknown):
            version = (int(terms[i]), int(sequences[i]))
            if version[0] == term and reservations.is_open(version[1]):
                unknown[i] = False
                continue
            mine = (int(slots[i]), int(generations[i]))
            if self._catalog.copying.spare(link.segment.id, version, mine):
                unknown[i] = False
        if unknown.any():
            self.retired_unknown += int(unknown.sum())
            self._agents.retire([Retirement(link.segment.id, slots[unknown], generations[unknown])])
        gone = ours & ~sealed & (table.replica_generation[replicas] <= generations)
        if gone.any():
            self._catalog.rows.lose_replicas(distinct(replicas[gone]), wall_ms, now)


def forged(report: Report) -> Bool:
    """Which have a key that is not their tenant's: somebody wrote it at an agent."""
    keys = split_keys(report.blob, report.ends)
    pairs = zip(keys, report.tenants.tolist(), strict=True)
    return np.array([not fits(key, tenant) for key, tenant in pairs], np.bool_)


def report_of(call: m.InventoryChunk) -> Report:
    """The chunk's columns; lengths are checked by who takes them in."""
    return Report(
        slots=u32(call.slot),
        generations=u64(call.generation),
        terms=u64(call.version_term),
        sequences=u64(call.version_sequence),
        sizes=u64(call.size),
        crcs=u32(call.crc),
        tenants=u32(call.tenant),
        expiries_ms=i64(call.expiry_ms),
        last_used=u32(call.last_used),
        replicas=u8(call.replicas),
        pins=u8(call.pin),
        blob=call.keys.blob,
        ends=u32(call.keys.ends),
        parent_blob=call.parents.blob,
        parent_ends=u32(call.parents.ends),
    )
