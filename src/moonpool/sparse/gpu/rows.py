"""A prefix's rows for a GPU: one launch gathers those of a layer into memory of the device.

    mapped   the kernel reads the rows where they lie, over the bus
    bounce   the driver refused the memory: the CPU gathers into pinned memory, one copy follows

Both give the bytes that SparseReader.gather gives. The words that guard pages are compared before
the launch and after its end, as on the CPU.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from moonpool.core.errors import (
    BadInput,
    BadSize,
    Closed,
    MissingExtra,
    PrefixGone,
    RegisterRefused,
)
from moonpool.sparse.gpu.registered import Range, RegisteredMemory
from moonpool.sparse.layout import as_positions
from moonpool.sparse.reader import SparseReader
from moonpool.sparse.source import Guards, TableSource, Units

TILE_ROWS: Final = 4
_WORDS: Final = (8, 4, 2, 1)  # bytes; a GPU's compiler makes vectors of neighbours


def why_no_gpu() -> str:
    """What is missing for a GPU to read rows, or ''."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    try:
        import triton  # noqa: F401
    except ImportError:
        return "triton is not installed"
    return ""


def interprets() -> bool:
    """Whether Triton runs kernels on the CPU in this process."""
    return os.environ.get("TRITON_INTERPRET") == "1"


class GpuRows:
    """What `reader`, on mapped rows, reads for `device`. The reader stays open, and is the only
    one to say when the memory may go: close this first.

    Raises MissingExtra without torch or triton, BadInput for a reader whose rows are not mapped
    here, or a CPU as device unless Triton interprets.
    """

    def __init__(self, reader: SparseReader, device: str = "cuda") -> None:
        try:
            import torch

            from moonpool.sparse.gpu.kernel import gather_rows
        except ImportError as error:
            raise MissingExtra(f"rows for a GPU need torch and triton: {error}") from None
        source = reader.source
        if not isinstance(source, TableSource):
            raise BadInput(
                f"a GPU reads mapped rows only, and those of a {source.kind!r} reader are not; "
                "open it with 'shm', or 'full'"
            )
        self._torch = torch
        self._kernel = gather_rows
        self._reader = reader
        self._units: Units = source.units
        self._guards: Guards | None = source.guards
        self._device = torch.device(device)
        if self._device.type == "cpu" and not interprets():
            raise BadInput("a CPU is no device for rows unless Triton interprets")
        self._memory: RegisteredMemory | None = None
        self.mode = "mapped"
        if self._device.type != "cpu":
            try:
                self._memory = RegisteredMemory(unit_ranges(source))
            except RegisterRefused:
                self.mode = "bounce"
        self._bases = self._column(_bases(self._units))
        self._strides = self._column(self._units.strides.astype(np.int64))
        self._word = _word_bytes(source)
        self._staging: Any = None
        self._open = True

    def gather(self, layer: int, positions: Any, out: Any, slots: Any = None) -> None:
        """Rows of one layer into `out`, a contiguous u8 tensor [rows, entry_bytes] of the device:
        row i, or row `slots[i]`. Returns when they are there. Raises what SparseReader.gather
        raises."""
        if not self._open:
            raise Closed("these rows are closed")
        layout = self._reader.layout
        column = as_positions(positions, self._reader.length)
        self._reader.asked([layer], [len(column)], column)
        places = _as_slots(slots, len(column), len(out))
        if out.dtype != self._torch.uint8 or not out.is_contiguous() or out.ndim != 2:
            raise BadInput("the destination of rows is a contiguous u8 tensor of rows")
        if out.device.type != self._device.type:
            raise BadInput(f"the destination lies on {out.device}, these rows go to {self._device}")
        if out.shape[1] != layout.entry_bytes or (slots is None and len(out) != len(column)):
            raise BadSize(
                f"{len(column)} rows of {layout.entry_bytes} bytes do not fit {tuple(out.shape)}"
            )
        if not len(column):
            return
        if self.mode == "bounce":
            self._bounce(layer, column, out, places)
            return
        self._reader.begin()
        self._check_guards()
        self._launch(layer, column, out, places)
        self._check_guards()
        self._reader.count_rows(len(column))

    def close(self) -> None:
        self._open = False
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _launch(self, layer: int, column: Any, out: Any, places: Any) -> None:
        row_bytes = self._reader.layout.entry_bytes
        row_words = row_bytes // self._word
        words = out.view(getattr(self._torch, f"int{8 * self._word}"))
        at = self._column(column.astype(np.int64))
        slots = at if places is None else self._column(places)
        grid = (-(-len(column) // TILE_ROWS),)
        self._kernel[grid](
            self._bases,
            self._strides,
            at,
            slots,
            words,
            len(column),
            layer,
            self._units.unit_tokens,
            row_bytes,
            row_words,
            has_slots=places is not None,
            tile_rows=TILE_ROWS,
            tile_words=1 << (row_words - 1).bit_length(),
        )
        if self._device.type != "cpu":
            self._torch.cuda.current_stream(self._device).synchronize()

    def _bounce(self, layer: int, column: Any, out: Any, places: Any) -> None:
        torch, row_bytes = self._torch, self._reader.layout.entry_bytes
        if self._staging is None or len(self._staging) < len(column):
            self._staging = torch.empty((len(column), row_bytes), dtype=torch.uint8).pin_memory()
        staged = self._staging[: len(column)]
        self._reader.gather(layer, column, staged.numpy())
        if places is None:
            out.copy_(staged, non_blocking=True)
        else:
            out[self._column(places)] = staged.to(self._device, non_blocking=True)
        torch.cuda.current_stream(self._device).synchronize()

    def _check_guards(self) -> None:
        """Raises PrefixGone when a page has another owner."""
        if self._guards is None:
            return
        moved = moved_unit(self._guards)
        if moved >= 0:
            raise PrefixGone(
                f"the memory of unit {moved} belongs to somebody else: the prefix was evicted or "
                "removed; open it again, or compute it anew"
            )

    def _column(self, values: Any) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(values)).to(self._device)


def moved_unit(guards: Guards) -> int:
    """The first unit whose word is not what it must be, or -1."""
    words = guards.memory.reshape(-1).view(np.uint64)[(guards.offsets // 8).astype(np.int64)]
    other = np.flatnonzero(words != guards.values)
    return int(other[0]) if len(other) else -1


def unit_ranges(source: TableSource) -> list[Range]:
    """Where the rows of each unit lie, all layers of it."""
    layout, units = source.layout, source.units
    ranges = []
    for number, base in enumerate(_bases(units).tolist()):
        rows = min(units.unit_tokens, source.tokens - number * units.unit_tokens)
        if rows > 0:
            last = (layout.layers - 1) * int(units.strides[number])
            ranges.append(Range(base, base + last + rows * layout.entry_bytes))
    return ranges


def _bases(units: Units) -> Any:
    starts = [
        np.frombuffer(memoryview(one).cast("B"), np.uint8).ctypes.data for one in units.buffers
    ]
    return np.array(starts, np.int64)[units.which] + units.offsets.astype(np.int64)


def _word_bytes(source: TableSource) -> int:
    """The widest word that divides rows and every address of one."""
    sizes = [*_bases(source.units).tolist(), *source.units.strides.tolist()]
    sizes.append(source.layout.entry_bytes)
    return next(word for word in _WORDS if all(size % word == 0 for size in sizes))


def _as_slots(slots: Any, count: int, rows: int) -> Any:
    if slots is None:
        return None
    column = as_positions(slots, rows).astype(np.int64)
    if len(column) != count:
        raise BadInput(f"{len(column)} slots do not fit {count} positions")
    return column
