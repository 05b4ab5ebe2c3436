"""Passive segments: a dax device or a file mapped into this process, and into any other that asks.

No process owns the bytes and none has to serve them: whoever maps the same range of the same path
reads and writes it by load and store. Two things are the mappers' own business: who writes which
range when, and that nobody truncates a file that is mapped (a load beyond its end kills the
process; ops look at the size first and fail instead, which leaves a moment in between).
"""

import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from moonpool.core.errors import BadInput, SegmentDamaged, SegmentSpace
from moonpool.core.units import format_bytes
from moonpool.transfer.cost import CostClass
from moonpool.transfer.flush import FlushHook, flush_of, one_block
from moonpool.transfer.segment import Segment

_DEVICES: Final = Path("/sys/dev/char")


class Medium(NamedTuple):
    """What is behind a path: bytes in all, bytes its mappings must be multiples of, its class."""

    nbytes: int
    align: int
    cost_class: CostClass


class MappedSegment(Segment):
    """A mapped range of `path`, as a segment of this process. `cost_class` says what kind of memory
    it is, `flush` makes writes seen where hardware does not (None: it does). Made by
    `Engine.map` or map_segment().

    Ops over the local transport call the hook themselves. Who loads from `array` or stores to it
    calls before_read() and after_write().
    """

    def __init__(self, mapping: mmap.mmap, path: Path, offset: int, **traits: Any) -> None:
        self._mapping = mapping
        self._end = offset + len(mapping)
        self._is_file = path.is_file()
        self.path = path
        self.offset = offset
        self.cost_class: CostClass = traits.pop("cost_class")
        self.device = str(path)
        self.flush: FlushHook | None = traits.pop("flush")
        super().__init__(np.frombuffer(mapping, dtype=np.uint8), **traits)

    def before_read(self, offset: int = 0, length: int | None = None) -> None:
        """Makes what others have written to this range seen by loads that follow."""
        if self.flush is not None:
            self.flush.before_read(self.array, *self._range(offset, length))

    def after_write(self, offset: int = 0, length: int | None = None) -> None:
        """Makes our stores to this range seen by others, when it returns."""
        if self.flush is not None:
            self.flush.after_write(self.array, *self._range(offset, length))

    def require_open(self) -> None:
        super().require_open()
        if self._is_file and (size := self._mapping.size()) < self._end:
            raise SegmentDamaged(
                f"{self.path} has {size} bytes and was mapped up to {self._end}: somebody has "
                f"truncated it; map it again"
            )

    def _range(self, offset: int, length: int | None) -> Any:
        length = self.nbytes - offset if length is None else length
        if not 0 <= offset <= self.nbytes or not 0 <= length <= self.nbytes - offset:
            raise BadInput(
                f"{length} bytes at {offset} are outside segment '{self.name}' of "
                f"{self.nbytes} bytes"
            )
        return one_block(offset, length)


def map_segment(
    path: str | os.PathLike[str],
    nbytes: int | None = None,
    *,
    offset: int = 0,
    name: str = "",
    writable: bool = True,
    create: bool = False,
    cost_class: CostClass | None = None,
    flush: FlushHook | str | None = None,
    region: int = 0,
    on_close: Callable[[Segment], None] | None = None,
    on_layout: Callable[[], None] | None = None,
) -> MappedSegment:
    """See Engine.map; a segment made here belongs to no engine, so peers never see it."""
    where = Path(path)
    hook = flush_of(flush)
    _check_sizes(nbytes, offset)
    descriptor = _open(where, writable, create)
    try:
        if create:
            _grow(descriptor, where, offset, nbytes)
        medium = medium_of(descriptor, where)
        length = _length(where, medium, offset, nbytes)
        if writable and medium.cost_class is CostClass.FILE:
            _take_room(descriptor, where, offset, length)
        mapping = _mapped(descriptor, where, offset, length, writable)
    finally:
        os.close(descriptor)
    return MappedSegment(
        mapping,
        where,
        offset,
        name=name or where.name,
        writable=writable,
        shared=True,
        region=region,
        on_close=on_close,
        on_layout=on_layout,
        cost_class=cost_class or medium.cost_class,
        flush=hook,
    )


def medium_of(descriptor: int, path: Path, devices: Path = _DEVICES) -> Medium:
    """What an open path is. Raises BadInput for anything that is no file and no dax device."""
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return Medium(status.st_size, mmap.ALLOCATIONGRANULARITY, CostClass.FILE)
    if stat.S_ISCHR(status.st_mode):
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        try:
            size = int((devices / number / "size").read_text())
        except (OSError, ValueError):
            raise BadInput(
                f"{path} is a device without a size in {devices / number}: no dax device"
            ) from None
        return Medium(size, _align_of(devices / number), CostClass.CXL)
    raise BadInput(f"{path} is neither a file nor a dax device; only those can be mapped")


def _align_of(device: Path) -> int:
    try:
        return int((device / "align").read_text())
    except (OSError, ValueError):
        return 2 << 20  # what devdax has unless somebody chose otherwise


def _check_sizes(nbytes: int | None, offset: int) -> None:
    for what, value in (("nbytes", nbytes), ("offset", offset)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
            raise BadInput(f"{what} {value!r} is no number of bytes; give 0..2^62-1")


def _open(path: Path, writable: bool, create: bool) -> int:
    if create and not writable:
        raise BadInput(f"{path}: what is created is to be written to; leave writable=True")
    flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
    try:
        return os.open(path, flags | (os.O_CREAT if create else 0), 0o600)
    except OSError as error:
        raise BadInput(f"cannot open {path} to map it: {error.strerror}") from None


def _grow(descriptor: int, path: Path, offset: int, nbytes: int | None) -> None:
    """Makes a file at least as long as asked; what it holds stays."""
    if nbytes is None:
        raise BadInput(f"{path}: say how many bytes to create (nbytes)")
    if stat.S_ISREG(os.fstat(descriptor).st_mode) and offset + nbytes > 0:
        _take_room(descriptor, path, 0, offset + nbytes)


def _take_room(descriptor: int, path: Path, offset: int, nbytes: int) -> None:
    # A hole would be filled at the first store, and a full disk would then kill the process.
    try:
        os.posix_fallocate(descriptor, offset, nbytes)
    except OSError as error:
        raise SegmentSpace(
            f"{path}: no room for {format_bytes(nbytes)}: {error.strerror}"
        ) from None


def _length(path: Path, medium: Medium, offset: int, nbytes: int | None) -> int:
    length = max(0, medium.nbytes - offset) if nbytes is None else nbytes
    if offset % medium.align or (medium.cost_class is CostClass.CXL and length % medium.align):
        raise BadInput(f"{path} is mapped in multiples of {medium.align} bytes; offset {offset}")
    if offset + length > medium.nbytes:
        raise BadInput(
            f"{path} has {medium.nbytes} bytes; {length} at {offset} are more (create=True makes a "
            f"file longer)"
        )
    if length == 0:
        raise BadInput(f"{path}: there is nothing to map at {offset}")
    return length


def _mapped(descriptor: int, path: Path, offset: int, length: int, writable: bool) -> mmap.mmap:
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    try:
        return mmap.mmap(descriptor, length, mmap.MAP_SHARED, protection, offset=offset)
    except (OSError, ValueError) as error:
        raise SegmentSpace(f"cannot map {format_bytes(length)} of {path}: {error}") from None
