"""What one call puts, in columns; item by item only for whoever has to look at items.

Most batches are granted, sealed and committed as a whole: nobody asks for an item of theirs, and
none is made.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from moonpool.pool.ports import Buffer
from moonpool.pool.results import PutResult, PutStatus

NO_PARENT = -1
_STORED = PutResult(PutStatus.STORED, 1)


class PutItem(msgspec.Struct, gc=False):
    """One object of a batch. `parent`: index of an earlier item, or NO_PARENT."""

    key: bytes
    source: Buffer
    size: int
    parent: int = NO_PARENT
    outside_parent: bytes | None = None
    result: PutResult | None = None


class Columns(NamedTuple):
    """Objects as they are sent: `sizes` are u64, in bytes, of the sources when they were taken."""

    keys: list[bytes]
    sources: list[Buffer]
    sizes: array[int]


class Puts:
    """The batch of one call. `stored`: all of it, and no item was ever made."""

    __slots__ = ("_columns", "_items", "stored")

    def __init__(self, columns: Columns, items: list[PutItem] | None = None) -> None:
        self._columns = columns
        self._items = items
        self.stored = False

    @classmethod
    def of(cls, items: list[PutItem]) -> Puts:
        return cls(columns_of(items), items)

    def __len__(self) -> int:
        return len(self._columns.keys)

    @property
    def items(self) -> list[PutItem]:
        if self._items is None:
            self._items = list(map(PutItem, *self._columns))
        return self._items

    def columns(self, todo: Sequence[int]) -> Columns:
        """Of these items, in this order."""
        if len(todo) == len(self):
            return self._columns
        return columns_of([self.items[i] for i in todo])

    def store_all(self) -> None:
        """Each of them was stored, once."""
        if self._items is None:
            self.stored = True
            return
        for item in self._items:
            item.result = _STORED

    def results(self) -> list[PutResult]:
        """Of a batch of which every item has one."""
        if self.stored:
            return [_STORED] * len(self)
        return [item.result for item in self.items if item.result is not None]


def columns_of(items: Sequence[PutItem]) -> Columns:
    return Columns(
        [item.key for item in items],
        [item.source for item in items],
        array("Q", [item.size for item in items]),
    )
