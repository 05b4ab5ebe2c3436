"""Where a reader's rows come from: mapped memory, or a pool's node over TCP.

A source moves rows and knows nothing of buffers, hints or policies. `table` is there when the rows
lie in mapped memory: then the native hot buffer fetches from it in its own call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from moonpool import _core
from moonpool.core.errors import BadInput, PrefixGone
from moonpool.core.status import BlockStatus
from moonpool.sparse.layout import U8, U32, SparseLayout


class RowSource(Protocol):
    """One prefix: `tokens` rows in each of `layout.layers` layers, and as many index keys."""

    @property
    def kind(self) -> str:
        """local, shm, tcp."""

    @property
    def layout(self) -> SparseLayout: ...

    @property
    def tokens(self) -> int: ...

    @property
    def table(self) -> _core.RowTable | None: ...

    def gather(self, layers: U32, counts: U32, positions: U32, out: U8) -> None:
        """The next `counts[i]` of `positions` from layer `layers[i]`, one row after another.
        Raises PrefixGone; the content of `out` is undefined then."""

    def copy_rows(self, layer: int, out: U8) -> None:
        """All rows of a layer. Raises PrefixGone."""

    def copy_index(self, layer: int, out: U8) -> None:
        """All index keys of a layer, page after page. Raises PrefixGone."""

    def close(self) -> None: ...


class Units(NamedTuple):
    """Where each unit of a prefix lies, for rows and for index keys alike: unit i holds tokens
    i * unit_tokens up to the next one, in `buffers[which[i]]`."""

    unit_tokens: int
    buffers: Sequence[Any]
    which: U32
    offsets: np.ndarray[Any, np.dtype[np.uint64]]
    strides: np.ndarray[Any, np.dtype[np.uint64]]
    index_offsets: np.ndarray[Any, np.dtype[np.uint64]]
    index_strides: np.ndarray[Any, np.dtype[np.uint64]]


class Guards(NamedTuple):
    """A word for each unit, and what it must hold before and after."""

    memory: U8
    offsets: np.ndarray[Any, np.dtype[np.uint64]]
    values: np.ndarray[Any, np.dtype[np.uint64]]


class TableSource:
    """Rows in mapped memory, read in place; `helpers` take parts of every gather and copy."""

    def __init__(
        self, kind: str, layout: SparseLayout, tokens: int, units: Units, guards: Guards | None
    ) -> None:
        if units.unit_tokens % layout.page_tokens:
            raise BadInput(f"a unit of {units.unit_tokens} tokens is no number of whole pages")
        self.kind = kind
        self.layout = layout
        self.tokens = tokens
        self.units = units
        self.guards = guards
        self.helpers: _core.Helpers | None = None
        guard = guards if guards is not None else (None, None, None)
        self.table: _core.RowTable | None = _core.RowTable(
            layout.entry_bytes,
            units.unit_tokens,
            layout.layers,
            tokens,
            units.buffers,
            units.which,
            units.offsets,
            units.strides,
            *guard,
        )
        self._index = None
        if layout.index_bytes:
            # Keys are moved by whole pages, so a page is a "row" of this table.
            self._index = _core.RowTable(
                layout.index_page_bytes,
                units.unit_tokens // layout.page_tokens,
                layout.layers,
                layout.pages(tokens),
                units.buffers,
                units.which,
                units.index_offsets,
                units.index_strides,
                *guard,
            )

    def gather(self, layers: U32, counts: U32, positions: U32, out: U8) -> None:
        assert self.table is not None
        check_told(*self.table.gather(layers, counts, positions, out, self.helpers))

    def copy_rows(self, layer: int, out: U8) -> None:
        assert self.table is not None
        check_told(*self.table.copy(layer, 0, self.tokens, out, self.helpers))

    def copy_index(self, layer: int, out: U8) -> None:
        if self._index is None:
            raise BadInput("this prefix has no index keys: its layout has index_bytes 0")
        pages = self.layout.pages(self.tokens)
        check_told(*self._index.copy(layer, 0, pages, out, self.helpers))

    def close(self) -> None:
        """The memory may be unmapped: the table lets go of it."""
        self.table = None
        self._index = None
        self.helpers = None


def check_told(status: int, at: int) -> None:
    """Raise what a native gather told."""
    if status == BlockStatus.OK:
        return
    if status == BlockStatus.MOVED:
        raise PrefixGone(
            f"the memory of row {at} belongs to somebody else: the prefix was evicted or removed; "
            "open it again, or compute it anew"
        )
    raise BadInput(f"entry {at} of the positions lies outside the prefix")


def local_source(layout: SparseLayout, rows: U8) -> TableSource:
    """Rows in private memory, `rows` u8[layers, tokens, entry_bytes], contiguous; no index keys.
    What on-demand reads are measured against."""
    layers, tokens, entry_bytes = rows.shape
    if (layers, entry_bytes) != (layout.layers, layout.entry_bytes):
        raise BadInput(f"rows of shape {rows.shape} are not those of {layout}")
    zero = np.zeros(1, np.uint64)
    units = Units(
        layout.pages(max(tokens, 1)) * layout.page_tokens,
        [rows],
        np.zeros(1, np.uint32),
        zero,
        np.array([tokens * entry_bytes], np.uint64),
        zero,
        zero,
    )
    return TableSource("local", msgspec.structs.replace(layout, index_bytes=0), tokens, units, None)
