"""Reserve: who may write which key, and where. One decision per batch; nothing is held by waiting.

A batch is admitted key by key in order; with `chain` as a contiguous prefix. Room is promised
before anything is written, and evicted for just as far as the admitted keys need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from moonpool._core import TableFullError
from moonpool.pool.catalog.base import (
    COMMITTED,
    GHOST,
    I32,
    IN_FLIGHT,
    NO_SEGMENT,
    RESERVED,
    SHELTERED,
    U8,
    U16,
    U64,
    Bool,
    Placement,
    Retirement,
    SegmentFacts,
)
from moonpool.pool.catalog.reservations import Batch, PutRequest, Reservations
from moonpool.pool.catalog.rows import Rows
from moonpool.pool.messages import PutStatus

_GRANTED = int(PutStatus.GRANTED)
_EXISTS = int(PutStatus.EXISTS)
_IN_FLIGHT = int(PutStatus.IN_FLIGHT)
_PARENT_MISSING = int(PutStatus.PARENT_MISSING)
_FULL = int(PutStatus.FULL)
_TOO_BIG = int(PutStatus.TOO_BIG)
_WAIT_PARENT = int(PutStatus.WAIT_PARENT)
_NO_NODE = int(PutStatus.NO_NODE)
_INVALID = int(PutStatus.INVALID)

# What a key gets whose parent (or predecessor in a chain) got this.
_AFTER = {
    _IN_FLIGHT: _WAIT_PARENT,
    _WAIT_PARENT: _WAIT_PARENT,
    _FULL: _FULL,
    _TOO_BIG: _FULL,
    _NO_NODE: _NO_NODE,
    _PARENT_MISSING: _PARENT_MISSING,
    _INVALID: _PARENT_MISSING,
}


class Admitted(NamedTuple):
    """`segments` u16[n, replicas], NO_SEGMENT where there is none; `retirements` of what went."""

    status: U8
    rows: I32
    attempts: U64
    segments: U16
    retirements: list[Retirement]


class Admission:
    """Decides reserve calls."""

    def __init__(self, rows: Rows, reservations: Reservations, placement: Placement) -> None:
        self._rows = rows
        self._reservations = reservations
        self._placement = placement
        self.next_sequence = 1
        self.evicted_objects = 0
        self.evictions = 0

    def admit(
        self, put: PutRequest, draw: Callable[[], float], now: float, wall_ms: int, foreign: Bool
    ) -> Admitted:
        """`draw` gives random numbers in [0, 1). `foreign` bool[n]: keys that are kept for
        somebody else who inherits them (empty: none)."""
        n = put.ends.size
        table = self._rows.table
        made_room: list[Retirement] = []
        if n > table.rows_max or n * put.replicas > table.replicas_max:
            return self._no_rows(put, [])
        if self._short_of_rows(put) > 0:
            made_room = self._make_row_room(put, wall_ms, now)
            if self._short_of_rows(put) > 0:
                return self._no_rows(put, made_room)
        try:
            rows, fresh = table.intern(put.blob, put.ends)
        except TableFullError:
            return self._no_rows(put, made_room)
        outside = np.zeros(0, np.int32)
        if put.outside_ends.size:
            outside = table.find(put.outside_blob, put.outside_ends)
        parents, verdicts = table.batch_parents(rows, put.parent_of, outside, COMMITTED)
        if fresh.all() and not foreign.size and not verdicts.any():
            admitted = self._admit_whole(put, rows, parents, draw, now)
            if admitted is not None:
                return admitted._replace(retirements=made_room)
        status = self._who_may(put, rows, fresh, wall_ms)
        if foreign.size:
            status[foreign & (status == _GRANTED)] = _IN_FLIGHT
        may = status == _GRANTED
        status[may & (verdicts == 1)] = _INVALID
        status[may & (verdicts == 2)] = _PARENT_MISSING
        if (status > _EXISTS).any():
            self._spread(put, status)
        self._link(put, rows, parents, status)
        wanted = np.flatnonzero(status == _GRANTED).astype(np.int32)
        if wanted.size > self._reservations.left:
            status[wanted[self._reservations.left :]] = _FULL
            self._spread(put, status)
            wanted = np.flatnonzero(status == _GRANTED).astype(np.int32)
        if wanted.size == 0:
            self._clean(rows)
            return self._none(put, status, rows, made_room)
        targets, retirements = self._place(put, rows, parents, status, wanted, draw, now, wall_ms)
        retirements = made_room + retirements
        granted = wanted[status[wanted] == _GRANTED]
        if granted.size == 0:
            self._clean(rows)
            return self._none(put, status, rows, retirements)
        attempts = np.zeros(n, np.uint64)
        replacing = table.state[rows[granted]] == COMMITTED
        attempts[granted] = self._promise(put, rows, parents, granted, targets, now, replacing)
        if granted.size == n and put.replicas == 1 and (targets == targets[0, 0]).all():
            self._mark_whole(put, int(attempts[0]), int(targets[0, 0]), sum(put.sizes.tolist()))
        if granted.size < n:
            self._clean(rows)
        return Admitted(status, rows, attempts, targets, retirements)

    def _admit_whole(
        self, put: PutRequest, rows: I32, parents: I32, draw: Callable[[], float], now: float
    ) -> Admitted | None:
        """The usual batch: all keys new, one copy, room for all on one segment. None: not so."""
        table, n = self._rows.table, rows.size
        facts = self._rows.segments.facts()
        if put.replicas != 1 or not facts or not 0 < n <= self._reservations.left:
            return None
        total = sum(put.sizes.tolist())
        chosen = self._placement.targets(
            facts, total, 1, put.host_id, put.prefer_segment, draw(), False
        )
        if not chosen or self._rows.segments[chosen[0]].free_slots < n:
            return None
        if not table.set_parent(rows, parents).all():
            return None
        self._rows.segments[chosen[0]].promise(total, n)
        targets = np.full((n, 1), chosen[0], np.uint16)
        everything = slice(None)
        attempts = self._promise(
            put, rows, parents, everything, targets, now, np.zeros(n, np.bool_)
        )
        self._mark_whole(put, int(attempts[0]), chosen[0], total)
        return Admitted(np.zeros(n, np.uint8), rows, attempts, targets, [])

    def _mark_whole(self, put: PutRequest, first: int, segment: int, total: int) -> None:
        """All of the call was granted on one segment: its commit may be, too."""
        batch = self._reservations.get(first)
        assert batch is not None, first
        if not batch.mixed:
            batch.source, batch.segment, batch.total_bytes = put, segment, total

    def _none(
        self, put: PutRequest, status: U8, rows: I32, retirements: list[Retirement]
    ) -> Admitted:
        segments = np.full((status.size, put.replicas), NO_SEGMENT, np.uint16)
        return Admitted(status, rows, np.zeros(status.size, np.uint64), segments, retirements)

    def _clean(self, rows: I32) -> None:
        """Rows made for this call that were not granted go again."""
        state = self._rows.table.state
        unused = np.unique(rows[state[rows] == 0])
        if unused.size:
            state[unused] = GHOST
            self._rows.prune(unused)

    def _short_of_rows(self, put: PutRequest) -> int:
        """How many objects of this kind find no rows, of objects or replicas, were all new."""
        table, n = self._rows.table, put.ends.size
        promised = sum(one.promised_objects for one in self._rows.segments)
        replicas = table.replica_count + promised + n * put.replicas
        lacking = -((table.replicas_max - replicas) // put.replicas)
        return max(len(table) + n - table.rows_max, lacking)

    def _make_row_room(self, put: PutRequest, wall_ms: int, now: float) -> list[Retirement]:
        """A full table is a full pool: the fullest segment's first choices make room."""
        table = self._rows.table
        known = table.find(put.blob, put.ends)
        parents = table.find(put.outside_blob, put.outside_ends)
        sheltered = self._shelter(known[known >= 0], parents)
        retirements: list[Retirement] = []
        while (short := self._short_of_rows(put)) > 0:
            fullest = max(self._rows.segments, key=lambda one: one.objects, default=None)
            if fullest is None:
                break
            plan = self._rows.evictor.plan(fullest.id, 0, short)
            if plan.objects == 0:
                break
            retirements += self._evict(plan.rows(0, min(short, plan.objects)), wall_ms, now)
        table.flags[sheltered] &= 0xFF ^ SHELTERED
        return retirements

    def _no_rows(self, put: PutRequest, retirements: list[Retirement]) -> Admitted:
        n = put.ends.size
        status, rows = np.full(n, _FULL, np.uint8), np.full(n, -1, np.int32)
        return self._none(put, status, rows, retirements)

    # Who may write.

    def _who_may(self, put: PutRequest, rows: I32, fresh: Bool, wall_ms: int) -> U8:
        store = self._rows
        status = np.zeros(rows.size, np.uint8)
        if not put.replace:
            readable = store.table.state[rows] == COMMITTED
            if store.may_expire:
                readable &= ~store.expired(rows, wall_ms)
            if not store.segments.all_alive:
                # A value that nobody can reach may be put again; the old one goes when it returns.
                readable &= store.reachable(rows)
            status[readable] = _EXISTS
        status[(status == _GRANTED) & store.in_flight(rows)] = _IN_FLIGHT
        _, first = np.unique(rows, return_index=True)
        if first.size < rows.size:
            again = np.ones(rows.size, np.bool_)
            again[first] = False
            status[again & (status == _GRANTED)] = _IN_FLIGHT
        return status

    def _spread(self, put: PutRequest, status: U8) -> None:
        """A key cannot be written when its parent, or any before it in a chain, cannot."""
        states = status.tolist()
        parent_of = put.parent_of.tolist()
        blocked = _GRANTED
        for i, parent in enumerate(parent_of):
            if states[i] == _GRANTED and put.chain:
                states[i] = blocked
            if states[i] == _GRANTED and parent >= 0:
                states[i] = _AFTER.get(states[parent], _GRANTED)
            if states[i] in _AFTER:
                blocked = _AFTER[states[i]]
        status[:] = states

    def _link(self, put: PutRequest, rows: I32, parents: I32, status: U8) -> None:
        """Put keys without a value under their parents; a parent below its own child is refused."""
        table = self._rows.table
        places = np.flatnonzero((status == _GRANTED) & (table.state[rows] != COMMITTED))
        linked = table.set_parent(rows[places], parents[places])
        if not linked.all():
            status[places[~linked]] = _INVALID
            self._spread(put, status)

    # Where it goes.

    def _place(
        self,
        put: PutRequest,
        rows: I32,
        parents: I32,
        status: U8,
        wanted: I32,
        draw: Callable[[], float],
        now: float,
        wall_ms: int,
    ) -> tuple[U16, list[Retirement]]:
        """Segments u16[n, replicas] for the wanted keys, promised at once; the rest is FULL."""
        targets = np.full((rows.size, put.replicas), NO_SEGMENT, np.uint16)
        facts = self._rows.segments.facts()
        if len({one.node for one in facts}) < put.min_replicas:
            status[wanted] = _NO_NODE
            return targets, []
        biggest = sorted((one.capacity_bytes for one in facts), reverse=True)
        too_big = put.sizes[wanted] > biggest[put.min_replicas - 1]
        if too_big.any():
            status[wanted[too_big]] = _TOO_BIG
            self._spread(put, status)
            wanted = wanted[status[wanted] == _GRANTED]
        placing = _Placing(self, put, facts, targets, wanted, draw)
        placing.with_room()
        retirements: list[Retirement] = []
        if placing.left():
            sheltered = self._shelter(rows, parents)
            try:
                retirements = placing.with_eviction(now, wall_ms)
            finally:
                self._rows.table.flags[sheltered] &= 0xFF ^ SHELTERED
        for place in placing.unplaced():
            status[place] = _FULL
        return targets, retirements

    def _shelter(self, rows: I32, parents: I32) -> I32:
        """The batch's own values and the ancestors of its keys are not its victims."""
        table = self._rows.table
        family = table.ancestors_order(np.concatenate([rows, parents[parents >= 0]]))
        table.flags[family] |= SHELTERED
        return family

    def _evict(self, rows: I32, wall_ms: int, now: float) -> list[Retirement]:
        if rows.size == 0:
            return []
        self.evictions += 1
        self.evicted_objects += int((self._rows.table.state[rows] == COMMITTED).sum())
        return self._rows.drop(rows, "evict", wall_ms, now, closed=True)

    # The promise.

    def _promise(
        self,
        put: PutRequest,
        rows: I32,
        parents: I32,
        granted: I32 | slice,
        targets: U16,
        now: float,
        replacing: Bool,
    ) -> U64:
        """Record the reservation (its bytes are promised already); attempts of the granted keys."""
        store = self._rows
        table = store.table
        mine = rows[granted]
        mixed = bool(replacing.any())
        first = self.next_sequence
        self.next_sequence += mine.size
        attempts = np.arange(first, first + mine.size, dtype=np.uint64)
        if mixed:
            table.attempt[mine] = attempts
            table.flags[mine[replacing]] |= IN_FLIGHT
            table.state[mine[~replacing]] = RESERVED
            table.flags[mine[~replacing]] = 0
        else:
            table.reserve_batch(
                mine,
                put.sizes[granted],
                state=RESERVED,
                tenant=put.tenant,
                term=store.term,
                first_seq=first,
                first_attempt=first,
                expiry_ms=put.expiry_ms,
                wanted=put.replicas,
                pin=put.pin,
            )
        if put.expiry_ms:
            store.may_expire = True
        self._reservations.add(
            Batch(
                first=first,
                owner=put.owner,
                deadline=now + store.config.reservation_ms / 1000,
                rows=mine,
                sizes=put.sizes[granted],
                segments=targets[granted],
                parents=parents[granted],
                replacing=replacing,
                open=np.ones(mine.size, np.bool_),
                open_count=mine.size,
                min_replicas=put.min_replicas,
                wanted=put.replicas,
                pin=put.pin,
                tenant=put.tenant,
                expiry_ms=put.expiry_ms,
                mixed=mixed,
                source=None,
            )
        )
        return attempts


class _Placing:
    """One batch on its way to its segments: first where there is room, then by eviction."""

    def __init__(
        self,
        admission: Admission,
        put: PutRequest,
        facts: Sequence[SegmentFacts],
        targets: U16,
        wanted: I32,
        draw: Callable[[], float],
    ) -> None:
        self._admission = admission
        self._rows = admission._rows
        self._put = put
        self._facts = list(facts)
        self._targets = targets
        self._wanted = wanted  # places in the batch, in order
        self._sizes = put.sizes[wanted]
        self._next = 0
        self._failed: list[int] = []  # places given up
        self._draw = draw

    def left(self) -> bool:
        return self._next < self._wanted.size

    def unplaced(self) -> list[int]:
        rest: list[int] = self._wanted[self._next :].tolist()
        return self._failed + rest

    def _choose(self, size: int, evicting: bool) -> list[int]:
        put = self._put
        return self._admission._placement.targets(
            self._facts,
            size,
            put.replicas,
            put.host_id,
            put.prefer_segment,
            self._draw(),
            evicting,
        )

    def _fitting(self, chosen: list[int], extra: dict[int, tuple[int, int]]) -> int:
        """How many of the keys left, in order, all of the chosen segments take."""
        run = np.cumsum(self._sizes[self._next :])
        count = run.size
        for number in chosen:
            segment = self._rows.segments[number]
            more_bytes, more_slots = extra.get(number, (0, 0))
            room = max(segment.free_bytes + more_bytes, 0)
            fits = int(np.searchsorted(run, np.uint64(room), side="right"))
            count = min(count, fits, max(segment.free_slots + more_slots, 0))
        return count

    def _assign(self, chosen: list[int], count: int) -> None:
        places = self._wanted[self._next : self._next + count]
        size = int(self._sizes[self._next : self._next + count].sum())
        for column, number in enumerate(chosen):
            self._targets[places, column] = number
            self._rows.segments[number].promise(size, count)
        self._next += count
        self._facts = self._rows.segments.facts()

    def with_room(self) -> None:
        """Assign leading keys while segments have room for them."""
        while self.left():
            chosen = self._choose(int(self._sizes[self._next]), evicting=False)
            if len(chosen) < self._put.min_replicas or len(chosen) < self._reachable_copies():
                return
            self._assign(chosen, max(self._fitting(chosen, {}), 1))

    def _reachable_copies(self) -> int:
        """Copies wanted, as far as there are nodes for them."""
        return min(self._put.replicas, len({one.node for one in self._facts}))

    def with_eviction(self, now: float, wall_ms: int) -> list[Retirement]:
        """Assign the rest where eviction makes room; keys that get none are passed over, in a
        chain with all after them."""
        retirements: list[Retirement] = []
        hopeless = False
        while self.left():
            before = self._next
            if not hopeless:
                retirements += self._evict_for_some(now, wall_ms)
            if self._next == before:
                self.with_room()
            if self._next == before and not self._fewer_copies():
                if self._put.chain or self._has_kin():
                    break
                # Nothing may go any more: smaller keys may still find room as it is.
                hopeless = True
                self._failed.append(int(self._wanted[self._next]))
                self._next += 1
        return retirements

    def _has_kin(self) -> bool:
        return bool((self._put.parent_of >= 0).any())

    def _fewer_copies(self) -> bool:
        """Room for min_replicas copies is enough when there is none for all."""
        chosen = self._choose(int(self._sizes[self._next]), evicting=False)
        if len(chosen) < self._put.min_replicas:
            return False
        self._assign(chosen, 1)
        return True

    def _evict_for_some(self, now: float, wall_ms: int) -> list[Retirement]:
        """Try segment sets until one takes at least the next key; evict just what that needs."""
        tried: set[int] = set()
        size = int(self._sizes[self._next])
        retirements: list[Retirement] | None = None
        while retirements is None:
            chosen = self._choose(size, evicting=True)
            if len(chosen) < self._put.min_replicas:
                break
            retirements = self._evict_in(chosen, now, wall_ms)
            tried.update(chosen)
            self._facts = [one for one in self._facts if one.segment not in tried]
        self._facts = self._rows.segments.facts()
        return retirements or []

    def _evict_in(self, chosen: list[int], now: float, wall_ms: int) -> list[Retirement] | None:
        """Evict on each of the chosen for as many of the keys left as that makes room for."""
        sizes = self._sizes[self._next :]
        rooms: dict[int, tuple[int, int]] = {}
        for number in chosen:
            segment = self._rows.segments[number]
            need = int(sizes.sum()) - segment.free_bytes
            slots = sizes.size - segment.free_slots
            plan = self._rows.evictor.plan(number, need, slots)
            rooms[number] = (plan.size, plan.objects)
        count = self._fitting(chosen, rooms)
        if count == 0:
            return None
        retirements: list[Retirement] = []
        size = int(sizes[:count].sum())
        for number in chosen:
            segment = self._rows.segments[number]
            need, slots = size - segment.free_bytes, count - segment.free_slots
            if len(chosen) > 1:
                # What went for the segment before may have freed room here too.
                plan = self._rows.evictor.plan(number, need, slots)
            retirements += self._admission._evict(plan.rows(need, slots), wall_ms, now)
        self._assign(chosen, count)
        return retirements
