"""The twin's columns, its keys and rows, and their tree (see `table_twin`)."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from moonpool._core import TableFullError

I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

KEY_BYTES_MAX = 1024


def column(array: Any, dtype: type[np.generic], name: str) -> list[int]:
    """The values of a one-dimensional contiguous array of exactly this dtype, else TypeError."""
    fits = (
        isinstance(array, np.ndarray)
        and array.dtype == dtype
        and array.ndim == 1
        and array.flags.c_contiguous
    )
    if not fits:
        raise TypeError(f"{name}: a one-dimensional contiguous {np.dtype(dtype)} array is needed")
    return [int(value) for value in array]


def same_length(*columns: list[int]) -> None:
    if len({len(c) for c in columns}) > 1:
        raise ValueError(f"columns differ in length: {[len(c) for c in columns]}")


def rows_of(values: Iterable[int]) -> I32:
    return np.fromiter(values, np.int32)


class RowsTwin:
    """All columns; of the calls those about keys, rows and the tree."""

    def __init__(self, rows_max: int, replicas_max: int, lists_max: int) -> None:
        self.rows_max, self.replicas_max, self.lists_max = rows_max, replicas_max, lists_max
        # Written by the policy.
        self.state: U8 = np.zeros(rows_max, np.uint8)
        self.flags: U8 = np.zeros(rows_max, np.uint8)
        self.tenant: U32 = np.zeros(rows_max, np.uint32)
        self.term: U64 = np.zeros(rows_max, np.uint64)
        self.seq: U64 = np.zeros(rows_max, np.uint64)
        self.size: U64 = np.zeros(rows_max, np.uint64)
        self.crc: U32 = np.zeros(rows_max, np.uint32)
        self.expiry_ms: I64 = np.zeros(rows_max, np.int64)
        self.attempt: U64 = np.zeros(rows_max, np.uint64)
        self.pin: U8 = np.zeros(rows_max, np.uint8)
        self.wanted: U8 = np.zeros(rows_max, np.uint8)
        self.replica_state: U8 = np.zeros(replicas_max, np.uint8)
        self.replica_slot: U32 = np.zeros(replicas_max, np.uint32)
        self.replica_generation: U64 = np.zeros(replicas_max, np.uint64)
        # Written by the table alone; the caller sees them read-only.
        self._parent = np.full(rows_max, -1, np.int32)
        self._first_child = np.full(rows_max, -1, np.int32)
        self._next_sibling = np.full(rows_max, -1, np.int32)
        self._prev_sibling = np.full(rows_max, -1, np.int32)
        self._children = np.zeros(rows_max, np.uint32)
        self._replica = np.full(rows_max, -1, np.int32)
        self._replica_object = np.full(replicas_max, -1, np.int32)
        self._replica_segment = np.zeros(replicas_max, np.uint16)
        self._replica_next = np.full(replicas_max, -1, np.int32)
        self._replica_list = np.full(replicas_max, -1, np.int16)
        for name in (
            *("parent", "first_child", "next_sibling", "prev_sibling", "children", "replica"),
            *("replica_object", "replica_segment", "replica_next", "replica_list"),
        ):
            view = getattr(self, f"_{name}")[:]
            view.flags.writeable = False
            setattr(self, name, view)

        self._rows: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._free_rows: list[int] = []
        self._row_high = 0
        self._child_rows: dict[int, list[int]] = {}
        self._object_replicas: dict[int, list[int]] = {}
        self._free_replicas: list[int] = []
        self._replica_high = 0
        self._live_replicas: set[int] = set()
        self._lists: list[dict[int, None]] = [{} for _ in range(lists_max)]

    parent: I32
    first_child: I32
    next_sibling: I32
    prev_sibling: I32
    children: U32
    replica: I32
    replica_object: I32
    replica_segment: U16
    replica_next: I32
    replica_list: npt.NDArray[np.int16]

    # Keys and rows.

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def replica_count(self) -> int:
        return len(self._live_replicas)

    def memory_bytes(self) -> int:
        return sum(len(key) for key in self._rows) + 200 * self._row_high

    def _split(self, blob: Any, ends: Any) -> list[bytes]:
        data = bytes(memoryview(blob).cast("B"))
        stops = column(ends, np.uint32, "ends")
        keys, start = [], 0
        for stop in stops:
            if not start <= stop <= len(data):
                raise ValueError(f"ends: {stop} after {start} in a blob of {len(data)} bytes")
            if not 1 <= stop - start <= KEY_BYTES_MAX:
                raise ValueError(f"a key of {stop - start} bytes; 1 to {KEY_BYTES_MAX} are allowed")
            keys.append(data[start:stop])
            start = stop
        if start != len(data):
            raise ValueError(f"ends: the last is {start}, the blob has {len(data)} bytes")
        return keys

    def _live(self, rows: Any, name: str = "rows") -> list[int]:
        values = column(rows, np.int32, name)
        for row in values:
            if row not in self._keys:
                raise IndexError(f"{name}: {row} is not a live row")
        return values

    def _live_reps(self, replicas: Any, unique: bool = False) -> list[int]:
        values = column(replicas, np.int32, "replicas")
        for rep in values:
            if rep not in self._live_replicas:
                raise IndexError(f"replicas: {rep} is not a live replica row")
        if unique and len(set(values)) < len(values):
            raise IndexError("replicas: one is named twice")
        return values

    def find(self, blob: Any, ends: Any) -> I32:
        return rows_of(self._rows.get(key, -1) for key in self._split(blob, ends))

    def intern(self, blob: Any, ends: Any) -> tuple[I32, Bool]:
        keys = self._split(blob, ends)
        absent = len({key for key in keys if key not in self._rows})
        if len(self._rows) + absent > self.rows_max:
            raise TableFullError(f"all {self.rows_max} rows are taken")
        rows, fresh = [], []
        for key in keys:
            fresh.append(key not in self._rows)
            rows.append(self._rows[key] if key in self._rows else self._new_row(key))
        return rows_of(rows), np.array(fresh, np.bool_)

    def _new_row(self, key: bytes) -> int:
        row = self._free_rows.pop() if self._free_rows else self._row_high
        self._row_high = max(self._row_high, row + 1)
        self._rows[key], self._keys[row] = row, key
        self._child_rows[row], self._object_replicas[row] = [], []
        self.state[row] = self.flags[row] = self.tenant[row] = self.term[row] = self.seq[row] = 0
        self.size[row] = self.crc[row] = self.expiry_ms[row] = self.attempt[row] = 0
        self.pin[row] = self.wanted[row] = 0
        return row

    def key(self, row: int) -> bytes:
        if row not in self._keys:
            raise IndexError(f"row: {row} is not a live row")
        return self._keys[row]

    def keys(self, rows: Any) -> tuple[bytes, U32]:
        return self._joined(self._live(rows))

    def parent_keys(self, rows: Any) -> tuple[bytes, U32]:
        return self._joined([int(self._parent[row]) for row in self._live(rows)])

    def _joined(self, rows: list[int]) -> tuple[bytes, U32]:
        keys = [self._keys.get(row, b"") for row in rows]
        return b"".join(keys), np.cumsum([len(key) for key in keys], dtype=np.uint32)

    def erase(self, rows: Any) -> None:
        values = self._live(rows)
        gone: set[int] = set()
        for row in values:
            if row in gone:
                raise IndexError(f"rows: {row} is named twice")
            if self._object_replicas[row]:
                raise ValueError(f"rows: {row} still has a replica")
            if not gone.issuperset(self._child_rows[row]):
                raise ValueError(f"rows: {row} still has children")
            gone.add(row)
        for row in values:
            self._unlink(row)
            del self._rows[self._keys.pop(row)]
            del self._child_rows[row], self._object_replicas[row]
            self._free_rows.append(row)

    def scan(self, start_row: int, rows_max: int, prefix: bytes = b"") -> tuple[I32, int]:
        if start_row < 0 or rows_max < 1:
            raise ValueError("start_row must be at least 0 and rows_max at least 1")
        stop = min(self._row_high, start_row + rows_max)
        found = [
            row
            for row in range(start_row, stop)
            if row in self._keys and self._keys[row].startswith(prefix)
        ]
        return rows_of(found), stop if stop < self._row_high and start_row < stop else -1

    # The tree.

    def _relink(self, parent: int) -> None:
        rows = self._child_rows[parent]
        self._children[parent] = len(rows)
        self._first_child[parent] = rows[0] if rows else -1
        for before, row, after in zip([-1, *rows], rows, [*rows[1:], -1], strict=False):
            self._prev_sibling[row], self._next_sibling[row] = before, after

    def _unlink(self, row: int) -> None:
        parent = int(self._parent[row])
        if parent >= 0:
            self._child_rows[parent].remove(row)
            self._relink(parent)
            self._parent[row] = self._prev_sibling[row] = self._next_sibling[row] = -1

    def _chain(self, row: int) -> list[int]:
        chain = []
        while row >= 0:
            chain.append(row)
            row = int(self._parent[row])
        return chain

    def set_parent(self, rows: Any, parents: Any) -> Bool:
        values, targets = self._live(rows), column(parents, np.int32, "parents")
        same_length(values, targets)
        for parent in targets:
            if parent != -1 and parent not in self._keys:
                raise IndexError(f"parents: {parent} is not a live row")
        linked = []
        for row, parent in zip(values, targets, strict=True):
            linked.append(row not in self._chain(parent))
            if linked[-1] and parent != self._parent[row]:
                self._unlink(row)
                if parent >= 0:
                    self._parent[row] = parent
                    self._child_rows[parent].insert(0, row)
                    self._relink(parent)
        return np.array(linked, np.bool_)

    def descendants(self, rows: Any) -> I32:
        order: dict[int, None] = {}

        def visit(row: int) -> None:
            if row not in order:
                for child in self._child_rows[row]:
                    visit(child)
                order[row] = None

        for row in self._live(rows):
            visit(row)
        return rows_of(order)

    def _ancestors(self, rows: list[int]) -> list[int]:
        order: dict[int, None] = {}
        for row in rows:
            for link in self._chain(row):
                order.pop(link, None)
                order[link] = None
        return list(order)

    def ancestors_order(self, rows: Any) -> I32:
        return rows_of(self._ancestors(self._live(rows)))
