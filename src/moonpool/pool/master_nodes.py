"""The master's view of its nodes: join, adoption, inventory, heartbeats, leases, loss and return.

    JoinSegment -> ADOPTING --Adopted--> REPORTING --last InventoryChunk--> LIVE
    connection lost or not heard for a lease -> AWAY -> (JoinSegment again, or heard again)

A segment takes new objects only when LIVE. Its replicas are readable while it is heard. The lease
on an agent counts from the last acknowledgement it was sent; once it has surely passed nobody can
read that memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import msgspec
import numpy as np

from moonpool.core.errors import BadInput
from moonpool.pool import messages as m
from moonpool.pool.catalog.base import Bool, Expiry, Retirement
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.catalog.inventory import Progress, Report
from moonpool.pool.catalog.segments import Segment
from moonpool.pool.columns import i64, u8, u32, u64
from moonpool.pool.effects import Effect, Send
from moonpool.pool.master_orders import RetireOrders
from moonpool.pool.tombstones import DIGEST_BYTES, Tomb, Tombstones, digest

_SEALED = 1
SLOTS_MAX = 1 << 28
MISSED_MAX = 4096  # expiries kept for a node that is away
FORGET_ROWS = 32_768  # replicas of a forgotten node dropped at one time


class LinkState(Enum):
    ADOPTING = "adopting"
    REPORTING = "reporting"
    LIVE = "live"
    AWAY = "away"


@dataclass(slots=True)
class NodeLink:
    """One segment's connection and lease."""

    segment: Segment
    endpoint: m.SegmentEndpoint
    session: int | None
    state: LinkState
    lease_until: float
    progress: Progress | None = None
    ask_again: bool = False  # a gap was reported while an inventory was on its way
    lost: bool = False  # node_lost was said
    away_since: float = 0.0
    reported_at: float = 0.0  # when the last heartbeat came
    usage: dict[str, int] | None = None
    missed: deque[Expiry] = field(default_factory=lambda: deque(maxlen=MISSED_MAX))

    @property
    def heard(self) -> bool:
        return self.session is not None and not self.lost


class Nodes:
    """Everything between the catalog and the agents."""

    def __init__(
        self,
        catalog: Catalog,
        orders: RetireOrders,
        outbox: list[Effect],
        instance: bytes,
        node_lease_ms: int,
        clock_slack_ms: int,
        forget_after_s: float,
        tombstones_max: int,
        term_raised: Callable[[int, float], None],
    ) -> None:
        self._catalog = catalog
        self._orders = orders
        self._outbox = outbox
        self._instance = instance
        self._node_lease_ms = node_lease_ms
        self._lease_s = (node_lease_ms + clock_slack_ms) / 1000
        self._forget_after_s = forget_after_s
        self._term_raised = term_raised
        self.tombstones = Tombstones(tombstones_max, forget_after_s)
        self.links: dict[int, NodeLink] = {}
        # Segment ids mean something under one master only; so must this number.
        self.topology_version = (int.from_bytes(instance[:4], "little") << 20) + 1
        self.refused_chunks = 0
        self.retired_unknown = 0

    def endpoints(self) -> list[m.SegmentEndpoint]:
        return [
            msgspec.structs.replace(
                link.endpoint, segment=link.segment.id, alive=link.segment.alive
            )
            for link in self.links.values()
        ]

    def names(self, segments: set[int]) -> list[str]:
        return sorted({self.links[segment].endpoint.node for segment in segments})

    @property
    def recovering(self) -> bool:
        """Some segment's first inventory is on its way."""
        return any(
            link.session is not None and not link.segment.known for link in self.links.values()
        )

    @property
    def reported(self) -> int:
        return len({link.endpoint.node for link in self.links.values() if link.segment.known})

    # Join and adoption.

    def join(self, session: int, call: m.JoinSegment, now: float, wall_ms: int) -> None:
        endpoint = call.endpoint
        segments = self._catalog.segments
        segment = segments.find(endpoint.incarnation)
        if why := self._unfit(call, segment):
            self._outbox.append(Send(session, 0, m.Failure("bad_input", why)))
            return
        if segment is None:
            segment = segments.add(
                endpoint.incarnation,
                endpoint.node,
                endpoint.host_id,
                endpoint.capacity_bytes,
                call.slots,
            )
            link = NodeLink(segment, endpoint, session, LinkState.ADOPTING, now)
            self.links[segment.id] = link
        else:
            link = self.links[segment.id]
            if link.session is not None:
                self._detach(link, now)
            link.endpoint, link.session = endpoint, session
            segment.node, segment.host_id = endpoint.node, endpoint.host_id
        admission = self._catalog.admission
        admission.next_sequence = max(admission.next_sequence, call.last_sequence + 1)
        if call.term > self._catalog.term or (
            call.term == self._catalog.term and not segment.known
        ):
            self.raise_term(call.term + 1, now, wall_ms)
        else:
            self._adopt(link, now, wall_ms)
        self._heard(link, now)
        self.topology_version += 1

    def _unfit(self, call: m.JoinSegment, segment: Segment | None) -> str:
        endpoint = call.endpoint
        if len(endpoint.incarnation) != 16 or not 0 < call.slots <= SLOTS_MAX:
            return f"a segment of {call.slots} slots, incarnation {endpoint.incarnation.hex()}"
        if not 0 <= endpoint.capacity_bytes < 2**62 or not 0 <= call.last_sequence < 2**62:
            return f"capacity {endpoint.capacity_bytes}, last sequence {call.last_sequence}"
        if not 0 <= call.term < 2**62:
            return f"term {call.term}"
        if segment is None and self._catalog.segments.full:
            return f"all {len(self._catalog.segments)} segments of this master are taken"
        if segment is not None and (segment.slots, segment.capacity_bytes) != (
            call.slots,
            endpoint.capacity_bytes,
        ):
            return f"segment {endpoint.incarnation.hex()} had another geometry before"
        return ""

    def raise_term(self, term: int, now: float, wall_ms: int) -> None:
        """All reservations end, all segments are adopted again before anything is granted."""
        self._term_raised(term, now)
        for link in self.links.values():
            if link.session is not None:
                self._adopt(link, now, wall_ms)
        self.topology_version += 1

    def _adopt(self, link: NodeLink, now: float, wall_ms: int) -> None:
        link.state = LinkState.ADOPTING
        link.segment.open = False
        link.progress = self._catalog.inventory.begin(link.segment)
        link.ask_again = False
        assert link.session is not None
        adopt = m.Adopt(
            link.segment.id, self._catalog.term, self._instance, self._node_lease_ms, wall_ms
        )
        # The agent may read this at any moment from now on and count its lease from then.
        link.lease_until = max(link.lease_until, now + self._lease_s)
        self._outbox.append(Send(link.session, 0, adopt))

    def adopted(self, session: int, call: m.Adopted, now: float, wall_ms: int) -> list[Tomb]:
        """Tombstones that are new to this master."""
        link = self._link(session, call.segment, call.term)
        if link is None or link.state is not LinkState.ADOPTING:
            return []
        link.state = LinkState.REPORTING
        link.segment.open = link.segment.known
        self._heard(link, now)
        missed, link.missed = list(link.missed), deque(maxlen=MISSED_MAX)
        self.expire(missed)
        tombs = self._tombs_of(call)
        self._bury(tombs, None, now)
        self._send_tombs(link, self.tombstones.all(), [])
        return tombs

    @staticmethod
    def _tombs_of(call: m.Adopted) -> list[Tomb]:
        terms, sequences = u64(call.tombstone_term), u64(call.tombstone_sequence)
        blob = call.tombstones.blob
        if len(blob) != DIGEST_BYTES * terms.size or terms.size != sequences.size:
            raise BadInput(f"{len(blob)} bytes of digests for {terms.size} tombstones")
        return [
            Tomb(blob[DIGEST_BYTES * i : DIGEST_BYTES * (i + 1)], term, sequence)
            for i, (term, sequence) in enumerate(
                zip(terms.tolist(), sequences.tolist(), strict=True)
            )
        ]

    # Inventory.

    def chunk(self, session: int, call: m.InventoryChunk, now: float, wall_ms: int) -> None:
        link = self._link(session, call.segment, call.term)
        if link is None or link.progress is None or link.state is LinkState.ADOPTING:
            return
        self._heard(link, now)
        try:
            retirements = self._catalog.inventory.take(
                link.segment, link.progress, report_of(call), self._removed, now, wall_ms
            )
        except ValueError as error:
            # Nothing more is believed of it, and nobody waits for it, until it joins again.
            self.refused_chunks += 1
            self._outbox.append(Send(session, 0, m.Failure("bad_input", str(error))))
            self._detach(link, now)
            self.topology_version += 1
            return
        sequences = u64(call.version_sequence)
        if sequences.size:
            admission = self._catalog.admission
            admission.next_sequence = max(admission.next_sequence, int(sequences.max()) + 1)
        self.retired_unknown += sum(one.slots.size for one in retirements)
        self.retire(retirements)
        if call.last:
            self._reported(link, now, wall_ms)

    def _reported(self, link: NodeLink, now: float, wall_ms: int) -> None:
        assert link.progress is not None
        self._catalog.inventory.finish(link.segment, link.progress, wall_ms, now)
        link.progress = None
        link.state = LinkState.LIVE
        link.segment.open = True
        self.topology_version += 1
        self._forget_tombs(self.tombstones.reported(link.segment.id))

    def _removed(self, report: Report) -> Bool:
        """Which reported versions a tombstone covers."""
        removed = np.zeros(report.slots.size, np.bool_)
        if len(self.tombstones):
            start = 0
            columns = zip(
                report.ends.tolist(), report.terms.tolist(), report.sequences.tolist(), strict=True
            )
            for i, (end, term, sequence) in enumerate(columns):
                removed[i] = self.tombstones.covers(report.blob[start:end], term, sequence)
                start = end
        return removed

    # Heartbeats.

    def heartbeat(self, session: int, call: m.Heartbeat, now: float, wall_ms: int) -> None:
        link = self._link(session, call.segment, call.term)
        if link is None or link.state is LinkState.ADOPTING:
            return
        if link.lost:
            self._back(link, wall_ms)
        link.usage = call.usage
        link.segment.settle(now, now)
        self._changes(link, call, now, wall_ms)
        want = call.gap or link.ask_again
        if want and link.progress is not None:
            link.ask_again, want = True, False
        elif want:
            link.ask_again = False
            link.progress = self._catalog.inventory.begin(link.segment)
        self._heard(link, now)
        self._outbox.append(
            Send(session, 0, m.HeartbeatAck(call.segment, self._catalog.term, want))
        )

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
            if int(terms[i]) == term and reservations.is_open(int(sequences[i])):
                unknown[i] = False
        if unknown.any():
            self.retired_unknown += int(unknown.sum())
            self.retire([Retirement(link.segment.id, slots[unknown], generations[unknown])])
        gone = ours & ~sealed & (table.replica_generation[replicas] <= generations)
        if gone.any():
            self._catalog.rows.lose_replicas(np.unique(replicas[gone]), wall_ms, now)

    # Loss and return.

    def session_lost(self, session: int, now: float) -> None:
        for link in self.links.values():
            if link.session == session:
                self._detach(link, now)
                self.topology_version += 1

    def _detach(self, link: NodeLink, now: float) -> None:
        link.session = None
        link.state = LinkState.AWAY
        link.progress = None
        link.away_since = now
        self._catalog.segments.set_alive(link.segment, False)
        self.bury_missed(link.segment.id, now)

    def _heard(self, link: NodeLink, now: float) -> None:
        link.lease_until = now + self._lease_s
        link.reported_at = now
        if not link.segment.alive:
            self._catalog.segments.set_alive(link.segment, True)

    def _back(self, link: NodeLink, wall_ms: int) -> None:
        link.lost = False
        self._catalog.events.add("node_back", link.endpoint.node, wall_ms)
        if link.state is LinkState.LIVE:
            link.segment.open = True
        self.topology_version += 1

    def tick(self, now: float, wall_ms: int) -> None:
        for link in self.links.values():
            link.segment.settle(now, float("-inf"))
            if not link.lost and link.lease_until <= now:
                link.lost = True
                if link.session is not None:
                    link.away_since = now
                    self._catalog.segments.set_alive(link.segment, False)
                    self.bury_missed(link.segment.id, now)
                self._catalog.events.add("node_lost", link.endpoint.node, wall_ms)
                self.topology_version += 1
            if link.lost:
                if self.remembered_without(link):
                    self._orders.lease_passed(link.segment.id)
                if link.away_since + self._forget_after_s <= now:
                    self._forget(link, now, wall_ms)
        self._forget_tombs(self.tombstones.expire(now))

    def remembered_without(self, lost: NodeLink) -> bool:
        """Some living node keeps the tombstones of what this one missed: should the master be
        replaced, too, nothing removed comes back with it."""
        return any(
            link is not lost and link.session is not None and link.state is not LinkState.ADOPTING
            for link in self.links.values()
        )

    def _forget(self, link: NodeLink, now: float, wall_ms: int) -> None:
        """Away for too long: what only this node held is gone."""
        held = link.segment.by_slot[link.segment.by_slot >= 0][:FORGET_ROWS]
        if held.size:
            self._catalog.rows.lose_replicas(held, wall_ms, now)

    def next_deadline(self) -> float | None:
        moments = []
        for link in self.links.values():
            if not link.lost:
                moments.append(link.lease_until)
            elif link.segment.objects:
                moments.append(link.away_since + self._forget_after_s)
            if link.segment.late:
                moments.append(link.segment.late[0].until)
        return min(moments, default=None)

    # To the agents.

    def retire(self, retirements: list[Retirement], number: int = 0) -> None:
        """Nobody waits for these (`number` 0); an agent that is away learns when it reports."""
        for one in retirements:
            link = self.links[one.segment]
            if link.session is not None:
                self._outbox.append(
                    Send(
                        link.session,
                        0,
                        m.Retire(
                            number,
                            one.segment,
                            self._catalog.term,
                            one.slots.tobytes(),
                            one.generations.tobytes(),
                            one.hold_ms,
                        ),
                    )
                )

    def expire(self, expiries: list[Expiry]) -> None:
        for one in expiries:
            link = self.links[one.segment]
            if link.session is None or link.state is LinkState.ADOPTING:
                # It would not obey yet: told once it is adopted.
                link.missed.append(one)
            else:
                terms = np.full(one.sequences.size, one.term, np.uint64)
                message = m.Expire(
                    one.segment, self._catalog.term, terms.tobytes(), one.sequences.tobytes()
                )
                self._outbox.append(Send(link.session, 0, message))

    def bury_missed(self, segment: int, now: float) -> None:
        """Removals this segment has not confirmed: others remember them for it."""
        missed = self._orders.missed(segment)
        self._bury([Tomb(digest(key), t, s) for key, t, s in missed], {segment}, now)

    def bury(
        self, missed: list[tuple[bytes, int, int]], missing: set[int] | None, now: float
    ) -> None:
        """Remember these (key, term, sequence); `missing`: the segments that hold a replica."""
        self._bury([Tomb(digest(key), t, s) for key, t, s in missed], missing, now)

    def _bury(self, tombs: list[Tomb], missing: set[int] | None, now: float) -> None:
        fresh = [tomb for tomb in tombs if self.tombstones.add(tomb, missing, now)]
        if fresh:
            for link in self.links.values():
                self._send_tombs(link, fresh, [])

    def _forget_tombs(self, tombs: list[Tomb]) -> None:
        if tombs:
            for link in self.links.values():
                self._send_tombs(link, [], tombs)

    def _send_tombs(self, link: NodeLink, add: list[Tomb], forget: list[Tomb]) -> None:
        if link.session is None or link.state is LinkState.ADOPTING or not (add or forget):
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

    def _link(self, session: int, segment: int, term: int) -> NodeLink | None:
        """The link a node speaks for; None when it is not this session's or of an older term."""
        link = self.links.get(segment)
        if link is None or link.session != session or term != self._catalog.term:
            return None
        return link


def _digests(tombs: list[Tomb]) -> m.KeyColumn:
    ends = np.arange(1, len(tombs) + 1, dtype=np.uint32) * np.uint32(DIGEST_BYTES)
    return m.KeyColumn(b"".join(tomb.digest for tomb in tombs), ends.tobytes())


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
