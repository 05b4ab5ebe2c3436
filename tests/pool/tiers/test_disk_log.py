"""A disk log while it runs: what is read, what it remembers, who holds its lock."""

import errno
from pathlib import Path
from typing import Any

import pytest

from moonpool.core.errors import SegmentLocked
from moonpool.pool.tiers import indexed_store
from moonpool.pool.tiers.base import Notes, Status
from moonpool.pool.tiers.disk_log import DiskLog
from moonpool.pool.tiers.index_file import IndexFile
from moonpool.pool.tiers.log_index import BucketUse, Located
from tests.pool.tiers.disk_rig import bucket, flip, got, made, opened, put


def test_what_was_written_is_read_whole_and_in_pieces(tmp_path: Path) -> None:
    log = opened(tmp_path)
    data = put(log, 5)
    assert got(log, 5) == data
    assert bytes(log.read(5, 1, 100, 50)) == data[100:150]
    assert log.read(5, 1, 990, 50) is Status.BOUNDS
    assert got(log, 5, generation=2) is Status.MOVED
    assert log.entries() == [made(5)[0]]
    log.close()


def test_one_process_owns_a_folder(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(SegmentLocked, match="in use"):
        opened(tmp_path)
    log.close()


def test_a_flipped_bit_in_the_data_is_found_by_the_reader(tmp_path: Path) -> None:
    log = opened(tmp_path)
    put(log, 1)
    data = put(log, 2)
    log.close()
    raw = bucket(tmp_path).read_bytes()
    flip(bucket(tmp_path), raw.index(made(1)[1]) + 500)
    after = opened(tmp_path)
    assert got(after, 1) is Status.CORRUPT
    assert got(after, 1) is Status.MOVED  # it is not kept
    assert got(after, 2) == data
    assert after.counts["corrupt_objects"] == 1
    after.close()


class GuardedBuckets(dict[int, BucketUse]):
    """Who walks over them holds the log's lock: an erasure in another thread takes some away."""

    def __init__(self, log: DiskLog) -> None:
        super().__init__(log._index.buckets)
        self._lock: Any = log._lock

    def values(self) -> Any:
        assert self._lock._is_owned()
        return super().values()

    def items(self) -> Any:
        assert self._lock._is_owned()
        return super().items()


def test_buckets_are_walked_over_under_the_lock_only(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log._index.buckets = GuardedBuckets(log)
    for slot in range(150):  # beyond the limit: some are copied out
        log.write(*made(slot, size=30_000))
        if slot % 4:
            log.erase(slot - 10, 1)
    assert log.usage()["copied_out"] > 0
    log.close()


def test_notes_outlive_the_process_and_the_rewriting_of_the_index(tmp_path: Path) -> None:
    log = DiskLog(tmp_path, 64 << 20)
    log.save(Notes(term=7, instance=b"i" * 16, tombstones={b"d" * 16: (3, 4)}))
    put(log, 0, size=10)
    for generation in range(2, 14_000):
        log.erase(0, generation - 1)
        put(log, 0, generation, size=10)
    assert log.counts["index_rewrites"] > 0
    log.close()
    after = DiskLog(tmp_path, 64 << 20)
    assert after.notes.term == 7
    assert after.notes.tombstones == {b"d" * 16: (3, 4)}
    assert [entry.generation for entry in after.entries()] == [13_999]
    after.close()


def test_notes_alone_do_not_let_the_index_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexed_store, "INDEX_SLACK", 1000)
    log = opened(tmp_path)
    at_first = log._log.end
    for term in range(200):
        log.save(Notes(term=term, instance=b"i" * 16))
    assert log.counts["index_rewrites"] > 0
    assert log._log.end < 4 * at_first + 1000
    log.close()
    after = opened(tmp_path)
    assert after.notes.term == 199
    after.close()


def test_an_index_that_cannot_be_written_anew_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written counts, and is said to."""
    monkeypatch.setattr(indexed_store, "INDEX_SLACK", 0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    log = opened(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(IndexFile, "create", full)
        data = [put(log, slot) for slot in range(20)]
        assert log.counts["failed_index_rewrites"] > 0
    log.close()
    after = opened(tmp_path)
    assert [got(after, slot) for slot in range(20)] == data
    after.close()


class Unwalked(dict[int, Located]):
    """A million objects: who holds the lock for a walk over them keeps every reader waiting."""

    def values(self) -> Any:
        raise AssertionError("all objects were looked at")


def test_what_is_in_a_bucket_is_known_without_a_walk_over_all(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log._index.objects = Unwalked(log._index.objects)
    for slot in range(150):  # beyond the limit: some are copied out
        log.write(*made(slot, size=30_000))
        if slot % 4:
            log.erase(slot - 10, 1)
    assert log.usage()["copied_out"] > 0
    told = {one: log._index.in_bucket(one) for one in log._index.buckets}
    assert all(place.bucket == number for number, some in told.items() for _, place in some)
    found = [entry.slot for some in told.values() for entry, _ in some]
    assert sorted(found) == sorted(log._index.objects)
    log.close()
