"""A master with a snapshot is killed: it spares nodes their reports and changes nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.pool_rig import Rig, counter, eventually, put_each, running, stamp
from tests.faults.test_pool_kills import none_there, read_all, settled

pytestmark = pytest.mark.faults

INTERVAL_S = 0.2


def path_of(rig: Rig) -> Path:
    return rig.directory / "catalog.snapshot"


def written(rig: Rig) -> None:
    """Another one than there was. Where nothing happens none is written."""
    pool = rig.connect(cache_entries_max=0)

    def number() -> int:
        assert pool.put("poke", b"again", replace=True).ok
        return path_of(rig).stat().st_ino if path_of(rig).exists() else 0

    before = number()
    eventually(lambda: number() not in (0, before), "the next snapshot")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    file = tmp_path / "catalog.snapshot"
    with running(snapshot=str(file), snapshot_interval_s=INTERVAL_S) as rig:
        rig.directory = tmp_path
        yield rig


def restarted(rig: Rig) -> None:
    rig.kill(rig.master)
    rig.restart()


def test_killed_it_keeps_all_and_brings_nothing_back(rig: Rig) -> None:
    pool = rig.connect()
    sizes = {f"kept/{i}": 97 * i for i in range(120)}
    gone, late = [f"gone/{i}" for i in range(20)], [f"late/{i}" for i in range(20)]
    put_each(pool, sizes)
    put_each(pool, dict.fromkeys(gone + late, 500))
    pool.remove(gone)
    written(rig)
    written(rig)  # begun after the last removal
    pool.remove(late)  # perhaps after the last snapshot
    assert pool.put("after", stamp("after", 900)).ok
    restarted(rig)
    settled(rig, pool)
    assert counter(pool, "restored_segments") == 2
    for reader in (pool, rig.connect(shared_memory=False)):
        read_all(reader, sizes | {"after": 900})
        none_there(reader, gone + late)
    assert pool.put("later", stamp("later", 900)).ok


def test_killed_while_it_writes_under_load_again_and_again(rig: Rig) -> None:
    pool = rig.connect()
    there: dict[str, int] = {}
    for life in range(4):
        for number in range(60):
            key = f"{life}/{number}"
            assert pool.put(key, stamp(key, 700)).ok
            there[key] = 700
            if number % 3 == 0:
                pool.remove([key])
                del there[key]
        restarted(rig)
        settled(rig, pool)
        read_all(pool, there)
        none_there(pool, [f"{life}/{number}" for number in range(0, 60, 3)])


@pytest.mark.parametrize("damage", ["cut", "flipped", "nothing"])
def test_a_damaged_snapshot_costs_nothing_but_time(rig: Rig, damage: str) -> None:
    pool = rig.connect()
    sizes = {f"kept/{i}": 97 * i for i in range(60)}
    put_each(pool, sizes)
    written(rig)
    written(rig)
    rig.kill(rig.master)
    data = bytearray(path_of(rig).read_bytes())
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
    path_of(rig).write_bytes(data)
    rig.restart()
    settled(rig, pool)
    read_all(pool, sizes)
    assert (counter(pool, "restored_segments") == 2) == (damage == "nothing")


def test_what_was_removed_while_a_node_was_away_stays_removed(rig: Rig) -> None:
    pool = rig.connect()
    sizes = {f"k/{i}": 300 + i for i in range(40)}
    put_each(pool, sizes, replicas=2)
    gone, kept = list(sizes)[:20], dict(list(sizes.items())[20:])
    written(rig)
    written(rig)
    old = path_of(rig).read_bytes()  # as if no later one had been written
    node = rig.nodes[0]
    rig.stop(node)
    pool.remove(gone)
    rig.kill(rig.master)
    path_of(rig).write_bytes(old)
    rig.restart()
    rig.wake(node.pid)
    settled(rig, pool)
    none_there(pool, gone)
    read_all(pool, kept)


def test_ended_in_peace_it_writes_a_last_one(tmp_path: Path) -> None:
    file = tmp_path / "catalog.snapshot"
    with running(snapshot=str(file), snapshot_interval_s=3600) as rig:
        pool = rig.connect()
        sizes = {f"kept/{i}": 97 * i for i in range(60)}
        put_each(pool, sizes)
        eventually(lambda: all(s["usage"] for s in pool.stat()["segments"].values()), "reports")  # type: ignore[attr-defined]
        os.kill(rig.master.pid, signal.SIGTERM)
        rig.master.process.wait()
        assert file.stat().st_mode & 0o777 == 0o600
        rig.restart()
        settled(rig, pool)
        assert counter(pool, "restored_segments") == 2
        read_all(pool, sizes)
