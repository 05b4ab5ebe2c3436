"""A disk log in a folder, objects to put into it, and what a kill -9 would leave of it."""

import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moonpool._core import crc32c
from moonpool.pool.tiers.base import WHOLE, Entry, Status
from moonpool.pool.tiers.disk_log import DiskLog

LIMIT = 4 << 20


def opened(path: Path, **settings: object) -> DiskLog:
    return DiskLog(path, LIMIT, **settings)  # type: ignore[arg-type]


def made(slot: int, generation: int = 1, size: int = 1000, key: bytes = b"") -> tuple[Entry, bytes]:
    data = random.Random(slot * 1_000_003 + generation).randbytes(size)
    name = key or b"key-%d" % slot
    entry = Entry(slot, generation, name, b"parent", 3, generation, size, crc32c(data), pin=2)
    return entry, data


def put(log: DiskLog, slot: int, generation: int = 1, size: int = 1000) -> bytes:
    entry, data = made(slot, generation, size)
    assert log.write(entry, data) is Status.OK
    return data


def got(log: DiskLog, slot: int, generation: int = 1) -> bytes | Status:
    answer = log.read(slot, generation, 0, WHOLE)
    return answer if isinstance(answer, Status) else bytes(answer)


def as_killed(path: Path, target: Path) -> Path:
    """The files as they are at this moment, without anybody having closed them."""
    return Path(shutil.copytree(path, target))


def flip(path: Path, offset: int, bit: int = 1) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= bit
    path.write_bytes(raw)


def bucket(path: Path) -> Path:
    (only,) = path.glob("*.bucket")
    return only


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a full disk: the kernel refuses what goes beyond."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
