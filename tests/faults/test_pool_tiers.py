"""The disk tier of real nodes: what memory gives up is read from there, also after every kill."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool.dashboard.metrics import hits_by_tier
from moonpool.pool.pool import Pool
from moonpool.pool.results import Miss, MissReason, RemoveStatus
from tests.faults.pool_rig import MIB, Rig, counter, eventually, running, seed, stamp, usage

pytestmark = pytest.mark.faults

SIZE = 100_000
KEYS = [f"k{i:03d}" for i in range(150)]  # twice what memory holds


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running(nodes=1, memory=8 * MIB, disk_size=64 * MIB, offload="write") as rig:
        yield rig


def fill(pool: Pool, keys: list[str]) -> None:
    for key in keys:
        assert pool.put(key, stamp(key, SIZE)).ok
        eventually(lambda: counter(pool, "offload_queue") < 32, "the disk keeps up")
    eventually(lambda: counter(pool, "tier_objects") == len(keys), "all are on disk")


def assert_whole(pool: Pool, keys: list[str]) -> None:
    for key in keys:
        assert pool.get(key) == stamp(key, SIZE), key


def test_reads_fall_to_disk_and_outlive_node_and_master(rig: Rig) -> None:
    pool = rig.connect()
    fill(pool, KEYS)
    assert counter(pool, "demoted") > 60
    assert counter(pool, "evicted_objects") == 0
    assert_whole(pool, KEYS)
    removed, kept = KEYS[::10], [key for key in KEYS if key not in KEYS[::10]]
    for key in removed:
        assert pool.remove(key) is RemoveStatus.REMOVED
    rig.kill(rig.nodes[0], rig.master)
    rig.restart()
    after = rig.connect()
    eventually(lambda: counter(after, "objects") == len(kept), "all are known again")
    assert_whole(after, kept)
    assert after.exists(removed) == [False] * len(removed)


def test_a_range_and_a_view_of_what_is_on_disk_only(rig: Rig) -> None:
    pool = rig.connect()
    fill(pool, KEYS)
    hit = pool.get_range(KEYS[0], 1000, 500)
    assert not isinstance(hit, Miss) and hit == stamp(KEYS[0], SIZE)[1000:1500]
    with pool.view(KEYS[1]) as data:
        assert data is not None and bytes(data) == stamp(KEYS[1], SIZE)


def test_a_node_killed_under_load_brings_back_nothing_removed_and_no_wrong_byte(rig: Rig) -> None:
    draw = seed()
    loads = [rig.role("load", f"c{i}", draw.randrange(1 << 30)) for i in range(2)]
    for load in loads:
        load.expect("ready")
    put: dict[str, int] = {}
    removed: set[str] = set()
    said = 0
    for _ in range(3):
        pool = rig.connect()
        for load in loads:
            for _ in range(150):
                said += _follow(load.line(), put, removed)
        rig.kill(rig.nodes[0])
        rig.restart()
    for load in loads:
        for line in load.kill():
            _follow(line, put, removed)
    pool = rig.connect()
    for key in removed:
        assert pool.get(key) is None, key
    for key, size in put.items():
        data = pool.get(key)
        assert data is None or data == stamp(key, size), key
    assert counter(pool, "offloaded") > 0


def _follow(line: list[str], put: dict[str, int], removed: set[str]) -> int:
    assert line[0] != "W", line
    if line[0] == "P":
        put[line[1]] = int(line[2])
    elif line[0] == "R":
        put.pop(line[1], None)
    elif line[0] == "r":
        removed.add(line[1])
    return 1


def test_a_flipped_bit_on_disk_is_a_miss_and_is_counted(rig: Rig) -> None:
    pool = rig.connect()
    fill(pool, KEYS)
    assert counter(pool, "demoted") > 0
    victim = KEYS[0]
    for path in (rig.directory / "disk").rglob("*.bucket"):
        _flip(path, stamp(victim, SIZE))
    answer = pool.get_many([victim])[0]
    assert isinstance(answer, Miss) and answer.reason is MissReason.CORRUPT
    eventually(lambda: not pool.exists(victim), "nobody is sent there again")
    eventually(lambda: usage(pool).get("corrupt_objects") == 1, "it is counted")
    assert_whole(pool, KEYS[1:3])


def _flip(path: Path, data: bytes) -> None:
    at = path.read_bytes().find(data)
    if at >= 0:
        with path.open("r+b") as file:
            file.seek(at + SIZE // 2)
            byte = file.read(1)[0]
            file.seek(at + SIZE // 2)
            file.write(bytes([byte ^ 1]))


def held_bytes(folder: Path) -> int:
    """Of its files; the tier goes on removing some."""
    total = 0
    for path in folder.rglob("*.*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_a_full_disk_slows_no_put_and_makes_no_promise_it_cannot_keep() -> None:
    with running(nodes=1, memory=8 * MIB, disk_size=6 * MIB, offload="write") as rig:
        pool = rig.connect()
        for key in KEYS:
            assert pool.put(key, stamp(key, SIZE)).ok
        eventually(lambda: counter(pool, "offload_queue") == 0, "the disk has had its turn")
        for key, there in zip(KEYS, pool.exists(KEYS), strict=True):
            data = pool.get(key)
            assert data == (stamp(key, SIZE) if there else None), key
        assert held_bytes(rig.directory / "disk") <= 6 * MIB
        assert counter(pool, "tier_objects") > 20


def test_what_is_read_again_comes_back_to_memory(rig: Rig) -> None:
    pool = rig.connect()
    fill(pool, KEYS)
    for _ in range(2):
        assert pool.get(KEYS[0]) == stamp(KEYS[0], SIZE)
    pool.exists(KEYS[0])  # reads are reported with the next request
    eventually(lambda: counter(pool, "promoted") >= 1, "it is in memory again")
    with pool.view(KEYS[0]) as data:
        assert data is not None and bytes(data) == stamp(KEYS[0], SIZE)


def test_hits_are_counted_once_by_tier(rig: Rig) -> None:
    """R89: five objects in memory and three on disk are five and three."""
    pool = rig.connect()
    fill(pool, KEYS)
    pool.flush()
    before = hits_by_tier(pool.stat())
    assert_whole(pool, KEYS[:3] + KEYS[-5:])
    pool.flush()
    after = hits_by_tier(pool.stat())
    grown = {tier: after[tier] - before[tier] for tier in after}
    assert grown == {"memory": 5, "vram": 0, "disk": 3, "remote": 0}


def test_three_levels_memory_disk_and_an_object_store() -> None:
    with running(nodes=1, memory=4 * MIB, disk_size=8 * MIB, remote=True, offload="write") as rig:
        pool = rig.connect()
        for key in KEYS:
            assert pool.put(key, stamp(key, SIZE)).ok
            # Memory has room for 40, and what it gives up before its turn comes is copied no more.
            eventually(lambda: under_way(pool) < 16, "the tiers keep up")
        eventually(lambda: objects_on(pool, "remote") == len(KEYS), "all are there")
        assert 20 < objects_on(pool, "disk") < len(KEYS)
        assert_whole(pool, KEYS)
        assert counter(pool, "evicted_objects") == 0
        rig.kill(rig.nodes[0], rig.master)
        rig.restart()
        after = rig.connect()
        eventually(lambda: counter(after, "objects") == len(KEYS), "all are known again")
        assert_whole(after, KEYS)


def under_way(pool: Pool) -> int:
    return counter(pool, "offload_queue") + counter(pool, "copies_open")


def objects_on(pool: Pool, medium: str) -> int:
    segments = pool.stat()["segments"]
    assert isinstance(segments, dict)
    return sum(one["objects"] for one in segments.values() if one["medium"] == medium)
