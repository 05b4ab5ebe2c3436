"""What stores with a local index share: the folder they own, the index, what is told and counted.

The index is on a local disk also where the data is not: a removal is final as soon as it is in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from moonpool.core.errors import SegmentLocked
from moonpool.pool.tiers.base import Entry, Notes
from moonpool.pool.tiers.disk_recovery import Found
from moonpool.pool.tiers.index_file import INDEX_NAME, IndexFile
from moonpool.pool.tiers.log_format import Kind, record
from moonpool.pool.tiers.log_index import LogIndex

INDEX_SLACK = 1 << 20  # an index is written anew when it is more than twice what it says, and this


class IndexedStore:
    """Owns the folder, one process at a time. Raises SegmentLocked, OSError."""

    def __init__(
        self, directory: Path, sync: bool, boot_id: str, recover: Callable[[], Found]
    ) -> None:
        self._directory = directory
        self._sync = sync
        self._lock = threading.RLock()
        self._lost: list[tuple[int, int]] = []
        self._closed = False
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._owner = self._take_folder()
        try:
            found = recover()
            self.incarnation = found.incarnation or secrets.token_bytes(16)
            self.counts, self.why_empty = found.counts, found.why_empty
            self._index: LogIndex = found.index
            self._opened = record(Kind.OPENED, (b"\1" if sync else b"\0") + boot_id.encode())
            self._log = self._written_anew()
        except BaseException:
            os.close(self._owner)
            raise
        self._rewritten_at = self._log.end

    def _take_folder(self) -> int:
        path = self._directory / "owner"
        owner = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(owner)
            raise SegmentLocked(f"{self._directory} is in use by another node") from None
        return owner

    def _written_anew(self) -> IndexFile:
        records = [*self._index.records(self.incarnation), self._opened]
        return IndexFile.create(self._directory, self.incarnation, records)

    def _tidy(self) -> None:
        """Write the index anew when it is mostly history. Where that fails the old one goes on:
        what was to be said is said, and the next try comes when it has doubled."""
        if self._log.end <= 2 * self._rewritten_at + INDEX_SLACK:
            return
        try:
            fresh = self._written_anew()
        except OSError:
            self._rewritten_at = self._log.end
            self._count("failed_index_rewrites")
            return
        self._log.close()
        self._log, self._rewritten_at = fresh, fresh.end
        self._count("index_rewrites")

    @property
    def notes(self) -> Notes:
        return self._index.notes

    def entries(self) -> Sequence[Entry]:
        with self._lock:
            return [one.entry for one in self._index.objects.values()]

    def take_lost(self) -> list[tuple[int, int]]:
        with self._lock:
            lost, self._lost = self._lost, []
        return lost

    def save(self, notes: Notes) -> None:
        with self._lock:
            self._index.notes = notes
            self._log.append(record(Kind.NOTES, msgspec.msgpack.encode(notes)), self._sync)
            self._tidy()  # a tier that is only read is told its notes all the same

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts[name] = self.counts.get(name, 0) + 1

    def _end(self, flushed: bool = True) -> None:
        """The index says that all was closed in order, if what it names was `flushed`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if flushed:
                with contextlib.suppress(OSError):
                    self._log.append(record(Kind.CLOSED, b""), True)
            self._log.close()
            os.close(self._owner)

    def _forget_index(self) -> None:
        (self._directory / INDEX_NAME).unlink(missing_ok=True)
