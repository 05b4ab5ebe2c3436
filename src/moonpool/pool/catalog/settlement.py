"""Commit: how a reservation ends well.

A commit makes the sealed replicas of an attempt visible, old ones of a replaced value leave in the
same step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moonpool.pool.catalog.base import (
    COMMITTED,
    I32,
    NO_SEGMENT,
    ORPHAN,
    RESERVED,
    U8,
    Bool,
    Expiry,
    Retirement,
)
from moonpool.pool.catalog.commits import CheckedCommit, CommitRequest, first_of_each
from moonpool.pool.catalog.endings import Ended, Endings
from moonpool.pool.catalog.reservations import PARENT_GONE, Batch, Reservations
from moonpool.pool.catalog.rows import Rows
from moonpool.pool.messages import PutStatus
from moonpool.pool.tenancy.usage import Usage

_COMMITTED = int(PutStatus.COMMITTED)
_GONE = int(PutStatus.GONE)
_PARENT_MISSING = int(PutStatus.PARENT_MISSING)
_STALE_TERM = int(PutStatus.STALE_TERM)
WITH_FAMILY = 2  # answer of `commit_whole`


class Settled(NamedTuple):
    """`rows` are those committed now, `refused_keys` those whose reservation ended instead."""

    status: U8
    rows: I32
    retirements: list[Retirement]
    expiries: list[Expiry]
    refused_keys: list[bytes]


class Settlement:
    """Decides commits."""

    def __init__(self, rows: Rows, reservations: Reservations, endings: Endings) -> None:
        self._rows = rows
        self._reservations = reservations
        self._endings = endings
        self._good: Bool = np.zeros(rows.config.rows_max, np.bool_)

    def commit(self, call: CommitRequest, now: float, wall_ms: int) -> Settled:
        table = self._rows.table
        m = call.rows.size
        if self.commit_usual(call, now, wall_ms):
            return Settled(np.full(m, _COMMITTED, np.uint8), call.rows, [], [], [])
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
        mine &= first_of_each(safe)
        if call.term != self._rows.term:
            status[~again] = _STALE_TERM
            return Settled(status, call.rows[:0], [], [], [])
        places = np.flatnonzero(mine)
        if places.size == 0:
            return Settled(status, call.rows[:0], [], [], [])
        checked = CheckedCommit(self._rows, self._reservations, call, places)
        self._check_parents(checked, status)
        done, refused = places[checked.good], places[~checked.good]
        retirements, expiries = self._apply(checked, now, wall_ms)
        status[done] = _COMMITTED
        ended = Ended([], [])
        if refused.size:
            ended = self._endings.end(call.rows[refused], call.attempts[refused], now)
        expiries += ended.expiries
        return Settled(status, call.rows[done], retirements, expiries, ended.keys)

    def commit_usual(self, call: CommitRequest, now: float, wall_ms: int) -> bool:
        """The usual commit: all of a batch that was granted as a whole, one copy each on the one
        segment promised, into slots that hold nothing. False: not so, and nothing has changed."""
        m = call.rows.size
        if not m or call.term != self._rows.term:
            return False
        batch = self._reservations.find(int(call.attempts[0]))
        if batch is None or not batch.whole or batch.rows.size != m:
            return False
        return self._commit_whole(batch, call, now, wall_ms)

    def _commit_whole(self, batch: Batch, call: CommitRequest, now: float, wall_ms: int) -> bool:
        rows, table, m = self._rows, self._rows.table, call.rows.size
        segment = rows.segments[batch.segment]
        if (
            call.counts.tobytes() != b"\x01" * m
            or call.segments.tobytes() != segment.id.to_bytes(2, "little") * m
        ):
            return False
        ready = table.commit_whole(
            *(segment.by_slot, call.rows, call.attempts, segment.id),
            *(call.slots, call.generations, call.crcs),
            first=batch.first,
            count=m,
            state_from=RESERVED,
            state_to=COMMITTED,
            orphan_flag=ORPHAN,
            touch_ancestors=rows.order.touches_ancestors,
        )
        if not ready:
            return False
        segment.kept(batch.total_bytes, m)
        if rows.shares is not None:
            self._kept(batch, m, rows.shares.usage)
        if rows.order.keeps_books:
            rows.order.came(segment.id, segment.by_slot[call.slots][::-1])
        rows.objects += m
        self._reservations.close_whole(batch)
        restless = call.rows[:0]
        if batch.pin or rows.standing.low:
            restless = rows.standing.committed(call.rows, batch, now)
        if batch.group:
            rows.groups.joined(call.rows, (batch.tenant, batch.group))
        put = batch.source
        assert put is not None
        rows.events.add_keys(
            *("put", wall_ms, put.blob, put.ends, put.outside_blob, put.outside_ends),
            *(put.sizes, put.parent_of),
        )
        if ready == WITH_FAMILY:
            rows.place_family(call.rows)
        if restless.size:
            rows.relist(restless)
        return True

    def _kept(self, batch: Batch, objects: int, usage: Usage) -> None:
        usage.release(batch.tenant, batch.total_bytes, objects)
        held = usage.of(batch.tenant)
        held.committed_bytes += batch.total_bytes
        held.objects += objects

    def _check_parents(self, checked: CheckedCommit, status: U8) -> None:
        """A key is visible only after its parent: refused with it when the parent is refused."""
        table, good = self._rows.table, self._good
        rows, parents = checked.rows, checked.parents
        lost = checked.good & (parents == PARENT_GONE)
        if lost.any():
            checked.good &= ~lost
            status[checked.places[lost]] = _PARENT_MISSING
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
        self, checked: CheckedCommit, now: float, wall_ms: int
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
            touch_ancestors=rows.order.touches_ancestors,
        )
        assert not status.any(), (status, mine)
        sizes = table.size[checked.owners]
        if rows.shares is not None:
            usage = rows.shares.usage
            usage.copies_came(table.tenant[checked.owners], sizes)
            usage.objects_came(table.tenant[mine])
            usage.objects_left(table.tenant[replaced])
        for segment, at in rows.segments.groups(checked.segments):
            segment.add(replicas[at], checked.slots[at], int(sizes[at].sum()))
            if rows.order.keeps_books:
                rows.order.came(segment.id, replicas[at][::-1])
        if rows.order.keeps_books:  # what was promised elsewhere too, and came to nothing there
            rows.order.given_up(mine)
        expiries = self._unused(checked)
        restless: list[I32] = []
        for batch, where in checked.batches:
            self._endings.keep(batch, checked.indexes[where])
            restless.append(rows.standing.committed(mine[where], batch, now))
            if batch.group:
                rows.groups.joined(mine[where], (batch.tenant, batch.group))
        if replaced.size:
            fresh = ~np.isin(mine, replaced)
            rows.record("replace", replaced, wall_ms)
            rows.record("put", mine[fresh], wall_ms)
        else:
            rows.record("put", mine, wall_ms)
        rows.place_family(mine)
        moved = np.unique(np.concatenate(restless))
        if moved.size:
            rows.relist(moved)
        return retirements, expiries

    def _unused(self, checked: CheckedCommit) -> list[Expiry]:
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

    def _stale_slots(self, checked: CheckedCommit, now: float, wall_ms: int) -> None:
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
        childless = self._rows.link(rows, parents)
        table.state[rows] = RESERVED
        table.flags[rows] = 0
        table.tenant[rows] = batch.tenant
        table.term[rows] = self._rows.term
        table.seq[rows] = table.attempt[rows]
        table.size[rows] = batch.sizes[places]
        table.expiry_ms[rows] = batch.expiry_ms
        table.pin[rows] = batch.pin
        table.wanted[rows] = batch.wanted
        self._rows.prune(childless)
