"""Locks on a segment's file that end with their process: the pool's one lock, and a mark that a
prefix has a living writer.

flock and OFD locks belong to an open file, so the kernel gives them back when a process is killed,
and two openings in one process exclude each other, too.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from moonpool.core.errors import DeadlineExceeded

LOCK_S: Final = 5.0
_FIRST_POLL_S: Final = 0.0002
_POLL_S_MAX: Final = 0.02
_WRITER_BYTES: Final = 1 << 62  # where the bytes of the writers' locks begin: beyond any data
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux


class PoolLock:
    """Mutual exclusion between all openings of one file, and the threads of each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._threads = threading.Lock()

    @contextmanager
    def held(self, timeout_s: float = LOCK_S) -> Iterator[None]:
        """Raises DeadlineExceeded when another holds it all the time (stopped, not killed)."""
        until_s = time.monotonic() + timeout_s
        if not self._threads.acquire(timeout=timeout_s):
            raise self._late(timeout_s)
        try:
            self._take(until_s, timeout_s)
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        os.close(self._fd)

    def _take(self, until_s: float, timeout_s: float) -> None:
        pause_s = _FIRST_POLL_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= until_s:
                    raise self._late(timeout_s) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _POLL_S_MAX)

    def _late(self, timeout_s: float) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{self._path}: another process holds the pool's lock for more than {timeout_s} s"
        )


class WriterMark:
    """Says, for as long as this process lives, that entry `number` is being written."""

    def __init__(self, path: Path, number: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _request(fcntl.F_WRLCK, number))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class WriterMarks:
    """Asks which entries have a living writer."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def alive(self, number: int) -> bool:
        answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _request(fcntl.F_WRLCK, number))
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def close(self) -> None:
        os.close(self._fd)


def _request(kind: int, number: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, _WRITER_BYTES + number, 1, 0)
