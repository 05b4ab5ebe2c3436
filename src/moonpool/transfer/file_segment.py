"""A file as a segment of blocks: it has no memory, and only the file transport reaches it."""

import mmap
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from moonpool.core.errors import BadInput, Closed, SegmentSpace
from moonpool.core.host import host_id
from moonpool.core.units import format_bytes
from moonpool.transfer.base import Blocks
from moonpool.transfer.cost import CostClass
from moonpool.transfer.layout import Layout
from moonpool.transfer.op import Op
from moonpool.transfer.open_ops import OwnEnd
from moonpool.transfer.segment import Segment, check_name
from moonpool.transfer.topology import UNKNOWN_NODE, Location

# What direct I/O wants memory, offsets and lengths to be multiples of; some disks take less.
DIRECT_ALIGN: Final = mmap.PAGESIZE


class FileSegment(OwnEnd):
    """`nbytes` bytes of the file or block device `path`. With `direct` they go past the page cache.

    Made by `Engine.open_file`. A context manager; close() ends its ops first.
    """

    cost_class = CostClass.FILE

    def __init__(
        self,
        path: str | os.PathLike[str],
        nbytes: int | None = None,
        *,
        name: str = "",
        writable: bool = True,
        create: bool = False,
        direct: bool = False,
        on_close: "Callable[[FileSegment], None] | None" = None,
    ) -> None:
        super().__init__()
        self.path = Path(path)
        self.name = check_name(name or self.path.name)
        self.writable = writable
        self.direct = direct
        self._on_close = on_close
        self._users = 0
        self._unused = threading.Condition()
        _check_size(nbytes, create)
        self.descriptor = _opened(self.path, writable, create, direct)
        try:
            self.nbytes = _sized(self.descriptor, self.path, nbytes, create)
        except BaseException:
            os.close(self.descriptor)
            raise

    @property
    def location(self) -> Location:
        """This host; which node of it the disk is near to is not known."""
        return Location(host_id(), UNKNOWN_NODE, "file", self.cost_class)

    def blocks(
        self,
        block_bytes: int,
        stride: int | None = None,
        offset: int = 0,
        name: str = "",
        *,
        planes: int = 1,
        plane_stride: int | None = None,
    ) -> Layout:
        """A layout of equal blocks. Raises BadInput."""
        return Layout(self, block_bytes, stride, offset, name, planes, plane_stride)

    def sync(self) -> None:
        """Returns when everything that ops wrote which are DONE is on the disk. Raises OSError."""
        self.require_open()
        os.fdatasync(self.descriptor)

    def require_open(self) -> None:
        if self.closed:
            raise Closed(f"file segment '{self.name}' is closed; open it again")

    def check_aligned(self, local: Segment, near: Blocks, far: Blocks) -> None:
        """Raises BadInput for blocks that direct I/O cannot move."""
        if not self.direct:
            return
        odd = far.offsets | far.lengths | (near.offsets + local.array.ctypes.data)
        odd %= DIRECT_ALIGN
        if odd.any():
            raise BadInput(
                f"block {int(odd.argmax())}: direct I/O to '{self.name}' needs file offset, length "
                f"and memory to be multiples of {DIRECT_ALIGN} bytes; engine.allocate() gives such "
                f"memory"
            )

    def in_use(self) -> "_Use":
        """The descriptor, which stays open inside: close() waits, in another thread. Nobody is
        called back inside, who might close it. Raises Closed."""
        self.open_ops.sweep()
        return _Use(self)

    def use(self) -> int:
        """For in_use()."""
        with self._unused:
            self.require_open()
            self._users += 1
        return self.descriptor

    def leave(self) -> None:
        """For in_use()."""
        with self._unused:
            self._users -= 1
            if self.closed:
                self._unused.notify_all()

    def hold(self, op: Op) -> None:
        """Makes close() end `op` first. To be called inside in_use()."""
        self.open_ops[op] = None

    def close(self) -> None:
        """Cancels what still moves here, waits until that is quiet, and closes the file."""
        with self._unused:
            if self.closed:
                return
            self.closed = True
            # Those that give an op to the kernel; none of them waits for anything.
            while self._users:
                self._unused.wait()
        self.open_ops.end()
        os.close(self.descriptor)
        if self._on_close is not None:
            self._on_close(self)

    def __repr__(self) -> str:
        traits = [word for word in ("writable", "direct", "closed") if getattr(self, word)]
        return f"<FileSegment {self.path}: {self.nbytes} bytes, {', '.join(traits) or 'read-only'}>"


class _Use:
    """A generator's context manager takes three times as long."""

    __slots__ = ("_segment",)

    def __init__(self, segment: FileSegment) -> None:
        self._segment = segment

    def __enter__(self) -> int:
        return self._segment.use()

    def __exit__(self, *_: object) -> None:
        self._segment.leave()


def _check_size(nbytes: int | None, create: bool) -> None:
    if nbytes is None and not create:
        return
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or not 0 <= nbytes < 2**62:
        raise BadInput(f"nbytes {nbytes!r} is no size of a file; give 0..2^62-1")


def _opened(path: Path, writable: bool, create: bool, direct: bool) -> int:
    if create and not writable:
        raise BadInput(f"{path}: what is created is to be written to; leave writable=True")
    flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
    flags |= (os.O_CREAT if create else 0) | (os.O_DIRECT if direct else 0)
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        hint = "; has this file system no direct I/O?" if direct else ""
        raise BadInput(f"cannot open {path}: {error.strerror}{hint}") from None


def _sized(descriptor: int, path: Path, nbytes: int | None, create: bool) -> int:
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISBLK(mode):
        raise BadInput(f"{path} is neither a file nor a block device")
    if create and nbytes and stat.S_ISREG(mode):
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        except OSError as error:
            wanted = format_bytes(nbytes)
            raise SegmentSpace(f"{path}: no room for {wanted}: {error.strerror}") from None
    size = os.lseek(descriptor, 0, os.SEEK_END)
    if nbytes is not None and nbytes > size:
        raise BadInput(f"{path} has {size} bytes, not {nbytes}; create=True makes a file longer")
    return size if nbytes is None else nbytes
