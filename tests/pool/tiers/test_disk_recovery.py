"""What a disk log believes of its files at the next start, and what it does not."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from moonpool.pool.tiers.base import Notes, Status
from moonpool.pool.tiers.log_format import FILE_HEADER_BYTES, OBJECT_HEADER_BYTES
from tests.pool.tiers.disk_rig import as_killed, bucket, flip, got, made, opened, put


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
