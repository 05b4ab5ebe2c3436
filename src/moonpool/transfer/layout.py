"""From block ids to byte ranges: declared once per layout, resolved as whole arrays.

There is never one Python object per block, and nothing is sent before every id, dtype and bound
has been checked here.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moonpool import _core
from moonpool.core.errors import BadInput
from moonpool.transfer.base import U64, Blocks

if TYPE_CHECKING:
    from moonpool.transfer.file_segment import FileSegment
    from moonpool.transfer.segment import RemoteSegment, Segment
    from moonpool.transfer.vram_segment import VramSegment

    AnySegment: TypeAlias = Segment | RemoteSegment | FileSegment | VramSegment

_U64_ONE = np.ones(1, dtype=np.uint64)


class Layout:
    """Equal blocks in a segment: block `i` is the `block_bytes` at `offset + i * stride`.

    With `planes` each block is so many parts, `plane_stride` apart: part `p` of block `i` is the
    `block_bytes` at `offset + i * stride + p * plane_stride`. Ops move all parts of the blocks they
    name and tell a status for each: those of the first block, then those of the second. Caches of
    [layer][page][bytes] and of [page][layer][bytes] are both layouts of pages with a plane a layer,
    and blocks go from one to the other. `range()` takes some of the planes.

    Made by `segment.blocks(...)`; immutable. `count` is how many whole blocks the segment holds.
    """

    __slots__ = (
        "_lengths",
        "block_bytes",
        "count",
        "grid",
        "name",
        "offset",
        "plane_stride",
        "planes",
        "segment",
        "stride",
    )

    def __init__(
        self,
        segment: "AnySegment",
        block_bytes: int,
        stride: int | None = None,
        offset: int = 0,
        name: str = "",
        planes: int = 1,
        plane_stride: int | None = None,
    ) -> None:
        self.segment = segment
        self.block_bytes = _size("block_bytes", block_bytes, 1)
        self.stride = self.block_bytes if stride is None else _size("stride", stride, 1)
        self.offset = _size("offset", offset, 0)
        self.name = name
        self.planes = _size("planes", planes, 1)
        step = self.block_bytes if plane_stride is None else plane_stride
        self.plane_stride = _size("plane_stride", step, 1)
        self._check_apart()
        last = self.offset + (self.planes - 1) * self.plane_stride + self.block_bytes
        if last > segment.nbytes:
            raise BadInput(
                f"segment '{segment.name}' of {segment.nbytes} bytes has no room for one block of "
                f"{self.planes} x {self.block_bytes} bytes at offset {self.offset}"
            )
        self.count = (segment.nbytes - last) // self.stride + 1
        if self.planes > 1 and self.plane_stride >= self.stride:
            # Planes one after the other: blocks of the first must not run into the second.
            self.count = min(self.count, (self.plane_stride - self.block_bytes) // self.stride + 1)
        self._lengths = _U64_ONE * np.uint64(self.block_bytes)
        self.grid = self._as_grid()

    def _as_grid(self) -> _core.BlockGrid:
        """The first plane, for the native steps."""
        return _core.BlockGrid(self.count, self.stride, self.offset, self.block_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks together, gaps left out."""
        return self.count * self.planes * self.block_bytes

    def range(self, first: int, planes: int) -> "Layout":
        """The same blocks, but of each only `planes` parts from part `first` on."""
        first, planes = _size("first", first, 0), _size("planes", planes, 1)
        if first + planes > self.planes:
            raise BadInput(
                f"planes {first}..{first + planes - 1} are outside 0..{self.planes - 1} of "
                f"{self._described()}"
            )
        offset = self.offset + first * self.plane_stride
        part = Layout(
            self.segment, self.block_bytes, self.stride, offset, "", planes, self.plane_stride
        )
        part.count = self.count
        part.grid = part._as_grid()
        return part

    def _check_apart(self) -> None:
        """Parts of one block, and of neighbours, must not share a byte."""
        inner, outer = sorted((self.stride, self.plane_stride))
        if self.planes == 1:
            inner = outer = self.stride
        if inner < self.block_bytes:
            raise BadInput(
                f"stride {inner} is smaller than block_bytes {self.block_bytes}: blocks would "
                f"overlap"
            )
        if self.planes > 1 and self.stride > self.plane_stride:
            last = (self.planes - 1) * self.plane_stride + self.block_bytes
            if last > outer:
                raise BadInput(
                    f"{self.planes} planes of stride {self.plane_stride} run into the next block "
                    f"at stride {self.stride}"
                )

    def resolve(self, ids: ArrayLike | int) -> Blocks:
        """Ranges of `ids`: an int, or a 1-D integer array of any width.

        Raises BadInput for another dtype or shape, and for ids outside 0..count-1.
        """
        offsets = None
        if isinstance(ids, int) and not isinstance(ids, bool) and 0 <= ids < self.count:
            offsets = np.array([ids * self.stride + self.offset], dtype=np.uint64)
        elif isinstance(ids, np.ndarray):
            offsets = _core.block_offsets(ids, self.count, self.stride, self.offset)
        if offsets is None:
            offsets = self._offsets_of_any(ids)
        if self.planes > 1:
            parts = np.arange(self.planes, dtype=np.uint64) * np.uint64(self.plane_stride)
            offsets = (offsets[:, None] + parts[None, :]).reshape(-1)
        count = len(offsets)
        return Blocks(offsets, self._lengths_of(count), count * self.block_bytes)

    def _offsets_of_any(self, ids: ArrayLike) -> U64:
        # What the native pass does not take: lists, narrow or strided arrays, and all mistakes.
        array = integers(ids, "block ids")
        if array.size and not 0 <= (highest := _highest(array, "block ids")) < self.count:
            raise BadInput(
                f"block id {highest} is outside 0..{self.count - 1} of {self._described()}"
            )
        offsets = array.astype(np.uint64)
        offsets *= np.uint64(self.stride)
        offsets += np.uint64(self.offset)
        return offsets

    def _lengths_of(self, count: int) -> U64:
        # All blocks are equally long, so one grown array serves every call as a slice.
        if count > len(self._lengths):
            self._lengths = np.full(2 * count, self.block_bytes, dtype=np.uint64)
        return self._lengths[:count]

    def _described(self) -> str:
        name = f"layout '{self.name}'" if self.name else f"the {self.block_bytes}-byte blocks"
        return f"{name} in segment '{self.segment.name}'"

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return (
            f"<Layout {self.name or 'unnamed'} in '{self.segment.name}': {self.count} x "
            f"{self.block_bytes} bytes, stride {self.stride}, offset {self.offset}"
            f"{f', {self.planes} planes' if self.planes > 1 else ''}>"
        )


def resolve(target: "Layout | AnySegment", which: Any) -> Blocks:
    """Ranges meant by `which` in `target`.

    For a layout: block ids (None: all). For a segment: (offsets, lengths), each an int or a 1-D
    integer array, in bytes (None: the whole segment). Raises BadInput for anything that is
    malformed or out of bounds.
    """
    if isinstance(target, Layout):
        return target.resolve(np.arange(target.count) if which is None else which)
    if which is None:
        return _one(0, target.nbytes)
    if not isinstance(which, tuple) or len(which) != 2:
        raise BadInput(
            f"a segment takes (offsets, lengths), not {type(which).__name__}; for block ids "
            f"declare a layout with segment.blocks(block_bytes)"
        )
    if type(which[0]) is int and type(which[1]) is int:
        if 0 <= which[0] <= target.nbytes and 0 <= which[1] <= target.nbytes - which[0]:
            return _one(*which)
    offsets, lengths = integers(which[0], "offsets"), integers(which[1], "lengths")
    if len(offsets) != len(lengths):
        raise BadInput(f"{len(offsets)} offsets but {len(lengths)} lengths; give one per block")
    if len(offsets):
        _highest(offsets, "offsets"), _highest(lengths, "lengths")
    offsets = np.ascontiguousarray(offsets, dtype=np.uint64)
    lengths = np.ascontiguousarray(lengths, dtype=np.uint64)
    nbytes = _core.ranges_inside(offsets, lengths, target.nbytes)
    if nbytes is None:
        raise _outside(offsets, lengths, target)
    return Blocks(offsets, lengths, nbytes)


def _one(offset: int, length: int) -> Blocks:
    return Blocks(np.array([offset], np.uint64), np.array([length], np.uint64), length)


def _outside(offsets: U64, lengths: U64, target: "AnySegment") -> BadInput:
    # Compared without adding, so that no sum can wrap around 2^64.
    nbytes = np.uint64(target.nbytes)
    outside = (offsets > nbytes) | (lengths > nbytes - np.minimum(offsets, nbytes))
    if not outside.any():
        return BadInput(f"{len(lengths)} blocks of segment '{target.name}' pass 2^63 bytes in all")
    first = int(np.argmax(outside))
    return BadInput(
        f"block {first} at offset {offsets[first]} with {lengths[first]} bytes is outside "
        f"segment '{target.name}' of {target.nbytes} bytes"
    )


def integers(values: ArrayLike, what: str) -> NDArray[Any]:
    """`values` as a 1-D integer array; an int becomes one entry. Raises BadInput otherwise."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadInput(f"{what} are no array of integers: {error}") from error
    if array.ndim == 0:
        array = array.reshape(1)
    if array.ndim != 1:
        raise BadInput(f"{what} have shape {array.shape}; give one dimension")
    if array.dtype.kind not in "iu":
        if array.size == 0 and not isinstance(values, np.ndarray):
            return np.zeros(0, dtype=np.uint64)
        raise BadInput(f"{what} have dtype {array.dtype}; give integers")
    return array


def _highest(array: NDArray[Any], what: str) -> int:
    """The largest of `array`; raises BadInput for a negative entry."""
    if array.dtype.kind == "i" and (lowest := int(array.min())) < 0:
        raise BadInput(f"{what} contain {lowest}; they start at 0")
    return int(array.max())


def _size(what: str, value: int, lowest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise BadInput(f"{what} {value!r} is a {type(value).__name__}; give whole bytes")
    if not lowest <= value < 2**63:
        raise BadInput(f"{what} {value} is outside {lowest}..2^63-1")
    return int(value)
