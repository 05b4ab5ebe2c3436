"""Copies on their way between segments: which versions, from where to where. Pure.

A copy counts once its agent has sealed it and its version is still the current one; until then its
room is promised. It is only ever made where there is room: no copy evicts anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from moonpool.pool.catalog.base import (
    COMMITTED,
    I32,
    IN_FLIGHT,
    LEASED,
    U8,
    U32,
    U64,
    Bool,
    Retirement,
)
from moonpool.pool.catalog.rows import Rows
from moonpool.pool.catalog.segments import Segment

Version = tuple[int, int]  # term, sequence
Sealed = tuple[int, int]  # slot, generation
COPIES_PER_ORDER = 128


@dataclass(slots=True)
class CopyOrder:
    """Objects that `target`'s agent is to fetch from `source`. `move`: the source gives them up."""

    number: int
    source: Segment
    target: Segment
    rows: I32
    terms: U64
    sequences: U64
    size: int
    move: bool
    until: float
    spared: set[Sealed] = field(default_factory=set)
    """Once it has ended: what was reported meanwhile, which may or may not be its own."""


class Copying:
    """Every order that is open."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._orders: dict[int, CopyOrder] = {}
        self._targets: dict[Version, set[int]] = {}
        self._spared: dict[tuple[int, Version], set[Sealed]] = {}
        self._next = 1
        self.copied = 0
        self.failed = 0

    def __len__(self) -> int:
        return len(self._orders)

    def __iter__(self) -> Iterator[CopyOrder]:
        return iter(list(self._orders.values()))

    @property
    def next(self) -> int:
        """The number of the next order."""
        return self._next

    @property
    def oldest(self) -> int | None:
        """The number of the oldest open order."""
        return next(iter(self._orders), None)

    @property
    def within_memory(self) -> int:
        """Orders that no tier below memory has a part in: they wait for nobody slow."""
        return sum(not (one.source.below or one.target.below) for one in self._orders.values())

    def targets(self, version: Version) -> set[int]:
        """Segments on which this version may come to lie."""
        return self._targets.get(version, set())

    def expects(self, segment: int, version: Version) -> bool:
        return segment in self._targets.get(version, ())

    def spare(self, segment: int, version: Version, sealed: Sealed) -> bool:
        """Whether something unknown that this segment holds may be what an order is making there.
        It may also be of an order given up before: who ends this one finds it in `spared`."""
        if not self.expects(segment, version):
            return False
        self._spared.setdefault((segment, version), set()).add(sealed)
        return True

    def open(self, rows: I32) -> Bool:
        """Which of these rows' versions are being copied."""
        table = self._rows.table
        versions = zip(table.term[rows].tolist(), table.seq[rows].tolist(), strict=True)
        return np.array([version in self._targets for version in versions], np.bool_)

    def begin(
        self, source: Segment, target: Segment, rows: I32, move: bool, until: float
    ) -> CopyOrder:
        """There is room for these rows (each once) on `target`."""
        table = self._rows.table
        size = int(table.size[rows].sum())
        terms, sequences = table.term[rows].copy(), table.seq[rows].copy()
        order = CopyOrder(self._next, source, target, rows, terms, sequences, size, move, until)
        self._next += 1
        self._orders[order.number] = order
        target.promise(size, rows.size)
        for version in zip(terms.tolist(), sequences.tolist(), strict=True):
            self._targets.setdefault(version, set()).add(target.id)
        return order

    def find(self, number: int) -> CopyOrder | None:
        return self._orders.get(number)

    def end(self, order: CopyOrder) -> None:
        """It is over, well or not: the promise with it."""
        del self._orders[order.number]
        order.target.release(order.size, order.rows.size)
        for version in zip(order.terms.tolist(), order.sequences.tolist(), strict=True):
            order.spared |= self._spared.pop((order.target.id, version), set())
            mine = self._targets[version]
            mine.discard(order.target.id)
            if not mine:
                del self._targets[version]

    def take(
        self, order: CopyOrder, good: Bool, slots: U32, generations: U64
    ) -> tuple[list[Retirement], I32]:
        """What was sealed (`good`) counts if it is current; the rest of it is to be retired, and
        what was spared for this order's sake and is not its own. Also the replicas that the source
        gives up with `move`."""
        rows, table = self._rows, self._rows.table
        target, source = order.target, order.source
        current = good & (table.state[order.rows] == COMMITTED)
        current &= table.term[order.rows] == order.terms
        current &= table.seq[order.rows] == order.sequences
        current &= slots < target.slots
        current &= target.by_slot[np.where(current, slots, 0)] < 0
        retirements = []
        if (good & ~current).any():
            stale = good & ~current
            retirements.append(Retirement(target.id, slots[stale], generations[stale]))
        told = set(zip(slots[good].tolist(), generations[good].tolist(), strict=True))
        if others := sorted(order.spared - told):
            retirements.append(
                Retirement(
                    target.id,
                    np.array([slot for slot, _ in others], np.uint32),
                    np.array([generation for _, generation in others], np.uint64),
                )
            )
        self.failed += int((~good).sum())
        if not current.any():
            return retirements, order.rows[:0]
        mine = order.rows[current]
        replicas = rows.add_replicas(target, mine, slots[current], generations[current])
        self._enlist(target, mine, replicas)
        if rows.order.keeps_books:
            rows.order.came(target.id, replicas)
        self.copied += mine.size
        if not order.move:
            return retirements, order.rows[:0]
        free = mine[(table.flags[mine] & LEASED) == 0]  # others when their lease is over
        return retirements, self.replicas_on(source, free)

    def _enlist(self, target: Segment, mine: I32, replicas: I32) -> None:
        """New copies are most recent where they came, under what is above them; where they came
        from nothing changes."""
        rows, table = self._rows, self._rows.table
        numbers = target.id + rows.standing.list_of(mine) * rows.config.segments_max
        for number in np.unique(numbers).tolist():
            table.list_push(number, replicas[numbers == number])
        family = self.replicas_on(target, table.ancestors_order(mine))
        table.list_touch(family[table.replica_list[family] >= 0])

    def replicas_on(self, segment: Segment, rows: I32) -> I32:
        table = self._rows.table
        _, replicas = table.replicas_of(rows)
        on: I32 = replicas[table.replica_segment[replicas] == segment.id]
        return on

    # What needs copies.

    def lacking(self, rows: I32, present: Bool) -> tuple[I32, I32]:
        """Of committed rows with several copies wanted: those with too few on segments that are
        `present` (by id), and those with too many."""
        table = self._rows.table
        several = rows[table.wanted[rows] > 1]
        several = several[(table.flags[several] & IN_FLIGHT) == 0]
        if several.size == 0:
            return several, several
        counts = self.present_copies(several, present)
        # What went from memory and has a copy below is not missing: a read brings it back.
        several, counts = self._rows.tiers.without_offloaded(several, counts)
        wanted = table.wanted[several] + self._rows.heat.more(several)
        return several[counts < wanted], several[counts > wanted]

    def present_copies(self, rows: I32, present: Bool) -> U8:
        counts, replicas = self._rows.table.replicas_of(rows)
        owner = np.repeat(np.arange(rows.size), counts)
        here = present[self._rows.table.replica_segment[replicas]]
        found: U8 = np.bincount(owner[here], minlength=rows.size).astype(np.uint8)
        return found

    def homes_of(self, row: int, without: int = -1) -> list[Segment]:
        """Segments in memory that have a copy or are to get one, not counting `without`."""
        table, segments = self._rows.table, self._rows.segments
        _, replicas = table.replicas_of(np.array([row], np.int32))
        numbers = set(table.replica_segment[replicas].tolist())
        numbers |= self.targets((int(table.term[row]), int(table.seq[row])))
        numbers.discard(without)
        return [segments[number] for number in numbers if not segments[number].below]

    def source_of(self, row: int) -> Segment | None:
        """A segment that can be read from: memory first, one that is being drained last."""
        table, segments = self._rows.table, self._rows.segments
        _, replicas = table.replicas_of(np.array([row], np.int32))
        alive = [segments[n] for n in table.replica_segment[replicas].tolist() if segments[n].alive]
        return min(alive, key=lambda one: (one.draining, one.below), default=None)
