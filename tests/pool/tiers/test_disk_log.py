import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from moonpool.core.errors import SegmentLocked
from moonpool.pool.tiers import indexed_store
from moonpool.pool.tiers.base import Notes, Status
from moonpool.pool.tiers.disk_log import DiskLog
from moonpool.pool.tiers.index_file import IndexFile
from moonpool.pool.tiers.log_format import FILE_HEADER_BYTES, OBJECT_HEADER_BYTES
from moonpool.pool.tiers.log_index import BucketUse, Located
from tests.pool.tiers.disk_rig import LIMIT, as_killed, bucket, flip, got, made, opened, put


def test_what_was_written_is_read_whole_and_in_pieces(tmp_path: Path) -> None:
    log = opened(tmp_path)
    data = put(log, 5)
    assert got(log, 5) == data
    assert bytes(log.read(5, 1, 100, 50)) == data[100:150]
    assert log.read(5, 1, 990, 50) is Status.BOUNDS
    assert got(log, 5, generation=2) is Status.MOVED
    assert log.entries() == [made(5)[0]]
    log.close()


@pytest.mark.parametrize("direct", [False, True])
def test_everything_is_back_after_a_restart(tmp_path: Path, direct: bool) -> None:
    try:
        log = opened(tmp_path, direct=direct)
    except OSError:
        pytest.skip("no O_DIRECT here")
    wanted = {slot: put(log, slot, size=3000 + slot) for slot in range(50)}
    for slot in range(0, 50, 3):
        assert log.erase(slot, 1) is Status.OK
        del wanted[slot]
    incarnation = log.incarnation
    log.close()
    again = opened(tmp_path, direct=direct)
    assert again.incarnation == incarnation
    assert {entry.slot for entry in again.entries()} == set(wanted)
    assert all(got(again, slot) == data for slot, data in wanted.items())
    again.close()


def test_one_process_owns_a_folder(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(SegmentLocked, match="in use"):
        opened(tmp_path)
    log.close()


def test_a_killed_process_loses_nothing_that_counted(tmp_path: Path) -> None:
    log = opened(tmp_path / "a")
    data = [put(log, slot) for slot in range(20)]
    log.erase(7, 1)
    after = opened(as_killed(tmp_path / "a", tmp_path / "b"))
    assert [got(after, slot) for slot in range(20) if slot != 7] == data[:7] + data[8:]
    assert got(after, 7) is Status.MOVED
    log.close()
    after.close()


def test_a_torn_index_loses_its_last_object_only(tmp_path: Path) -> None:
    log = opened(tmp_path)
    data = [put(log, slot) for slot in range(3)]
    killed = as_killed(tmp_path, tmp_path / "killed")
    log.close()
    os.truncate(killed / "index", (killed / "index").stat().st_size - 5)
    after = opened(killed)
    assert [got(after, slot) for slot in range(3)] == [data[0], data[1], Status.MOVED]
    assert after.counts["index_torn_bytes"] > 0
    assert put(after, 9)  # and it goes on
    after.close()
    again = opened(killed)
    assert {entry.slot for entry in again.entries()} == {0, 1, 9}
    again.close()


def test_a_removed_object_stays_away_though_the_index_lost_its_removal(tmp_path: Path) -> None:
    log = opened(tmp_path)
    put(log, 1)
    put(log, 2)
    before = (tmp_path / "index").stat().st_size
    log.erase(1, 1)
    killed = as_killed(tmp_path, tmp_path / "killed")
    log.close()
    os.truncate(killed / "index", before)
    after = opened(killed)
    assert [entry.slot for entry in after.entries()] == [2]
    assert after.counts["disbelieved_objects"] == 1
    after.close()


def test_a_removed_object_stays_away_though_its_header_lost_the_mark(tmp_path: Path) -> None:
    log = opened(tmp_path)
    put(log, 1)
    put(log, 2)
    data = bucket(tmp_path).read_bytes()
    log.erase(1, 1)
    killed = as_killed(tmp_path, tmp_path / "killed")
    log.close()
    bucket(killed).write_bytes(data)
    after = opened(killed)
    assert [entry.slot for entry in after.entries()] == [2]
    after.close()


def test_damage_inside_the_index_costs_only_what_it_hit(tmp_path: Path) -> None:
    log = opened(tmp_path)
    ends = []
    for slot in range(5):
        ends.append((tmp_path / "index").stat().st_size)
        put(log, slot)
    log.erase(3, 1)
    killed = as_killed(tmp_path, tmp_path / "killed")
    log.close()
    flip(killed / "index", ends[1] + 20)
    after = opened(killed)
    assert sorted(entry.slot for entry in after.entries()) == [0, 2, 4]
    assert after.counts["index_damaged"] == 1
    after.close()


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


def test_a_flipped_bit_in_a_header_is_not_believed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    put(log, 1)
    log.close()
    at = bucket(tmp_path).read_bytes().index(b"MPOB")
    flip(bucket(tmp_path), at + OBJECT_HEADER_BYTES)  # the key's first byte
    after = opened(tmp_path)
    assert after.entries() == []
    assert after.counts["disbelieved_objects"] == 1
    after.close()


def test_a_bucket_cut_short_loses_what_was_in_the_rest(tmp_path: Path) -> None:
    log = opened(tmp_path)
    data = put(log, 1)
    put(log, 2)
    log.close()
    os.truncate(bucket(tmp_path), bucket(tmp_path).stat().st_size - 10)
    after = opened(tmp_path)
    assert [entry.slot for entry in after.entries()] == [1]
    assert got(after, 1) == data
    after.close()


def test_files_of_another_incarnation_are_set_aside(tmp_path: Path) -> None:
    other = opened(tmp_path / "other")
    put(other, 1)
    other.close()
    log = opened(tmp_path / "mine")
    put(log, 1)
    log.close()
    stray = bucket(tmp_path / "other")
    assert stray.name == bucket(tmp_path / "mine").name
    stray.replace(bucket(tmp_path / "mine"))
    after = opened(tmp_path / "mine")
    assert after.counts["quarantined_files"] == 1
    assert (tmp_path / "mine" / "quarantine" / f"{stray.name}.0").exists()
    assert after.entries() == []
    after.close()


def test_buckets_without_an_index_are_nobodys(tmp_path: Path) -> None:
    log = opened(tmp_path)
    put(log, 1)
    log.close()
    flip(tmp_path / "index", FILE_HEADER_BYTES // 2)
    after = opened(tmp_path)
    assert after.entries() == []
    assert after.counts["quarantined_files"] == 2
    assert after.incarnation != log.incarnation
    after.close()


def test_the_limit_is_kept_and_garbage_makes_room(tmp_path: Path) -> None:
    log = opened(tmp_path)
    kept = {}
    for slot in range(1000):  # 10 MB in all, a quarter of them stay
        put(log, slot, size=10_000)
        if slot % 4 == 0:
            kept[slot] = made(slot, size=10_000)[1]
        else:
            log.erase(slot, 1)
        files = [*tmp_path.glob("*.bucket"), tmp_path / "index"]
        assert sum(one.stat().st_size for one in files) <= LIMIT
    assert log.counts["copied_out"] > 0
    assert all(got(log, slot) == data for slot, data in kept.items())
    log.close()
    after = opened(tmp_path)
    assert all(got(after, slot) == data for slot, data in kept.items())
    after.close()


def test_a_full_log_says_so_and_takes_more_after_a_removal(tmp_path: Path) -> None:
    log = opened(tmp_path)
    slot = 0
    while log.write(*made(slot, size=50_000)) is Status.OK:
        slot += 1
    assert slot > 60
    for one in range(10):
        log.erase(one, 1)
    assert log.write(*made(slot, size=50_000)) is Status.OK
    log.close()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a full disk: the kernel refuses what goes beyond."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_no_space_and_hurts_nothing_that_is_there(tmp_path: Path) -> None:
    log = opened(tmp_path)
    data = put(log, 1)
    with files_of_at_most(2000):
        assert log.write(*made(2, size=5000)) is Status.NO_SPACE
        assert log.erase(3, 1) is Status.MOVED
    assert log.counts["failed_writes"] == 1
    assert got(log, 1) == data
    assert got(log, 2) is Status.MOVED
    third = put(log, 3)
    log.close()
    after = opened(tmp_path)
    assert (got(after, 1), got(after, 3)) == (data, third)
    after.close()


def test_a_bucket_that_cannot_be_begun_leaves_no_file_behind(tmp_path: Path) -> None:
    log = opened(tmp_path)
    files, open_files = {*tmp_path.iterdir()}, len(os.listdir("/proc/self/fd"))
    with files_of_at_most(10):
        for slot in range(5):
            assert log.write(*made(slot)) is Status.NO_SPACE
        assert len(os.listdir("/proc/self/fd")) == open_files
        assert {*tmp_path.iterdir()} == files
    assert put(log, 6) == got(log, 6)
    log.close()


def test_an_object_is_removed_though_the_disk_takes_no_byte_more(tmp_path: Path) -> None:
    log = opened(tmp_path)
    put(log, 1)
    put(log, 2)
    with files_of_at_most(1):
        assert log.erase(1, 1) is Status.OK
    killed = as_killed(tmp_path, tmp_path / "killed")
    log.close()
    after = opened(killed)
    assert 1 not in {entry.slot for entry in after.entries()}
    after.close()


def test_a_write_that_failed_to_reach_the_index_is_not_found_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer was told that it failed: nobody would ever remove it."""
    log = opened(tmp_path / "a", sync=True)
    kept = put(log, 1)
    index = (tmp_path / "a" / "index").stat().st_ino
    flush = os.fdatasync

    def broken(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == index:
            raise OSError(errno.EIO, "the disk does not answer")
        flush(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        assert log.write(*made(2)) is Status.UNREACHABLE
        assert log.erase(2, 1) is Status.MOVED  # as its agent does
    later = opened(as_killed(tmp_path / "a", tmp_path / "b"), sync=True)
    assert (got(later, 1), got(later, 2)) == (kept, Status.MOVED)
    assert put(log, 3) == got(log, 3)
    log.close()
    later.close()


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


def test_away_for_too_long_comes_back_empty(tmp_path: Path) -> None:
    log = opened(tmp_path)
    put(log, 1)
    log.save(Notes(heard_ms=1_000_000, forget_ms=60_000))
    log.close()
    late = as_killed(tmp_path, tmp_path / "late")
    soon = opened(tmp_path, wall_ms=1_050_000)
    assert len(soon.entries()) == 1
    soon.close()
    after = opened(late, wall_ms=1_060_001)
    assert after.entries() == []
    assert after.why_empty == "away for too long"
    assert after.incarnation != log.incarnation
    after.close()


@pytest.mark.parametrize(("sync", "left"), [(False, 0), (True, 1)])
def test_a_crash_of_the_machine_is_survived_with_sync_only(
    tmp_path: Path, sync: bool, left: int
) -> None:
    log = opened(tmp_path, sync=sync, boot_id="one")
    put(log, 1)
    crashed = as_killed(tmp_path, tmp_path / "crashed")
    same = as_killed(tmp_path, tmp_path / "same")
    log.close()
    for path, boot_id, wanted in (
        (crashed, "two", left),
        (same, "one", 1),  # the process alone was killed
        (tmp_path, "two", 1),  # closed in order
    ):
        after = opened(path, boot_id=boot_id)
        assert len(after.entries()) == wanted
        after.close()


def test_a_log_whose_data_was_not_flushed_is_not_said_to_be_closed_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path / "a", boot_id="one")
    data = put(log, 1)
    unwilling = bucket(tmp_path / "a").stat().st_ino
    flush = os.fdatasync

    def broken(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == unwilling:
            raise OSError(errno.EIO, "the disk does not answer")
        flush(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        log.close()
    crashed = opened(as_killed(tmp_path / "a", tmp_path / "b"), boot_id="two")
    assert crashed.entries() == [] and crashed.why_empty == "the machine went down under it"
    crashed.close()
    restarted = opened(tmp_path / "a", boot_id="one")
    assert got(restarted, 1) == data
    restarted.close()


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


def test_an_index_that_does_not_say_its_boot_is_not_believed(tmp_path: Path) -> None:
    """What says it was hit: whether the machine went down under the log nobody can know."""
    log = opened(tmp_path / "a", boot_id="one")
    put(log, 1)
    killed = as_killed(tmp_path / "a", tmp_path / "b")
    index = killed / "index"
    flip(index, index.read_bytes().index(log._opened) + len(log._opened) - 1)
    after = opened(killed, boot_id="two")
    assert after.entries() == [] and "which boot" in after.why_empty
    put(log, 2)
    log.close()  # all has reached the medium: then it does not matter
    index = tmp_path / "a" / "index"
    flip(index, index.read_bytes().index(log._opened) + len(log._opened) - 1)
    closed = opened(tmp_path / "a", boot_id="two")
    assert len(closed.entries()) == 2
    after.close()
    closed.close()


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
