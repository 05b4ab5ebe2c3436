"""Groups: objects that are of use together. They are read as one and go as one.

A read of one counts for all. When the turn of one has come, all go, with what hangs below them, or,
where one of these may not go or stands more firmly than the one whose turn it is, none. It is a
wish about eviction and no more: only this master knows it, and after a restart each object stands
for itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from moonpool._core import Table
from moonpool.pool.catalog.base import COMMITTED, I32, ORPHAN, U64
from moonpool.pool.catalog.needs import NO_ROWS

MEMBERS_MAX = 4096
"""Of one group; an object that comes when it is full stands for itself."""
Name = tuple[int, bytes]  # tenant and name


class Groups:
    """Which committed rows belong together."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._numbers: dict[Name, int] = {}
        self._names: dict[int, Name] = {}
        self._members: dict[int, set[int]] = {}
        self._of: I32 = NO_ROWS  # number of each row's group, 0: none; made for the first group
        self._next = 1
        self.overflowed = 0  # objects that found their group full

    def __len__(self) -> int:
        return len(self._members)

    def joined(self, rows: I32, name: Name) -> None:
        """These rows got a value that belongs to the group."""
        number = self._numbers.get(name, 0) or self._made(name)
        members = self._members[number]
        room = MEMBERS_MAX - len(members)
        self.overflowed += max(0, rows.size - room)
        members.update(rows[:room].tolist())
        self._of[rows[:room]] = number

    def left(self, rows: I32) -> None:
        """The values of these rows are gone."""
        if not self._members:
            return
        numbers = self._of[rows]
        for row, number in zip(
            rows[numbers > 0].tolist(), numbers[numbers > 0].tolist(), strict=True
        ):
            self._members[number].discard(row)
        for number in np.unique(numbers[numbers > 0]).tolist():
            if not self._members[number]:
                del self._members[number]
                del self._numbers[self._names.pop(number)]
        self._of[rows] = 0

    def name(self, row: int) -> bytes:
        """Empty for an object that belongs to none."""
        return self._names[int(self._of[row])][1] if self._members and self._of[row] else b""

    def with_mates(self, rows: I32, sequences: U64) -> tuple[I32, U64]:
        """These reads, and before them reads of all that belong to what they are of."""
        if not self._members:
            return rows, sequences
        inside = (rows >= 0) & (rows < self._of.size)
        known = rows[inside]
        current = (self._table.state[known] == COMMITTED) & (
            self._table.seq[known] == sequences[inside]
        )
        numbers = np.unique(self._of[known[current]])
        mates = [self._rows(number) for number in numbers.tolist() if number]
        if not mates:
            return rows, sequences
        more = np.setdiff1d(np.concatenate(mates), rows)
        return np.concatenate([more, rows]), np.concatenate([self._table.seq[more], sequences])

    def apart(self, replicas: I32) -> Iterator[tuple[I32, int]]:
        """These candidates in turn: those that stand for themselves, as many as follow each other,
        with 0, and single ones with the number of their group. An orphan is no part of a prefix
        any more: it goes without the others."""
        owners = self._table.replica_object[replicas]
        numbers = np.where((self._table.flags[owners] & ORPHAN) != 0, 0, self._of[owners])
        ends = np.flatnonzero((numbers[1:] > 0) | (numbers[:-1] > 0)) + 1
        for some in np.split(np.arange(replicas.size), ends):
            yield replicas[some], int(numbers[some[0]])

    def family(self, number: int) -> I32:
        """All of the group and what hangs below, children first."""
        return self._table.descendants(self._rows(number))

    def _rows(self, number: int) -> I32:
        return np.sort(np.fromiter(self._members[number], np.int32))

    def _made(self, name: Name) -> int:
        if not self._of.size:
            self._of = np.zeros(self._table.rows_max, np.int32)
        number, self._next = self._next, self._next + 1
        self._numbers[name], self._names[number], self._members[number] = number, name, set()
        return number
