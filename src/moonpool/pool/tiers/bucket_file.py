"""One bucket's file: objects appended, read, marked as removed. With O_DIRECT if asked.

A reader holds the file open while it reads: a bucket may be given up meanwhile, and its number of
an open file must not become another file's.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Collection
from pathlib import Path

from moonpool.pool.tiers.base import Buffer
from moonpool.pool.tiers.log_format import REMOVED, STATE_OFFSET, aligned

DIRECT_ALIGN = 4096
PLAIN_ALIGN = 64


class BucketFile:
    """Raises OSError. `direct`: bytes go past the page cache, in pieces of DIRECT_ALIGN."""

    def __init__(self, path: Path, direct: bool) -> None:
        self.path = path
        self._direct = direct
        self._lock = threading.Lock()
        self._readers = 0
        self._given_up = False
        self._plain = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._data = self._plain
        if direct:
            try:
                self._data = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
            except OSError:
                os.close(self._plain)
                raise

    @property
    def size(self) -> int:
        return os.fstat(self._plain).st_size

    def write(self, offset: int, head: bytes, data: Buffer, align: int) -> None:
        """`head`, padding and `data` at `offset`; raises OSError also for a short write."""
        raw = memoryview(data).cast("B")
        begin = aligned(len(head), align)
        if not self._direct:
            pieces: list[bytes | memoryview] = [head + bytes(begin - len(head)), raw]
            self._check(os.pwritev(self._plain, pieces, offset), begin + raw.nbytes)
            return
        length = aligned(begin + raw.nbytes, align)
        with mmap.mmap(-1, length) as page:  # O_DIRECT wants memory at a page's beginning
            page[: len(head)] = head
            page[begin : begin + raw.nbytes] = raw
            self._check(os.pwrite(self._data, page, offset), length)

    @staticmethod
    def _check(written: int, wanted: int) -> None:
        if written != wanted:
            raise OSError(28, f"{written} of {wanted} bytes written")

    def put(self, offset: int, raw: bytes) -> None:
        """A few bytes through the page cache: file headers."""
        self._check(os.pwrite(self._plain, raw, offset), len(raw))

    def mark_removed(self, offset: int) -> None:
        os.pwrite(self._plain, bytes([REMOVED]), offset + STATE_OFFSET)

    def read(self, offset: int, length: int) -> memoryview:
        """As much of it as there is. The file is held open meanwhile: see `hold`."""
        if not self._direct:
            buffer = bytearray(length)
            got = self._read_all(self._plain, memoryview(buffer), offset)
            return memoryview(buffer)[:got]
        start = offset // DIRECT_ALIGN * DIRECT_ALIGN
        page = mmap.mmap(-1, aligned(offset + length - start, DIRECT_ALIGN))
        got = self._read_all(self._data, memoryview(page), start)
        return memoryview(page)[offset - start : min(got, offset - start + length)]

    @staticmethod
    def _read_all(descriptor: int, view: memoryview, offset: int) -> int:
        done = 0
        while done < view.nbytes:
            got = os.preadv(descriptor, [view[done:]], offset + done)
            if got == 0:
                break
            done += got
        return done

    def flush(self) -> None:
        os.fdatasync(self._plain)

    def hold(self) -> bool:
        """False: it was given up."""
        with self._lock:
            if self._given_up:
                return False
            self._readers += 1
            return True

    def let_go(self) -> None:
        with self._lock:
            self._readers -= 1
            self._close_if_idle()

    def give_up(self) -> None:
        """Nobody begins to read it any more."""
        with self._lock:
            self._given_up = True
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._given_up and self._readers == 0 and self._plain >= 0:
            if self._data != self._plain:
                os.close(self._data)
            os.close(self._plain)
            self._plain = self._data = -1


def foreign_bytes(directory: Path, own: Collection[Path]) -> int:
    """Bytes of the files below `directory` that are not among `own`; what goes meanwhile is
    nothing. Raises OSError for a folder that cannot be read."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if path not in own:
                with contextlib.suppress(FileNotFoundError):
                    total += path.lstat().st_size
    return total
