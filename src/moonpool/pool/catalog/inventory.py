"""What an agent reports of its sealed slots, taken in column by column or compared with the rows.

First report of a segment: its objects become the catalog's, the highest version of a key wins.
Later ones (a node came back, a gap): the catalog is right, what it does not hold at that version
is retired, and what the agent does not hold is lost. Nothing reported is believed before it was
checked; a broken chunk changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moonpool._core import TableFullError
from moonpool.core.errors import BadInput
from moonpool.pool.catalog.base import (
    COMMITTED,
    GHOST,
    I32,
    I64,
    IN_FLIGHT,
    PIN_HARD,
    PIN_KIND,
    PINNED,
    RESERVED,
    U8,
    U32,
    U64,
    Bool,
    Retirement,
)
from moonpool.pool.catalog.copying import Copying
from moonpool.pool.catalog.distinct import distinct
from moonpool.pool.catalog.reservations import Reservations
from moonpool.pool.catalog.rows import Rows
from moonpool.pool.catalog.segments import Segment

CHUNK_SLOTS_MAX = 32_768
VERSION_MAX = 2**62
NO_GENERATIONS = np.empty(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Report:
    """Columns of n sealed slots; `parent_ends` repeats where a key has no parent."""

    slots: U32
    generations: U64
    terms: U64
    sequences: U64
    sizes: U64
    crcs: U32
    tenants: U32
    expiries_ms: I64
    last_used: U32
    replicas: U8
    pins: U8
    blob: bytes
    ends: U32
    parent_blob: bytes
    parent_ends: U32


@dataclass(slots=True)
class Progress:
    """One inventory on its way. `expected` i32[slots]: the replicas that were there when it was
    asked for and have not been reported yet, with their `generations` u64[slots]."""

    first: bool
    expected: I32
    generations: U64
    used: list[U32] = field(default_factory=list)
    placed: list[I32] = field(default_factory=list)


class Inventory:
    """Takes inventories in. `removed(report)` says which entries a tombstone forbids."""

    def __init__(self, rows: Rows, reservations: Reservations, copying: Copying) -> None:
        self._rows = rows
        self._reservations = reservations
        self._copying = copying
        self._none = np.empty(0, np.int32)

    def begin(self, segment: Segment) -> Progress:
        """Call when the inventory is asked for: what is committed until now will be in it."""
        expected = segment.by_slot.copy()
        # Replica rows are reused: only with its generation an expectation is still the same one.
        generations = self._rows.table.replica_generation[expected]
        return Progress(not segment.known, expected, generations)

    def take(
        self,
        segment: Segment,
        progress: Progress,
        report: Report,
        removed: Callable[[Report], Bool],
        now: float,
        wall_ms: int,
    ) -> list[Retirement]:
        """One chunk. Raises BadInput when it breaks a bound; then nothing was changed."""
        check_report(report, segment.slots)
        if report.slots.size == 0:
            return []
        held = self._held(segment, progress, report)
        if progress.first:
            # Taken in by an inventory that broke off: on no list yet.
            early = held & (self._rows.table.replica_list[segment.by_slot[report.slots]] < 0)
            progress.used.append(report.last_used[early])
            progress.placed.append(segment.by_slot[report.slots[early]])
            refused = removed(report) & ~held
            left = ~held & ~refused
            losers, retirements = self._adopt(segment, progress, report, left, now, wall_ms)
            refused |= losers
        else:
            refused, retirements = ~held, []
        if refused.any():
            self._spare_written(segment, report, refused)
        if refused.any():
            retirements.append(
                Retirement(segment.id, report.slots[refused], report.generations[refused])
            )
        return retirements

    def follow(
        self,
        segment: Segment,
        progress: Progress | None,
        report: Report,
        now: float,
        wall_ms: int,
    ) -> U32:
        """What another master's node reports, taken in; without `progress`: as it happens. The
        slots whose value lost against another one of its key. Raises BadInput."""
        check_report(report, segment.slots)
        if report.slots.size == 0:
            return report.slots
        here = progress or Progress(True, self._nothing(segment), NO_GENERATIONS)
        held = self._held(segment, here, report)
        losers, _ = self._adopt(segment, here, report, ~held, now, wall_ms)
        if progress is None:
            self._order(segment, here, now)
        return report.slots[losers]

    def changed(
        self, segment: Segment, slots: U32, report: Report, now: float, wall_ms: int
    ) -> None:
        """These slots hold now what `report` says, and nothing if it does not name them: what else
        was in them is lost. Raises BadInput."""
        check_report(report, segment.slots)
        if slots.size == 0:
            return
        if int(slots.max()) >= segment.slots:
            raise BadInput(f"changes: slot {int(slots.max())} of {segment.slots}")
        table = self._rows.table
        replicas = segment.by_slot[slots]
        there = np.zeros(segment.slots, np.uint64)
        there[report.slots] = report.generations
        lost = (replicas >= 0) & (table.replica_generation[replicas] != there[slots])
        if lost.any():
            self._rows.lose_replicas(distinct(replicas[lost]), wall_ms, now)

    def _nothing(self, segment: Segment) -> I32:
        """No expectations; kept, because a segment may have many slots."""
        if self._none.size < segment.slots:
            self._none = np.full(segment.slots, -1, np.int32)
        return self._none

    def finish(self, segment: Segment, progress: Progress, wall_ms: int, now: float) -> None:
        """The last chunk was taken in: what was expected and not reported is lost."""
        slots = np.flatnonzero(progress.expected >= 0)
        missing, generations = progress.expected[slots], progress.generations[slots]
        still = segment.by_slot[slots] == missing
        still &= self._rows.table.replica_generation[missing] == generations
        missing = missing[still]
        if missing.size:
            self._rows.lose_replicas(missing, wall_ms, now)
        if progress.placed:
            self._order(segment, progress, now)
            self._place_families(progress)
        segment.known = True

    def _place_families(self, progress: Progress) -> None:
        """After a recovery: what came without its parent (evicted meanwhile) is an orphan."""
        if self._rows.rebuilding:
            return
        table = self._rows.table
        rows = distinct(table.replica_object[np.concatenate(progress.placed)])
        self._rows.place_family(rows[(rows >= 0) & (table.state[rows] == COMMITTED)])

    def _held(self, segment: Segment, progress: Progress, report: Report) -> Bool:
        """Which reported slots hold a replica that the catalog has at that version."""
        table = self._rows.table
        replicas = segment.by_slot[report.slots]
        held = replicas >= 0
        held &= table.replica_generation[replicas] == report.generations
        rows = table.replica_object[replicas]
        held &= (table.seq[rows] == report.sequences) & (table.term[rows] == report.terms)
        # A copy of the expectation may name a replica row that was reused: only equal ones count.
        same = held & (progress.expected[report.slots] == replicas)
        progress.expected[report.slots[same]] = -1
        return held

    def _spare_written(self, segment: Segment, report: Report, refused: Bool) -> None:
        """Versions whose reservation is open: their writer will commit or lose them."""
        for i in np.flatnonzero(refused & (report.terms == self._rows.term)):
            refused[i] = not self._reservations.is_open(int(report.sequences[i]))
        for i in np.flatnonzero(refused) if len(self._copying) else ():
            version = int(report.terms[i]), int(report.sequences[i])
            sealed = int(report.slots[i]), int(report.generations[i])
            refused[i] = not self._copying.spare(segment.id, version, sealed)

    # The first inventory.

    def _adopt(
        self,
        segment: Segment,
        progress: Progress,
        report: Report,
        left: Bool,
        now: float,
        wall_ms: int,
    ) -> tuple[Bool, list[Retirement]]:
        table = self._rows.table
        losers = np.zeros(report.slots.size, np.bool_)
        promised = self._rows.segments.changes.promised_objects
        if table.replica_count + promised + report.slots.size > table.replicas_max:
            return left, []
        try:
            rows, _ = table.intern(report.blob, report.ends)
            parents = self._parents(report)
        except TableFullError:
            self._sweep_fresh(report)
            return left, []
        winner = left & (segment.by_slot[report.slots] < 0) & self._best_in_chunk(rows, report)
        state = table.state[rows]
        committed = state == COMMITTED
        newer = (report.terms > table.term[rows]) | (
            (report.terms == table.term[rows]) & (report.sequences > table.seq[rows])
        )
        same = (report.terms == table.term[rows]) & (report.sequences == table.seq[rows])
        winner &= ~committed | newer | same
        # What was reserved under this master may never be committed: until then the reported value
        # is the key's, and the commit will replace it. Its own seal, reported, is not a value yet.
        writing = self._rows.in_flight(rows)
        winner &= ~(writing & (report.terms == self._rows.term) & ~same)
        winner &= ~((state == RESERVED) & same)
        for row in distinct(rows[winner & (state == RESERVED)]).tolist():
            self._reservations.replaces(int(table.attempt[row]), table)
        retirements = self._rows.detach(distinct(rows[winner & committed & newer]), now)
        fresh = winner & (~committed | newer)
        self._fill(rows[fresh], report, fresh)
        table.flags[rows[fresh & writing]] |= IN_FLIGHT
        self._rows.objects += int((winner & ~committed).sum())
        if self._rows.shares is not None:
            self._rows.shares.usage.objects_came(report.tenants[winner & ~committed])
        unused = rows[table.state[rows] == 0]
        table.state[unused] = GHOST
        table.set_parent(rows[fresh], parents[fresh])
        replicas = self._rows.add_replicas(
            segment, rows[winner], report.slots[winner], report.generations[winner]
        )
        progress.used.append(report.last_used[winner])
        progress.placed.append(replicas)
        self._rows.record("put", rows[winner & ~committed], wall_ms, segment.medium)
        if self._rows.segments.tiered:
            kind = "offload" if segment.below else "promote"
            self._rows.record(kind, rows[winner & committed & same], wall_ms, segment.medium)
        self._rows.prune(distinct(unused))
        losers = left & ~winner
        return losers, retirements

    def _parents(self, report: Report) -> I32:
        """Row of each parent, -1 none; a parent not reported yet is a ghost until it is."""
        table = self._rows.table
        parents = np.full(report.slots.size, -1, np.int32)
        named = np.diff(report.parent_ends, prepend=np.uint32(0)) > 0
        if named.any():
            rows, fresh = table.intern(report.parent_blob, report.parent_ends[named])
            table.state[rows[fresh]] = GHOST
            parents[named] = rows
        return parents

    def _sweep_fresh(self, report: Report) -> None:
        rows = self._rows.table.find(report.blob, report.ends)
        rows = distinct(rows[rows >= 0])
        unused = rows[self._rows.table.state[rows] == 0]
        self._rows.table.state[unused] = GHOST
        self._rows.prune(unused)

    def _best_in_chunk(self, rows: I32, report: Report) -> Bool:
        """The highest version of each key among the entries of this chunk."""
        if distinct(rows).size == rows.size:
            return np.ones(rows.size, np.bool_)
        order = np.lexsort((report.sequences, report.terms, rows))
        last = np.ones(rows.size, np.bool_)
        last[:-1] = rows[order][1:] != rows[order][:-1]
        best = np.zeros(rows.size, np.bool_)
        best[order[last]] = True
        return best

    def _fill(self, rows: I32, report: Report, which: Bool) -> None:
        table = self._rows.table
        table.state[rows] = COMMITTED
        table.flags[rows] = np.where((report.pins[which] & PIN_KIND) == PIN_HARD, PINNED, 0)
        table.term[rows] = report.terms[which]
        table.seq[rows] = report.sequences[which]
        table.size[rows] = report.sizes[which]
        table.crc[rows] = report.crcs[which]
        table.tenant[rows] = report.tenants[which]
        table.expiry_ms[rows] = report.expiries_ms[which]
        table.pin[rows] = report.pins[which]
        table.wanted[rows] = report.replicas[which]
        if report.expiries_ms.any():
            self._rows.may_expire = True
        if (report.replicas[which] > 1).any():
            self._rows.several = True

    def _order(self, segment: Segment, progress: Progress, now: float) -> None:
        """Recency by last use; within one moment children before parents, as a read leaves them."""
        table = self._rows.table
        replicas = np.concatenate(progress.placed)
        used = np.concatenate(progress.used)
        order = np.argsort(used, kind="stable")
        replicas = replicas[order]
        still = (table.replica_segment[replicas] == segment.id) & (table.replica_list[replicas] < 0)
        still &= segment.by_slot[table.replica_slot[replicas]] == replicas
        replicas = replicas[still]
        rows = table.ancestors_order(table.replica_object[replicas])
        # One more than the replica, so that pages of rows that have none stay untouched.
        here = np.zeros(table.rows_max, np.int32)
        here[table.replica_object[replicas]] = replicas + 1
        ordered = here[rows]
        table.list_push(segment.id, ordered[ordered > 0] - 1)
        restless = self._rows.standing.reported(table.replica_object[replicas], now)
        if restless.size:
            self._rows.relist(restless)
        if self._rows.order.keeps_books:
            self._rows.order.came(segment.id, ordered[ordered > 0] - 1)


def rows_of(report: Report, which: NDArray[np.int64]) -> Report:
    """These rows of it, in this order."""
    blob, ends = _keys_of(report.blob, report.ends, which)
    parent_blob, parent_ends = _keys_of(report.parent_blob, report.parent_ends, which)
    return Report(
        report.slots[which],
        report.generations[which],
        report.terms[which],
        report.sequences[which],
        report.sizes[which],
        report.crcs[which],
        report.tenants[which],
        report.expiries_ms[which],
        report.last_used[which],
        report.replicas[which],
        report.pins[which],
        blob,
        ends,
        parent_blob,
        parent_ends,
    )


def _keys_of(blob: bytes, ends: U32, which: NDArray[np.int64]) -> tuple[bytes, U32]:
    starts = np.concatenate([[0], ends[:-1]])
    parts = [blob[a:b] for a, b in zip(starts[which].tolist(), ends[which].tolist(), strict=True)]
    lengths = np.array([len(part) for part in parts], np.uint32)
    return b"".join(parts), np.cumsum(lengths, dtype=np.uint32)


def check_report(report: Report, slots: int) -> None:
    """Equal lengths, slots in bounds and named once, keys whole. Raises BadInput."""
    n = report.slots.size
    if n > CHUNK_SLOTS_MAX:
        raise BadInput(f"inventory chunk of {n} slots; at most {CHUNK_SLOTS_MAX} are taken")
    columns = (
        *(report.generations, report.terms, report.sequences, report.sizes, report.crcs),
        *(report.tenants, report.expiries_ms, report.last_used, report.replicas, report.pins),
        *(report.ends, report.parent_ends),
    )
    if any(column.size != n for column in columns):
        raise BadInput(f"inventory chunk: columns of {sorted({c.size for c in columns} | {n})}")
    if n == 0:
        return
    if int(report.slots.max()) >= slots or distinct(report.slots).size != n:
        raise BadInput(f"inventory chunk: a slot over {slots - 1} or named twice")
    if max(int(report.terms.max()), int(report.sequences.max())) >= VERSION_MAX:
        raise BadInput(f"inventory chunk: a version beyond {VERSION_MAX}")
    keys, parents = (report.blob, report.ends, 1), (report.parent_blob, report.parent_ends, 0)
    for blob, ends, least in (keys, parents):
        lengths = np.diff(ends.astype(np.int64), prepend=0)
        if int(ends[-1]) != len(blob) or lengths.min() < least or lengths.max() > 1024:
            raise BadInput("inventory chunk: key ends that do not fit their blob")
    if float(report.sizes.astype(np.float64).sum()) > 2.0**62:
        raise BadInput("inventory chunk: sizes beyond any segment")
