"""Mapped memory of a sparse segment: a file in /dev/shm, on a disk, or a dax device.

Nothing here knows what the bytes mean. Memory is fully allocated at creation where the file system
can, so that lack of room is an error then and never a signal later.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from pathlib import Path

import numpy as np

from moonpool.core.errors import BadInput, SegmentDamaged, SegmentSpace
from moonpool.sparse.layout import U8
from moonpool.sparse.segment_format import ALIGN, HEADER_BYTES


class Mapping:
    """One device, mapped whole. `array` is u8[n]; read-only unless `writable`."""

    def __init__(self, path: Path, nbytes: int, *, writable: bool) -> None:
        flags = os.O_RDWR if writable else os.O_RDONLY
        self.path = path
        self.fd = os.open(path, flags | os.O_CLOEXEC)
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        try:
            self._map = mmap.mmap(self.fd, nbytes, flags=mmap.MAP_SHARED, prot=protection)
        except (OSError, ValueError) as error:
            os.close(self.fd)
            raise SegmentDamaged(f"{path} cannot be mapped: {error}") from None
        self.array: U8 = np.frombuffer(self._map, np.uint8)

    def flush(self) -> None:
        """For files that outlive a power loss; memory needs none."""
        self._map.flush()

    def close(self) -> None:
        """Ours goes; the memory stays mapped while somebody still looks at it."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        self.array = np.zeros(0, np.uint8)
        try:
            self._map.close()
        except BufferError:
            return  # views of it are alive; the last one unmaps


def create_file(path: Path, nbytes: int) -> None:
    """A fresh file of zeros; a device is taken as it is. Raises BadInput when the file is there,
    SegmentSpace when it does not fit."""
    if path.exists() and stat.S_ISCHR(path.stat().st_mode):
        return
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise BadInput(f"{path} exists already; open it, or remove it first") from None
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.unlink(path)
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.ENOMEM):
            raise SegmentSpace(f"{path}: no room for {nbytes} bytes") from None
        raise
    finally:
        os.close(fd)


def write_header(path: Path, header: bytes) -> None:
    """The last thing done to a new device: before it the file is no segment."""
    device = Mapping(path, ALIGN, writable=True)
    device.array[:HEADER_BYTES] = np.frombuffer(header, np.uint8)
    device.close()


def read_header(path: Path) -> tuple[bytes, int]:
    """A device's header and the file's size. Raises SegmentDamaged."""
    try:
        about = path.stat()
    except OSError as error:
        raise SegmentDamaged(f"{path} cannot be opened: {error}") from None
    whole = stat.S_ISREG(about.st_mode)
    if whole and about.st_size < ALIGN:
        raise SegmentDamaged(f"{path} is no sparse segment: {about.st_size} bytes")
    device = Mapping(path, ALIGN, writable=False)
    header = device.array[:HEADER_BYTES].tobytes()
    device.close()
    # A device has no size to look at: mapping it tells.
    return header, about.st_size if whole else 1 << 62
