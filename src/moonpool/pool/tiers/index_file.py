"""The disk tier's index as a file: records appended whole, or written anew and put in its place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from moonpool.pool.tiers.log_format import (
    INDEX_MAGIC,
    Replay,
    file_header,
    parse_file_header,
    replay,
)

INDEX_NAME = "index"


class IndexFile:
    """Raises OSError."""

    def __init__(self, directory: Path, incarnation: bytes, end: int) -> None:
        self.end = end
        self._directory = directory
        self._incarnation = incarnation
        self._file = os.open(directory / INDEX_NAME, os.O_RDWR | os.O_CLOEXEC)

    @classmethod
    def create(cls, directory: Path, incarnation: bytes, records: Sequence[bytes]) -> IndexFile:
        """Either the old file stays or the new one is there whole."""
        raw = file_header(INDEX_MAGIC, 1, incarnation, 0) + b"".join(records)
        path = directory / (INDEX_NAME + ".new")
        with path.open("wb") as file:
            path.chmod(0o600)
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        path.replace(directory / INDEX_NAME)
        flush_folder(directory)
        return cls(directory, incarnation, len(raw))

    def append(self, record: bytes, flush: bool) -> None:
        """When it raises, the index does not say it: a next start must not believe what the
        caller was told has failed."""
        try:
            written = os.pwrite(self._file, record, self.end)
            if written != len(record):
                raise OSError(28, f"{written} of {len(record)} bytes of the index written")
            if flush:
                os.fdatasync(self._file)
        except OSError:
            with contextlib.suppress(OSError):  # else the next record is written over it
                os.ftruncate(self._file, self.end)
            raise
        self.end += written

    def flush(self) -> None:
        os.fdatasync(self._file)

    def close(self) -> None:
        """A writer that hung until now gets an error, not another file of this number."""
        descriptor, self._file = self._file, -1
        os.close(descriptor)


def flush_folder(directory: Path) -> None:
    """The names in it reach the medium: a file without its name is lost, whatever is in it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_index(directory: Path) -> tuple[bytes, Replay] | None:
    """Incarnation and records; None where there is no index of this version."""
    try:
        raw = (directory / INDEX_NAME).read_bytes()
    except FileNotFoundError:
        return None
    header = parse_file_header(raw, INDEX_MAGIC)
    return None if header is None else (header.incarnation, replay(raw))
