"""A request's hot rows: a fixed number a layer in local memory, everything else on demand.

The native buffer resolves, makes room and fetches in one call when the rows are mapped; from
another host what is missing of several layers comes in one frame.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from moonpool import _core
from moonpool.core.errors import BadInput
from moonpool.sparse.layout import U8, U32, SparseLayout, as_positions, local_bytes
from moonpool.sparse.reader import Hint, SparseReader
from moonpool.sparse.source import check_told

POLICIES = ("lru", "fifo", "random")


class HotCounters(NamedTuple):
    """Exact: rows = hits + misses, misses = second_hits + fetched (unless a fetch failed)."""

    calls: int
    rows: int
    hits: int
    misses: int
    second_hits: int
    fetched: int
    evicted: int
    second_evicted: int


class Resolved(NamedTuple):
    """Where the rows are: `slots` u32[n] in the order of the positions, into `rows[layer]`."""

    slots: U32
    hits: int
    misses: int
    nbytes: int
    """Moved from the pool."""


class HotBuffer:
    """Hot rows of one request over `layout`: `rows` a layer, and a second level of
    `second_rows` rows for all layers together (rows pushed out of the first; 0: none).

    For one thread at a time. A row once in it is right for as long as the prefix it came from is
    the same; use one buffer for one reader.
    """

    def __init__(
        self,
        layout: SparseLayout,
        rows: int,
        policy: str = "lru",
        *,
        second_rows: int = 0,
        seed: int = 0,
    ) -> None:
        if policy not in POLICIES:
            raise BadInput(f"unknown hot buffer policy {policy!r}; know {', '.join(POLICIES)}")
        if rows < 1 or second_rows < 0:
            raise BadInput(f"a hot buffer holds at least one row a layer, not {rows}")
        self.layout = layout
        self.rows_per_layer = rows
        self.policy = policy
        self._staging: U8 = np.empty(0, np.uint8)  # rows on their way from another host
        self._native = _core.HotBuffer(
            layout.layers, rows, layout.entry_bytes, policy, seed, second_rows
        )

    @property
    def rows(self) -> U8:
        """u8[layers, rows, entry_bytes], in place: index it with `Resolved.slots`."""
        return self._native.rows

    @property
    def counters(self) -> HotCounters:
        return HotCounters(**self._native.counters())

    @property
    def nbytes(self) -> int:
        """Of rows, both levels."""
        return self._native.row_memory_bytes

    @property
    def overhead_bytes(self) -> int:
        """Of the tables that find them."""
        return self._native.index_memory_bytes

    def local_bytes(self, tokens: int) -> int:
        """Rows here and all index keys: what the request needs beside the pool."""
        first = local_bytes(self.layout, self.rows_per_layer, tokens)
        level_one = self.layout.layers * self.rows_per_layer * self.layout.entry_bytes
        return first + self.nbytes - level_one

    def resolve(self, reader: SparseReader, layer: int, positions: Any) -> Resolved:
        """Makes the rows of one layer present. Raises BadInput for more positions than rows, and
        what the reader's gather raises; then nothing of what was missing stays."""
        column = as_positions(positions, reader.length)
        return self.resolve_layers(reader, [layer], [len(column)], column)

    def resolve_layers(
        self, reader: SparseReader, layers: Any, counts: Any, positions: Any
    ) -> Resolved:
        """Several layers, ascending, in one native call, and over TCP in one frame."""
        column = as_positions(positions, reader.length)
        numbers, sizes = reader.asked(layers, counts, column)
        if reader.layout.entry_bytes != self.layout.entry_bytes:
            raise BadInput(
                f"rows of {reader.layout.entry_bytes} bytes do not fit a hot buffer of rows of "
                f"{self.layout.entry_bytes} bytes"
            )
        slots = np.empty(len(column), np.uint32)
        before = self.counters
        reader.begin()
        try:
            table = reader.source.table
            if table is not None:
                check_told(*self._native.fetch(table, numbers, sizes, column, slots))
            else:
                self._fetch_in_steps(reader, numbers, sizes, column, slots)
        except BadInput:
            raise
        except ValueError as error:
            raise BadInput(str(error)) from None
        after = self.counters
        fetched = after.fetched - before.fetched
        if table is not None:
            reader.count_rows(fetched)
        return Resolved(
            slots,
            after.hits - before.hits,
            after.misses - before.misses,
            fetched * self.layout.entry_bytes,
        )

    def prefetch(self, reader: SparseReader, hint: Hint) -> int:
        """Fills the buffer from a hint (positions by layer, best first), all layers in one go; as
        much of it as fits. Returns the bytes moved."""
        chosen = [as_positions(p, reader.length)[: self.rows_per_layer] for p in hint]
        layers = [layer for layer, column in enumerate(chosen) if len(column)]
        if not layers:
            return 0
        column = np.concatenate([chosen[layer] for layer in layers])
        counts = [len(chosen[layer]) for layer in layers]
        return self.resolve_layers(reader, layers, counts, column).nbytes

    def clear(self) -> None:
        """Forgets all rows, for another prefix; counters go on."""
        self._native.clear()

    def _fetch_in_steps(
        self, reader: SparseReader, layers: U32, counts: U32, positions: U32, slots: U32
    ) -> None:
        missing_layers, missing = self._native.begin(layers, counts, positions, slots)
        try:
            needed = len(missing) * self.layout.entry_bytes
            if len(self._staging) < needed:
                self._staging = np.empty(needed, np.uint8)
            staged = self._staging[:needed]
            if len(missing):
                each = np.bincount(missing_layers, minlength=self.layout.layers)
                wanted = np.flatnonzero(each)
                reader.gather_layers(wanted, each[wanted], missing, staged)
            self._native.finish(staged)
        except BaseException:
            self._native.abandon()
            raise
