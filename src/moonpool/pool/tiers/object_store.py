"""A remote tier: each object in an object store (S3 and the like) through obstore, its index here.

    write    the whole object (header, key, parent, data) under a name of its own, then PUT here
    erase    REMOVE here: that is final. The remote object is deleted behind it, by the writer
A remote store that is slow or away costs reads of this tier and nothing else. What it returns is
proved by header and CRC.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moonpool._core import crc32c
from moonpool.core.errors import BadConfig, MissingExtra
from moonpool.pool.tiers.base import WHOLE, Buffer, Entry, Status
from moonpool.pool.tiers.disk_recovery import recover_index
from moonpool.pool.tiers.indexed_store import IndexedStore
from moonpool.pool.tiers.log_format import (
    Place,
    data_offset,
    object_header,
    parse_object_header,
    put_record,
    remove_record,
)
from moonpool.pool.tiers.log_index import Located

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Remote

log = logging.getLogger("moonpool.tier")

DELETE_MAX = 256  # names in one request
GARBAGE_MAX = 65_536  # names remembered; others are found by the next start


def open_remote(url: str) -> Remote:
    """By URL, as 's3://bucket/prefix', 'file:///folder', 'memory:///'; credentials come from the
    environment, as obstore documents. Raises MissingExtra, BadConfig."""
    try:
        from obstore.store import LocalStore, from_url
    except ImportError:
        raise MissingExtra("a remote tier needs obstore: pip install 'moonpool[remote]'") from None
    if url.startswith("file://"):
        return LocalStore(url.removeprefix("file://"), mkdir=True)
    try:
        return from_url(url, client_options={"timeout": "20s", "connect_timeout": "2s"})
    except Exception as error:
        raise BadConfig(f"node.remote = {url}: {error}") from None


class ObjectStore(IndexedStore):
    """`directory` holds the index; `prefix` in the remote store is this one's alone."""

    medium = "remote"

    def __init__(
        self,
        directory: Path,
        remote: Remote,
        prefix: str,
        limit_bytes: int,
        *,
        sync: bool = False,
        boot_id: str = "",
        wall_ms: int = 0,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._remote = remote
        self._prefix = prefix
        self._garbage: deque[str] = deque(maxlen=GARBAGE_MAX)
        self._swept = False
        super().__init__(
            directory, sync, boot_id, lambda: recover_index(directory, boot_id, wall_ms)
        )

    def _name(self, slot: int, generation: int) -> str:
        return f"{self._prefix}/{self.incarnation.hex()}/{slot:08x}-{generation:016x}"

    def usage(self) -> dict[str, int]:
        with self._lock:
            return {
                "objects": len(self._index.objects),
                "size_bytes": self._index.size_bytes,
                "file_bytes": sum(use.live for use in self._index.buckets.values()),
                "limit_bytes": self.limit_bytes,
                "garbage": len(self._garbage),
                **self.counts,
            }

    # Writing: one thread.

    def write(self, entry: Entry, data: Buffer) -> Status:
        import obstore

        head = object_header(entry, self.incarnation)
        raw = memoryview(data).cast("B")
        if raw.nbytes != entry.size:
            return Status.BOUNDS
        length = len(head) + raw.nbytes
        if self.usage()["file_bytes"] + length > self.limit_bytes:
            return Status.NO_SPACE
        name = self._name(entry.slot, entry.generation)
        try:
            self._collect()
            obstore.put(self._remote, name, b"".join((head, raw)))
            with self._lock:
                self._log.append(
                    put_record(entry, Place(0, 0, length), self.incarnation), self._sync
                )
                self._index.put(Located(entry, Place(0, 0, length)))
                self._tidy()
        except Exception as error:  # obstore's own errors share no base but this
            log.warning("%s was not written: %s", name, error)
            self._count("failed_writes")
            self._garbage.append(name)
            return Status.UNREACHABLE
        return Status.OK

    def _collect(self) -> None:
        """Delete some of what was erased; first of all what an earlier life has left. One request:
        the put that waits behind it is not to wait for all of them."""
        import obstore

        if not self._swept:
            with self._lock:
                kept = {self._name(*_slot_of(one)) for one in self._index.objects.values()}
            for page in obstore.list(self._remote, self._prefix + "/"):
                self._garbage.extend(one["path"] for one in page if one["path"] not in kept)
            self._swept = True
        with self._lock:
            some = [self._garbage[i] for i in range(min(DELETE_MAX, len(self._garbage)))]
        if not some:
            return
        _delete(self._remote, some)
        with self._lock:
            gone = set(some)
            while self._garbage and self._garbage[0] in gone:
                self._garbage.popleft()

    # Reading and erasing: any thread.

    def read(self, slot: int, generation: int, offset: int, length: int) -> Buffer | Status:
        with self._lock:
            located = self._index.find(slot, generation)
            if located is None or self._closed:
                return Status.MOVED
        try:
            data = self._read(located.entry, offset, length)
        except FileNotFoundError:
            data = Status.CORRUPT  # somebody deleted it there
        except Exception as error:  # obstore's own errors share no base but this
            log.warning("%s was not read: %s", self._name(slot, generation), error)
            self._count("failed_reads")
            return Status.UNREACHABLE
        with self._lock:
            if self._index.find(slot, generation) is None:
                return Status.MOVED
        if data is Status.CORRUPT:
            self._count("corrupt_objects")
            if self.erase(slot, generation) is Status.OK:
                self._lost.append((slot, generation))
        return data

    def _read(self, entry: Entry, offset: int, length: int) -> Buffer | Status:
        import obstore

        name = self._name(entry.slot, entry.generation)
        begin = data_offset(entry, 1)
        if length != WHOLE:
            if offset + length > entry.size:
                return Status.BOUNDS
            if length == 0:
                return b""
            piece = memoryview(
                obstore.get_range(self._remote, name, start=begin + offset, length=length)
            )
            return piece if piece.nbytes == length else Status.CORRUPT
        raw = memoryview(obstore.get(self._remote, name).bytes())
        if raw.nbytes != begin + entry.size:
            return Status.CORRUPT
        if parse_object_header(raw[:begin], self.incarnation) != entry:
            return Status.CORRUPT
        data = raw[begin:]
        return data if crc32c(data) == entry.crc else Status.CORRUPT

    def erase(self, slot: int, generation: int) -> Status:
        with self._lock:
            if self._index.remove(slot, generation) is None:
                return Status.MOVED
            self._garbage.append(self._name(slot, generation))
            try:
                self._log.append(remove_record(slot, generation), self._sync)
            except OSError:
                # What cannot be said removed must not be found: the next life starts empty.
                self._forget_index()
                self._count("index_given_up")
        return Status.OK

    def close(self) -> None:
        self._end()


def _slot_of(located: Located) -> tuple[int, int]:
    return located.entry.slot, located.entry.generation


def _delete(remote: Any, names: list[str]) -> None:
    """In one request, where the store has that; those that are gone already are no error."""
    import obstore

    try:
        obstore.delete(remote, names)
    except FileNotFoundError:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                obstore.delete(remote, name)
