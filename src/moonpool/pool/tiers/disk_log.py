"""The disk tier's store: objects in log-structured bucket files, and an index appended after them.

    write    data into the open bucket, then PUT into the index: only then it counts
    erase    removed, into the object's header, then REMOVE into the index: either one suffices
    full     the bucket with least in it is copied out and given up, while that frees something

It must never pass `limit_bytes`, and never give a byte that its CRC does not prove. What others
put into the folder, and what was set aside, counts too: looked at for each new bucket.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

from moonpool._core import crc32c
from moonpool.pool.tiers.base import WHOLE, Buffer, Entry, Status
from moonpool.pool.tiers.bucket_file import DIRECT_ALIGN, PLAIN_ALIGN, BucketFile, foreign_bytes
from moonpool.pool.tiers.disk_recovery import BUCKET_SUFFIX, Found, bucket_path, recover
from moonpool.pool.tiers.index_file import INDEX_NAME, flush_folder
from moonpool.pool.tiers.indexed_store import IndexedStore
from moonpool.pool.tiers.log_format import (
    BUCKET_MAGIC,
    FILE_HEADER_BYTES,
    Place,
    aligned,
    data_offset,
    file_header,
    object_header,
    parse_object_header,
    put_record,
    remove_record,
)
from moonpool.pool.tiers.log_index import BucketUse, Located

BUCKET_MIN, BUCKET_MAX = 64 << 10, 256 << 20
BUCKETS = 32  # so many parts of the limit


def bucket_bytes_of(limit_bytes: int) -> int:
    return min(BUCKET_MAX, max(BUCKET_MIN, limit_bytes // BUCKETS))


class DiskLog(IndexedStore):
    """Owns the folder, one process at a time. Raises SegmentLocked, OSError."""

    medium = "disk"

    def __init__(
        self,
        directory: Path,
        limit_bytes: int,
        *,
        direct: bool = False,
        sync: bool = False,
        boot_id: str = "",
        wall_ms: int = 0,
    ) -> None:
        """`sync`: what counts has reached the medium; without it a crash of the whole machine
        (another `boot_id` at the next start) leaves the folder empty."""
        self.limit_bytes = limit_bytes
        self.bucket_bytes = bucket_bytes_of(limit_bytes)
        self._direct = direct
        self._align = DIRECT_ALIGN if direct else PLAIN_ALIGN
        self._files: dict[int, BucketFile] = {}
        self._aligns: dict[int, int] = {}

        def find() -> Found:
            found = recover(directory, direct, boot_id, wall_ms)
            self._files, self._aligns = found.files, found.aligns
            return found

        super().__init__(directory, sync, boot_id, find)
        self._open_bucket = -1
        self._next_bucket = max(self._index.buckets, default=0) + 1
        self._foreign_bytes = self._look_for_others()

    def usage(self) -> dict[str, int]:
        with self._lock:
            return {
                "objects": len(self._index.objects),
                "size_bytes": self._index.size_bytes,
                "file_bytes": self._taken(),
                "foreign_bytes": self._foreign_bytes,
                "limit_bytes": self.limit_bytes,
                "buckets": len(self._index.buckets),
                **self.counts,
            }

    # Writing: one thread.

    def write(self, entry: Entry, data: Buffer) -> Status:
        head = object_header(entry, self.incarnation)
        length = data_offset(entry, self._align) + entry.size
        length = aligned(length, self._align) if self._direct else length
        try:
            if memoryview(data).nbytes != entry.size:
                return Status.BOUNDS
            if not self._room_for(length, self.limit_bytes - self.bucket_bytes):
                return Status.NO_SPACE
            place = self._append(head, data, length)
            with self._lock:
                record_ = put_record(entry, place, self.incarnation)
                self._log.append(record_, self._sync)
                self._index.put(Located(entry, place))
                self._tidy()
        except OSError as error:
            self._count("failed_writes")
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            return Status.NO_SPACE if full else Status.UNREACHABLE
        return Status.OK

    def _append(self, head: bytes, data: Buffer, length: int) -> Place:
        """Where it lies now; nobody knows of it yet."""
        number = self._bucket_for(length)
        use = self._index.buckets[number]
        place = Place(number, aligned(use.end, self._align), length)
        use.end = place.offset + length  # also when it fails: what may be there is garbage
        self._files[number].write(place.offset, head, data, self._align)
        if self._sync:
            self._files[number].flush()
        return place

    def _bucket_for(self, length: int) -> int:
        use = self._index.buckets.get(self._open_bucket)
        if use is not None and use.end + length <= self.bucket_bytes:
            return self._open_bucket
        self._foreign_bytes = self._look_for_others()
        number = self._next_bucket
        self._next_bucket += 1
        file = BucketFile(bucket_path(self._directory, number), self._direct)
        try:
            file.put(0, file_header(BUCKET_MAGIC, self._align, self.incarnation, number))
            if self._sync:
                flush_folder(self._directory)
        except OSError:
            file.give_up()
            file.path.unlink(missing_ok=True)
            raise
        with self._lock:
            self._files[number], self._aligns[number] = file, self._align
            start = aligned(FILE_HEADER_BYTES, self._align)
            self._index.buckets[number] = BucketUse(start)
            before, self._open_bucket = self._open_bucket, number
            self._give_up_if_empty(before)
        return number

    # Room.

    def _taken(self) -> int:
        """Bytes of all files. Under the lock: an erasure may give a bucket up meanwhile."""
        with self._lock:
            return self._index.file_bytes + self._log.end + self._foreign_bytes

    def _look_for_others(self) -> int:
        """Bytes in the folder that are none of the log's own files."""
        with self._lock:
            own = {bucket_path(self._directory, number) for number in self._files}
        return foreign_bytes(self._directory, own | {self._directory / INDEX_NAME})

    def _room_for(self, length: int, limit: int) -> bool:
        """Copies out and gives up buckets until it fits; False when nothing more would come."""
        while self._taken() + length + self._align > limit:
            start = aligned(FILE_HEADER_BYTES, self._align)
            with self._lock:
                number = self._index.most_garbage(self._open_bucket, start)
                if number is None and self._open_garbage(start):
                    number, self._open_bucket = self._open_bucket, -1
                kept = self._index.in_bucket(number) if number is not None else []
            if number is None or not self._copy_out(kept):
                return False
            with self._lock:
                self._give_up_if_empty(number)
                if number in self._index.buckets:
                    return False
        return True

    def _open_garbage(self, start: int) -> bool:
        use = self._index.buckets.get(self._open_bucket)
        return use is not None and use.garbage(start) > self.bucket_bytes // 2

    def _copy_out(self, kept: list[Located]) -> bool:
        for located in kept:
            entry, old = located
            data = self.read(entry.slot, entry.generation, 0, WHOLE)
            if isinstance(data, Status):
                continue  # erased meanwhile, or corrupt: gone already
            head = object_header(entry, self.incarnation)
            length = data_offset(entry, self._align) + entry.size
            length = aligned(length, self._align) if self._direct else length
            if self._taken() + length > self.limit_bytes:
                return False
            place = self._append(head, data, length)
            with self._lock:
                if self._index.find(entry.slot, entry.generation) is None:
                    self._files[place.bucket].mark_removed(place.offset)
                    continue
                self._log.append(put_record(entry, place, self.incarnation), self._sync)
                self._index.put(Located(entry, place))
            self._count("copied_out")
        return True

    def _give_up_if_empty(self, number: int) -> None:
        use = self._index.buckets.get(number)
        if use is None or use.objects or number == self._open_bucket:
            return
        del self._index.buckets[number], self._aligns[number]
        file = self._files.pop(number)
        file.path.unlink(missing_ok=True)
        file.give_up()

    # Reading and erasing: any thread.

    def read(self, slot: int, generation: int, offset: int, length: int) -> Buffer | Status:
        with self._lock:
            located = self._index.find(slot, generation)
            if located is None or self._closed:
                return Status.MOVED
            file = self._files[located.place.bucket]
            align = self._aligns[located.place.bucket]
            if not file.hold():
                return Status.MOVED
        try:
            data = self._read(file, located, align, offset, length)
        except OSError:
            self._count("failed_reads")
            return Status.UNREACHABLE
        finally:
            file.let_go()
        with self._lock:
            if self._index.find(slot, generation) is None:
                return Status.MOVED
        if data is Status.CORRUPT:
            self._count("corrupt_objects")
            if self.erase(slot, generation) is Status.OK:
                self._lost.append((slot, generation))
        return data

    def _read(
        self, file: BucketFile, located: Located, align: int, offset: int, length: int
    ) -> Buffer | Status:
        entry, place = located
        begin = data_offset(entry, align)
        if length != WHOLE:
            if offset + length > entry.size:
                return Status.BOUNDS
            piece = file.read(place.offset + begin + offset, length)
            return piece if piece.nbytes == length else Status.CORRUPT
        raw = file.read(place.offset, begin + entry.size)
        if raw.nbytes != begin + entry.size:
            return Status.CORRUPT
        if parse_object_header(raw[:begin], self.incarnation) != entry:
            # A removal marks the header first; who reads meanwhile takes that for damage.
            return Status.CORRUPT
        data = raw[begin:]
        return data if crc32c(data) == entry.crc else Status.CORRUPT

    def erase(self, slot: int, generation: int) -> Status:
        with self._lock:
            located = self._index.remove(slot, generation)
            if located is None:
                return Status.MOVED
            if self._tell_removed(located):
                self._give_up_if_empty(located.place.bucket)
            else:
                self._give_up_whole(located.place.bucket)
        return Status.OK

    def _tell_removed(self, located: Located) -> bool:
        """Either in the data or in the index, both if it can be."""
        told = False
        entry, place = located
        with contextlib.suppress(OSError):
            self._files[place.bucket].mark_removed(place.offset)
            if self._sync:
                self._files[place.bucket].flush()
            told = True
        with contextlib.suppress(OSError):
            self._log.append(remove_record(entry.slot, entry.generation), self._sync)
            told = True
        return told

    def _give_up_whole(self, number: int) -> None:
        """Nothing can be written any more: what cannot be marked goes with its file."""
        for located in self._index.in_bucket(number):
            self._index.remove(located.entry.slot, located.entry.generation)
            self._lost.append((located.entry.slot, located.entry.generation))
            self._count("given_up_objects")
        if number == self._open_bucket:
            self._open_bucket = -1
        self._give_up_if_empty(number)

    # The rest.

    def close(self) -> None:
        """All is on the medium afterwards, and said to be, if the medium took it."""
        with self._lock:
            if self._closed:
                return
            flushed = True
            for file in self._files.values():
                try:
                    file.flush()
                except OSError:
                    flushed = False  # another boot of the machine believes nothing here
            self._end(flushed)
            for file in self._files.values():
                file.give_up()

    def destroy(self) -> None:
        """Closed, and nothing left of it."""
        self.close()
        for path in self._directory.glob("*" + BUCKET_SUFFIX):
            path.unlink()
        self._forget_index()
