"""The disk tier's limit, over kills and restarts and with others' files in its folder, and a disk
that is full before it is reached."""

from __future__ import annotations

import os
from pathlib import Path

from moonpool.pool.tiers.base import Status
from tests.pool.tiers.disk_rig import LIMIT, as_killed, files_of_at_most, got, made, opened, put


def held_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def test_the_limit_holds_over_kills_and_counts_what_others_put_there(tmp_path: Path) -> None:
    """R59: written four times over, killed, written again, a stranger's file in the folder."""
    folder = tmp_path / "a"
    foreign = LIMIT // 2
    kept: dict[int, tuple[int, bytes]] = {}  # by slot: generation and bytes, the oldest first
    for life in range(1, 4):
        log = opened(folder)
        if life == 3:
            (folder / "core.1234").write_bytes(bytes(foreign))
        for slot in range(4 * LIMIT // 50_000):
            entry, data = made(slot, generation=life, size=50_000)
            if slot in kept:
                log.erase(slot, kept.pop(slot)[0])
            while (status := log.write(entry, data)) is Status.NO_SPACE and kept:
                oldest = next(iter(kept))
                log.erase(oldest, kept.pop(oldest)[0])
            if status is Status.OK:
                kept[slot] = life, data
            if life < 3 or slot >= LIMIT // 50_000:  # it is noticed with the next bucket
                assert held_bytes(folder) <= LIMIT, (life, slot)
        assert len(kept) > 10
        assert all(got(log, slot, generation) == data for slot, (generation, data) in kept.items())
        assert log.usage()["foreign_bytes"] == (foreign if life == 3 else 0)
        folder = as_killed(folder, tmp_path / f"life{life}")
        log.close()


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
