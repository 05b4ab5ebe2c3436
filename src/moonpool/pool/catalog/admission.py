"""Reserve: who may write which key, and where. One decision per batch; nothing is held by waiting.

A batch is admitted key by key in order; with `chain` as a contiguous prefix. Room is promised
before anything is written, and evicted for just as far as the admitted keys need it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from moonpool._core import TableFullError
from moonpool.pool.catalog.admitted import Admitted, Whole
from moonpool.pool.catalog.base import (
    COMMITTED,
    GHOST,
    I32,
    IN_FLIGHT,
    NO_SEGMENT,
    PIN_HARD,
    PIN_KIND,
    RESERVED,
    U8,
    U16,
    U64,
    Bool,
    Placement,
    Retirement,
)
from moonpool.pool.catalog.distinct import distinct
from moonpool.pool.catalog.placing import Placing
from moonpool.pool.catalog.reservations import Batch, PutRequest, Reservations, keys_of
from moonpool.pool.catalog.room import Room
from moonpool.pool.catalog.rows import Rows
from moonpool.pool.catalog.verdicts import spread, who_may
from moonpool.pool.messages import PutStatus

_GRANTED = int(PutStatus.GRANTED)
_EXISTS = int(PutStatus.EXISTS)
_IN_FLIGHT = int(PutStatus.IN_FLIGHT)
_PARENT_MISSING = int(PutStatus.PARENT_MISSING)
_FULL = int(PutStatus.FULL)
_TOO_BIG = int(PutStatus.TOO_BIG)
_HELD = int(PutStatus.HELD)
_NO_NODE = int(PutStatus.NO_NODE)
_INVALID = int(PutStatus.INVALID)
_QUOTA = int(PutStatus.QUOTA)


class Admission:
    """Decides reserve calls."""

    def __init__(
        self, rows: Rows, reservations: Reservations, placement: Placement, room: Room
    ) -> None:
        self._rows = rows
        self._reservations = reservations
        self._placement = placement
        self._room = room
        self.next_sequence = 1

    def admit(
        self, put: PutRequest, draw: Callable[[], float], now: float, wall_ms: int, foreign: Bool
    ) -> Admitted | Whole:
        """`draw` gives random numbers in [0, 1). `foreign` bool[n]: keys that are kept for
        somebody else who inherits them (empty: none)."""
        n = put.ends.size
        table = self._rows.table
        made_room: list[Retirement] = []
        if n > table.rows_max or n * put.replicas > table.replicas_max:
            return self._no_rows(put, [])
        if self._rows.shares is not None:
            made_room = self._room.make_own(put, wall_ms, now)
        if self._room.short_of_rows(put) > 0:
            made_room += self._room.make_rows(put, wall_ms, now)
            if self._room.short_of_rows(put) > 0:
                return self._no_rows(put, made_room)
        elif not foreign.size and (self._rows.shares is None or self._within_quota(put)):
            whole = self._admit_whole(put, draw, now)
            if whole is not None:
                return whole.admitted(made_room) if made_room else whole
        outside = np.zeros(0, np.int32)
        if put.outside_ends.size:  # before rows are made: it refuses what is no key
            outside = table.find(put.outside_blob, put.outside_ends)
        try:
            rows, _ = table.intern(put.blob, put.ends)
        except TableFullError:
            return self._no_rows(put, made_room)
        parents, verdicts = table.batch_parents(rows, put.parent_of, outside, COMMITTED)
        status = who_may(self._rows, put, rows, wall_ms)
        if foreign.size:
            status[foreign & (status == _GRANTED)] = _IN_FLIGHT
        may = status == _GRANTED
        status[may & (verdicts == 1)] = _INVALID
        status[may & (verdicts == 2)] = _PARENT_MISSING
        if (status > _EXISTS).any():
            spread(put, status)
        self._link(put, rows, parents, status)
        wanted = np.flatnonzero(status == _GRANTED).astype(np.int32)
        if wanted.size > self._reservations.left:
            status[wanted[self._reservations.left :]] = _FULL
            spread(put, status)
            wanted = np.flatnonzero(status == _GRANTED).astype(np.int32)
        if not self._within_quota(put):
            wanted = self._cut_at_quota(put, status, wanted)
        if wanted.size == 0:
            self._clean(rows)
            return self._none(put, status, rows, made_room)
        targets, retirements = self._place(put, rows, parents, status, wanted, draw, now, wall_ms)
        retirements = made_room + retirements
        granted = wanted[status[wanted] == _GRANTED]
        if granted.size == 0:
            self._clean(rows)
            return self._none(put, status, rows, retirements)
        childless = self._move_ghosts(rows[granted], parents[granted])
        attempts = np.zeros(n, np.uint64)
        replacing = table.state[rows[granted]] == COMMITTED
        attempts[granted] = self._promise(put, rows, parents, granted, targets, now, replacing)
        if granted.size == n and put.replicas == 1 and (targets == targets[0, 0]).all():
            self._mark_whole(put, int(attempts[0]), int(targets[0, 0]), sum(put.sizes.tolist()))
        if granted.size < n or childless.size:
            self._clean(np.concatenate([rows, childless]))
        return Admitted(status, rows, attempts, targets, retirements)

    def _within_quota(self, put: PutRequest) -> bool:
        """All of the batch, if all of it were new."""
        shares = self._rows.shares
        if shares is None:
            return True
        left = shares.left(put.tenant, pinned=put.pin & PIN_KIND == PIN_HARD)
        return sum(put.sizes.tolist()) * put.replicas <= left.nbytes and (
            put.ends.size <= left.objects
        )

    def _cut_at_quota(self, put: PutRequest, status: U8, wanted: I32) -> I32:
        """Only the leading keys that the tenant's quota takes may be written."""
        shares = self._rows.shares
        assert shares is not None
        left = shares.left(put.tenant, pinned=put.pin & PIN_KIND == PIN_HARD)
        sizes = np.cumsum(put.sizes[wanted]) * np.uint64(put.replicas)
        fits = int(np.searchsorted(sizes, np.uint64(max(left.nbytes, 0)), side="right"))
        beyond = wanted[min(fits, max(left.objects, 0)) :]
        if beyond.size == 0:
            return wanted
        status[beyond] = _QUOTA
        spread(put, status)
        shares.usage.of(put.tenant).refused += int((status == _QUOTA).sum())
        granted: I32 = np.flatnonzero(status == _GRANTED).astype(np.int32)
        return granted

    def _admit_whole(self, put: PutRequest, draw: Callable[[], float], now: float) -> Whole | None:
        """The usual batch: all keys new, one copy, room for all on one segment. None: not so, and
        nothing has changed."""
        store, n = self._rows, put.ends.size
        facts = store.segments.facts(put.tenant)
        if put.replicas != 1 or not facts or not 0 < n <= self._reservations.left:
            return None
        total = sum(put.sizes.tolist())
        chosen = self._placement.targets(
            facts, total, 1, put.host_id, put.prefer_segment, draw(), False
        )
        if not chosen or store.segments[chosen[0]].free_slots < n:
            return None
        first = self.next_sequence
        try:
            made = store.table.reserve_new(
                *(put.blob, put.ends, put.sizes, put.parent_of),
                *(put.outside_blob, put.outside_ends),
                parent_state=COMMITTED,
                state=RESERVED,
                tenant=put.tenant,
                term=store.term,
                first=first,
                expiry_ms=put.expiry_ms,
                wanted=put.replicas,
                pin=put.pin,
            )
        except TableFullError:
            return None
        if made is None:
            return None
        rows, parents = made
        store.segments[chosen[0]].promise(total, n)
        batch = self._record(put, rows, put.sizes, None, parents, None, now)
        batch.source, batch.segment, batch.total_bytes = put, chosen[0], total
        return Whole(rows, first, chosen[0])

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
        """Rows made or kept for this call that hold nothing go."""
        state = self._rows.table.state
        unused = distinct(rows[(state[rows] == 0) | (state[rows] == GHOST)])
        if unused.size:
            state[unused] = GHOST
            self._rows.prune(unused)

    def _no_rows(self, put: PutRequest, retirements: list[Retirement]) -> Admitted:
        n = put.ends.size
        status, rows = np.full(n, _FULL, np.uint8), np.full(n, -1, np.int32)
        return self._none(put, status, rows, retirements)

    def _link(self, put: PutRequest, rows: I32, parents: I32, status: U8) -> None:
        """Put new keys under their parents; a parent below its own child is refused. Ghosts go
        back to where they were: they move when they are granted."""
        table = self._rows.table
        places = np.flatnonzero((status == _GRANTED) & (table.state[rows] != COMMITTED))
        mine = rows[places]
        before = table.parent[mine]
        linked = table.set_parent(mine, parents[places])
        moved = linked & (table.state[mine] == GHOST)
        if moved.any():
            # Last first, so that each step back leads to a tree that was.
            back = np.flatnonzero(moved)[::-1]
            table.set_parent(mine[back], before[back])
        if not linked.all():
            status[places[~linked]] = _INVALID
            spread(put, status)

    def _move_ghosts(self, rows: I32, parents: I32) -> I32:
        """Granted keys that kept a row for their children take their new parents. Returns the
        ghosts that this left without a child."""
        ghosts = self._rows.table.state[rows] == GHOST
        return self._rows.link(rows[ghosts], parents[ghosts]) if ghosts.any() else rows[:0]

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
        facts = self._rows.segments.facts(put.tenant)
        if not facts or (
            put.min_replicas > 1 and len({one.node for one in facts}) < put.min_replicas
        ):
            status[wanted] = _NO_NODE
            return targets, []
        biggest = heapq.nlargest(put.min_replicas, (one.capacity_bytes for one in facts))
        too_big = put.sizes[wanted] > biggest[-1]
        if too_big.any():
            status[wanted[too_big]] = _TOO_BIG
            spread(put, status)
            wanted = wanted[status[wanted] == _GRANTED]
        placing = Placing(
            self._rows, self._placement, self._room, put, facts, targets, rows, wanted, draw
        )
        placing.with_room()
        retirements: list[Retirement] = []
        if placing.left():
            with self._room.sheltering(rows, parents):
                retirements = placing.with_eviction(now, wall_ms)
        status[placing.unplaced()] = _HELD if placing.held else _FULL
        return targets, retirements

    # The promise.

    def _promise(
        self,
        put: PutRequest,
        rows: I32,
        parents: I32,
        granted: I32,
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
        if mixed:
            table.attempt[mine] = np.arange(first, first + mine.size, dtype=np.uint64)
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
        column = replacing if mixed else None
        batch = self._record(
            *(put, mine, put.sizes[granted], targets[granted], parents[granted], column, now)
        )
        return np.arange(batch.first, batch.first + mine.size, dtype=np.uint64)

    def _record(
        self,
        put: PutRequest,
        rows: I32,
        sizes: U64,
        segments: U16 | None,
        parents: I32,
        replacing: Bool | None,
        now: float,
    ) -> Batch:
        """The same without the rows: they say it already. `segments` None: one copy each, on the
        one segment that the batch will say; `replacing` None: none of them does."""
        store, first, n = self._rows, self.next_sequence, rows.size
        self.next_sequence += n
        if put.expiry_ms:
            store.may_expire = True
        if put.replicas > 1:
            store.several = True
        mixed = replacing is not None
        if store.shares is not None:
            size = int(sizes.sum())
            if segments is not None:
                copies = (segments != NO_SEGMENT).sum(axis=1).astype(np.uint64)
                size = int((sizes * copies).sum())
            store.shares.usage.promise(put.tenant, size, n)
            held = store.shares.usage.of(put.tenant)
            held.admitted_bytes += size
            held.admitted_objects += n
        batch = Batch(
            first=first,
            owner=put.owner,
            deadline=now + store.config.reservation_ms / 1000,
            rows=rows,
            sizes=sizes,
            parents=parents,
            open_count=n,
            min_replicas=put.min_replicas,
            wanted=put.replicas,
            pin=put.pin,
            pin_ttl_ms=put.pin_ttl_ms,
            pin_refresh=put.pin_refresh,
            group=put.group,
            tenant=put.tenant,
            expiry_ms=put.expiry_ms,
            mixed=mixed,
            source=None,
            made_segments=segments,
            made_replacing=replacing,
        )
        if mixed:
            batch.parent_keys = keys_of(store.table, parents)
        self._reservations.add(batch)
        return batch
