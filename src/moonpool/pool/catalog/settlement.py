"""Commit, abort and expiry: how a reservation ends.

A commit makes the sealed replicas of an attempt visible, old ones of a replaced value leave in the
same step. Whatever ends otherwise is expired at the agents, so that nothing sealed stays behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from moonpool._core import slots_vacant
from moonpool.pool.catalog.base import (
    COMMITTED,
    GHOST,
    I32,
    IN_FLIGHT,
    NO_SEGMENT,
    ORPHAN,
    PIN_HARD,
    PINNED,
    RESERVED,
    U8,
    U16,
    U32,
    U64,
    Bool,
    Expiry,
    Index,
    Retirement,
)
from moonpool.pool.catalog.reservations import Batch, Reservations
from moonpool.pool.catalog.rows import Rows
from moonpool.pool.catalog.segments import Late
from moonpool.pool.messages import PutStatus

_COMMITTED = int(PutStatus.COMMITTED)
_GONE = int(PutStatus.GONE)
_PARENT_MISSING = int(PutStatus.PARENT_MISSING)
_STALE_TERM = int(PutStatus.STALE_TERM)
WITH_FAMILY = 2  # answer of `commit_ready`


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """m attempts in chain order and their sealed replicas, flattened: `counts` u8[m], the other
    replica columns one entry per replica."""

    term: int
    rows: I32
    attempts: U64
    crcs: U32
    counts: U8
    segments: U16
    slots: U32
    generations: U64


class Settled(NamedTuple):
    """`rows` are those committed now, `refused_keys` those whose reservation ended instead."""

    status: U8
    rows: I32
    retirements: list[Retirement]
    expiries: list[Expiry]
    refused_keys: list[bytes]


class Ended(NamedTuple):
    """Keys whose reservation ended without a value, and what their agents must expire."""

    keys: list[bytes]
    expiries: list[Expiry]


class Settlement:
    """Decides commits, aborts and expiry."""

    def __init__(self, rows: Rows, reservations: Reservations) -> None:
        self._rows = rows
        self._reservations = reservations
        self._good: Bool = np.zeros(rows.config.rows_max, np.bool_)

    # Commit.

    def commit(self, call: CommitRequest, now: float, wall_ms: int) -> Settled:
        table = self._rows.table
        m = call.rows.size
        if m and call.term == self._rows.term:
            batch = self._reservations.find(int(call.attempts[0]))
            if batch is not None and batch.whole and batch.rows.size == m:
                whole = self._commit_whole(batch, call, wall_ms)
                if whole is not None:
                    return whole
        status = np.full(m, _GONE, np.uint8)
        inside = (call.rows >= 0) & (call.rows < table.rows_max)
        safe = call.rows if inside.all() else np.where(inside, call.rows, 0).astype(np.int32)
        again = inside & (table.state[safe] == COMMITTED) & (table.seq[safe] == call.attempts)
        # Sequences are unique under one term only.
        again &= table.term[safe] == np.uint64(call.term)
        if again.any():
            status[again] = _COMMITTED
        # A row's attempt stays behind when its reservation ended; only an open one counts.
        mine = inside & ~again & (table.attempt[safe] == call.attempts)
        mine &= self._rows.in_flight(safe)
        mine &= _first_of_each(safe)
        if call.term != self._rows.term:
            status[~again] = _STALE_TERM
            return Settled(status, call.rows[:0], [], [], [])
        places = np.flatnonzero(mine)
        if places.size == 0:
            return Settled(status, call.rows[:0], [], [], [])
        checked = _Checked(self._rows, self._reservations, call, places)
        self._check_parents(checked, status)
        done, refused = places[checked.good], places[~checked.good]
        retirements, expiries = self._apply(checked, now, wall_ms)
        status[done] = _COMMITTED
        ended = Ended([], [])
        if refused.size:
            ended = self.end(call.rows[refused], call.attempts[refused], now)
        expiries += ended.expiries
        return Settled(status, call.rows[done], retirements, expiries, ended.keys)

    def _commit_whole(self, batch: Batch, call: CommitRequest, wall_ms: int) -> Settled | None:
        """The usual commit: all of a batch that was granted as a whole, one copy each on the one
        segment promised, into slots that hold nothing. None: not so."""
        rows, table, m = self._rows, self._rows.table, call.rows.size
        segment = rows.segments[batch.segment]
        if (
            call.counts.tobytes() != b"\x01" * m
            or call.segments.tobytes() != segment.id.to_bytes(2, "little") * m
            or not slots_vacant(segment.by_slot, call.slots)
        ):
            return None
        ready = table.commit_ready(
            call.rows,
            call.attempts,
            first=batch.first,
            count=m,
            state_from=RESERVED,
            state_to=COMMITTED,
            orphan_flag=ORPHAN,
        )
        if not ready:
            return None
        status, replicas = table.commit_batch(
            call.rows,
            call.attempts,
            call.segments,
            call.slots,
            call.generations,
            call.crcs,
            state_from=RESERVED,
            state_to=COMMITTED,
            touch_ancestors=rows.policy.touches_ancestors,
        )
        segment.add(replicas, call.slots, batch.total_bytes)
        segment.release(batch.total_bytes, m)
        rows.objects += m
        self._reservations.close_whole(batch)
        if batch.pin == PIN_HARD:
            table.flags[call.rows] |= PINNED
        put = batch.source
        assert put is not None
        rows.events.add_keys(
            *("put", wall_ms, put.blob, put.ends, put.outside_blob, put.outside_ends),
            *(put.sizes, put.parent_of),
        )
        if ready == WITH_FAMILY:
            rows.place_family(call.rows)
        return Settled(status + np.uint8(_COMMITTED), call.rows, [], [], [])

    def _check_parents(self, checked: _Checked, status: U8) -> None:
        """A key is visible only after its parent: refused with it when the parent is refused."""
        table, good = self._rows.table, self._good
        rows, parents = checked.rows, checked.parents
        has = parents >= 0
        if not has.any():
            return
        ready = ~has | (table.state[parents] == COMMITTED)
        if ready.all():
            return
        good[rows[checked.good]] = True
        while True:
            bad = checked.good & ~ready & ~good[parents]
            if not bad.any():
                break
            checked.good &= ~bad
            good[rows[bad]] = False
            status[checked.places[bad]] = _PARENT_MISSING
        good[rows] = False

    def _apply(
        self, checked: _Checked, now: float, wall_ms: int
    ) -> tuple[list[Retirement], list[Expiry]]:
        rows, table = self._rows, self._rows.table
        checked.drop_refused()
        mine = checked.rows
        if mine.size == 0:
            return [], []
        self._stale_slots(checked, now, wall_ms)
        replaced = mine[table.state[mine] == COMMITTED]
        retirements = rows.detach(replaced, now)
        rows.objects += mine.size - replaced.size
        for batch, where in checked.batches:
            if batch.mixed:
                self._fill(batch, mine[where], checked.parents[where])
        status, replicas = table.commit_batch(
            checked.owners,
            checked.owner_attempts(),
            checked.segments,
            checked.slots,
            checked.generations,
            checked.owner_crcs(),
            state_from=RESERVED,
            state_to=COMMITTED,
            touch_ancestors=rows.policy.touches_ancestors,
        )
        assert not status.any(), (status, mine)
        sizes = table.size[checked.owners]
        for segment, at in rows.segments.groups(checked.segments):
            segment.add(replicas[at], checked.slots[at], int(sizes[at].sum()))
        expiries = self._unused(checked)
        for batch, where in checked.batches:
            self._keep(batch, checked.indexes[where])
            if batch.pin == PIN_HARD:
                table.flags[mine[where]] |= PINNED
        if replaced.size:
            fresh = ~np.isin(mine, replaced)
            rows.record("replace", replaced, wall_ms)
            rows.record("put", mine[fresh], wall_ms)
        else:
            rows.record("put", mine, wall_ms)
        rows.place_family(mine)
        return retirements, expiries

    def _unused(self, checked: _Checked) -> list[Expiry]:
        """Promised replicas that do not count: whatever their agents hold of them goes."""
        sealed = set(zip(checked.owner_attempts().tolist(), checked.segments.tolist(), strict=True))
        unused: dict[int, list[int]] = {}
        for batch, where in checked.batches:
            for index in checked.indexes[where].tolist():
                for segment in batch.segments[index].tolist():
                    if segment != NO_SEGMENT and (batch.first + index, segment) not in sealed:
                        unused.setdefault(segment, []).append(batch.first + index)
        return [
            Expiry(segment, self._rows.term, np.array(attempts, np.uint64))
            for segment, attempts in unused.items()
        ]

    def _stale_slots(self, checked: _Checked, now: float, wall_ms: int) -> None:
        """A slot that holds something newer tells that what we thought in it is gone."""
        for segment, at in self._rows.segments.groups(checked.segments):
            old = segment.by_slot[checked.slots[at]]
            old = old[old >= 0]
            if old.size:
                self._rows.lose_replicas(np.unique(old), wall_ms, now)

    def _fill(self, batch: Batch, rows: I32, parents: I32) -> None:
        """Columns of a batch in which some keys replace: theirs could not be set before."""
        table = self._rows.table
        places = (table.attempt[rows] - np.uint64(batch.first)).astype(np.int64)
        table.set_parent(rows, parents)
        table.state[rows] = RESERVED
        table.flags[rows] = 0
        table.tenant[rows] = batch.tenant
        table.term[rows] = self._rows.term
        table.seq[rows] = table.attempt[rows]
        table.size[rows] = batch.sizes[places]
        table.expiry_ms[rows] = batch.expiry_ms
        table.pin[rows] = batch.pin
        table.wanted[rows] = batch.wanted

    def _keep(self, batch: Batch, indexes: Index) -> None:
        """The promise is kept: what was promised is now counted as committed."""
        self._give_back(batch, indexes, None)
        self._reservations.close(batch, indexes)

    def _give_back(self, batch: Batch, indexes: Index, late: tuple[float, float] | None) -> None:
        """Return promised room: at once, or at `until` or the next report after `since`."""
        for column in range(batch.segments.shape[1]):
            numbers = batch.segments[indexes, column]
            for segment, at in self._rows.segments.groups(numbers[numbers != NO_SEGMENT]):
                sizes = batch.sizes[indexes[numbers != NO_SEGMENT]][at]
                if late is None:
                    segment.release(int(sizes.sum()), sizes.size)
                else:
                    until, since = late
                    segment.late.append(Late(until, since, int(sizes.sum()), sizes.size))

    # Ends without a value.

    def end(self, rows: I32, attempts: U64, now: float, late_until: float | None = None) -> Ended:
        """End these reservations where they are open. With `late_until` their writer may still
        hold memory: the room stays promised until the agent's next report or that moment."""
        keys: list[bytes] = []
        expiries: list[Expiry] = []
        by_batch: dict[int, list[int]] = {}
        for attempt in attempts.tolist():
            batch = self._reservations.find(attempt)
            if batch is not None and batch.open[attempt - batch.first]:
                by_batch.setdefault(batch.first, []).append(attempt - batch.first)
        given = dict(zip(attempts.tolist(), rows.tolist(), strict=True))
        for first, indexes in by_batch.items():
            batch = self._reservations.get(first)
            assert batch is not None, first
            same = [i for i in indexes if given[first + i] == int(batch.rows[i])]
            some, expired = self._end(batch, np.array(sorted(set(same)), np.int32), now, late_until)
            keys += some
            expiries += expired
        return Ended(keys, expiries)

    def end_batch(self, batch: Batch, now: float, late_until: float | None) -> Ended:
        return Ended(*self._end(batch, np.flatnonzero(batch.open), now, late_until))

    def _end(
        self, batch: Batch, indexes: Index, now: float, late_until: float | None
    ) -> tuple[list[bytes], list[Expiry]]:
        if indexes.size == 0:
            return [], []
        rows, table = self._rows, self._rows.table
        mine = batch.rows[indexes]
        keys = [table.key(int(row)) for row in mine]
        expiries = []
        owners = np.repeat(np.arange(indexes.size), batch.segments.shape[1])
        numbers = batch.segments[indexes].ravel()
        named = numbers != NO_SEGMENT
        owners, numbers = owners[named], numbers[named]
        attempts = (indexes + np.int64(batch.first)).astype(np.uint64)
        for segment, at in rows.segments.groups(numbers):
            expiries.append(Expiry(segment.id, rows.term, attempts[owners[at]]))
        self._give_back(batch, indexes, None if late_until is None else (late_until, now))
        valued = table.state[mine] == COMMITTED
        table.flags[mine[valued]] &= 0xFF ^ IN_FLIGHT
        table.state[mine[~valued]] = GHOST
        self._reservations.close(batch, indexes)
        rows.prune(mine[~valued])
        return keys, expiries


class _Checked:
    """The attempts of one commit whose reservation is open, with the replicas that count."""

    def __init__(
        self, rows: Rows, reservations: Reservations, call: CommitRequest, places: Index
    ) -> None:
        self.places = places
        self.call = call
        self.rows = call.rows[places]
        self.attempts = call.attempts[places]
        self.crcs = call.crcs[places]
        self.single = call.counts.size == call.segments.size and bool((call.counts == 1).all())
        self._find_batches(rows, reservations)
        self.good = np.zeros(places.size, np.bool_)
        self._check_replicas(rows)

    def _find_batches(self, rows: Rows, reservations: Reservations) -> None:
        firsts = np.array([_batch_of(reservations, a) for a in self.attempts.tolist()], np.uint64)
        self.indexes = (self.attempts - firsts).astype(np.int64)
        self.parents = np.full(self.rows.size, -1, np.int32)
        self.batches: list[tuple[Batch, slice | Index]] = []
        wheres: list[tuple[int, slice | Index]]
        if (firsts == firsts[0]).all():
            wheres = [(int(firsts[0]), slice(None))]
        else:
            wheres = [(int(first), np.flatnonzero(firsts == first)) for first in np.unique(firsts)]
        for first, where in wheres:
            batch = reservations.get(first)
            assert batch is not None, first
            self.batches.append((batch, where))
            self.parents[where] = batch.parents[self.indexes[where]]

    def _check_replicas(self, rows: Rows) -> None:
        """A replica counts when its segment was promised, once; enough of them make a value."""
        call = self.call
        counts = call.counts[self.places].astype(np.int64)
        if self.places.size == call.rows.size:
            where: slice | Index = slice(None)
        else:
            chosen = np.zeros(call.rows.size, np.bool_)
            chosen[self.places] = True
            where = np.flatnonzero(np.repeat(chosen, call.counts))
        self.segments = call.segments[where]
        self.slots = call.slots[where]
        self.generations = call.generations[where]
        if self.single:
            self.owner_index = np.arange(self.places.size)
        else:
            self.owner_index = np.repeat(np.arange(self.places.size), counts)
        fits = np.zeros(self.segments.size, np.bool_)
        minimum = np.zeros(self.places.size, np.int64)
        for batch, at in self.batches:
            minimum[at] = batch.min_replicas
            if self.single:
                mine: slice | Index = at
            else:
                chosen = np.zeros(self.places.size, np.bool_)
                chosen[at] = True
                mine = np.flatnonzero(chosen[self.owner_index])
            promised = batch.segments[self.indexes[self.owner_index[mine]]]
            fits[mine] = (promised == self.segments[mine, None]).any(axis=1)
        fits &= self.segments != NO_SEGMENT
        safe = np.where(fits, self.segments, 0)
        fits &= self.slots < rows.segments.slots[safe]
        if not self.single:
            fits &= _first_of_each(self.owner_index.astype(np.uint64) << 16 | self.segments)
        fits &= _first_of_each(self.segments.astype(np.uint64) << 32 | self.slots)
        self.fits = fits
        enough = np.bincount(self.owner_index[fits], minlength=self.places.size)
        self.good = (enough >= minimum) & (enough > 0)

    def drop_refused(self) -> None:
        """Keep what is good, in every column."""
        if not (self.good.all() and self.fits.all()):
            keep = self.fits & self.good[self.owner_index]
            renumber = np.cumsum(self.good) - 1
            self.segments = self.segments[keep]
            self.slots = self.slots[keep]
            self.generations = self.generations[keep]
            self.owner_index = renumber[self.owner_index[keep]]
            self.batches = [
                (batch, renumber[np.arange(self.good.size)[where][self.good[where]]])
                for batch, where in self.batches
            ]
            self.rows, self.attempts = self.rows[self.good], self.attempts[self.good]
            self.crcs, self.indexes = self.crcs[self.good], self.indexes[self.good]
            self.parents = self.parents[self.good]
        self.owners = self.rows if self.single else self.rows[self.owner_index]

    def owner_attempts(self) -> U64:
        return self.attempts if self.single else self.attempts[self.owner_index]

    def owner_crcs(self) -> U32:
        return self.crcs if self.single else self.crcs[self.owner_index]


def _batch_of(reservations: Reservations, attempt: int) -> int:
    batch = reservations.find(attempt)
    assert batch is not None, attempt
    return batch.first


def _first_of_each(values: Index) -> Bool:
    """True where a value appears for the first time."""
    if values.size < 2 or np.unique(values).size == values.size:
        return np.ones(values.size, np.bool_)
    _, first = np.unique(values, return_index=True)
    once = np.zeros(values.size, np.bool_)
    once[first] = True
    return once
