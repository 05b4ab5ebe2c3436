"""Segments mounted and unmounted at running nodes, under load: no read fails, no object is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moonpool.core.errors import BadInput, MoonpoolError, NotReady
from moonpool.pool.node_control import control_of, tell_node
from moonpool.pool.pool import Pool
from moonpool.pool.results import Hit, RemoveStatus
from tests.faults.pool_rig import KIB, MIB, Rig, eventually, live_nodes, running, stamp

pytestmark = pytest.mark.faults

SIZES = {f"m/{i}": 100 * KIB + i for i in range(100)}


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running(nodes=2, memory=8 * MIB) as rig:
        yield rig


def tell(rig: Rig, do: str, **order: Any) -> Any:
    return tell_node(control_of(rig.directory, "n0"), 60.0, do=do, **order)


def mounted(rig: Rig) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tell(rig, "mounts")["segments"]
    return found


def served(pool: Pool, segments: int) -> None:
    eventually(lambda: live_nodes(pool) == segments, f"{segments} segments serve")


class Reader:
    """Reads all the time; what was wrong or missed."""

    def __init__(self, pool: Pool, sizes: dict[str, int]) -> None:
        self.bad: list[object] = []
        self.reads = 0
        self._stop = threading.Event()
        self._pool, self._sizes = pool, sizes
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            answers = self._pool.get_many(list(self._sizes))
            for (key, size), answer in zip(self._sizes.items(), answers, strict=True):
                if not isinstance(answer, Hit) or answer.data != stamp(key, size):
                    self.bad.append((key, answer))
            self.reads += 1


@pytest.mark.parametrize("shared_memory", [True, False])
def test_more_memory_and_less_again_under_reads(rig: Rig, shared_memory: bool) -> None:
    pool = rig.connect(shared_memory=shared_memory)
    before = capacity(pool)
    made = tell(rig, "mount", size=12 * MIB)["segment"]
    assert (made["segment"], made["capacity_bytes"]) == (2, 12 * MIB)
    served(pool, 3)
    assert capacity(pool) == before + 12 * MIB
    for key, size in SIZES.items():
        assert pool.put(key, stamp(key, size)).ok
    assert mounted(rig)[0]["objects"] > 0
    with Reader(rig.connect(shared_memory=shared_memory), SIZES) as reader:
        assert tell(rig, "unmount", segment=2)["segment"]["state"] == "leaving"
        eventually(lambda: mounted(rig) == [], "the segment is given back")
        seen = reader.reads
        eventually(lambda: reader.reads > seen + 2, "read on")
    assert reader.bad == []
    assert capacity(pool) == before and live_nodes(pool) == 2
    assert not list(rig.directory.glob("n0@*"))
    fresh = rig.connect(shared_memory=shared_memory)
    assert all(fresh.get(key) == stamp(key, size) for key, size in SIZES.items())


def drains(pool: Pool) -> bool:
    segments = pool.stat()["segments"]
    assert isinstance(segments, dict)
    return any(segment["draining"] for segment in segments.values())


def capacity(pool: Pool) -> int:
    value = pool.stat()["capacity_bytes"]
    assert isinstance(value, int)
    return value


def test_without_room_elsewhere_it_stays_and_can_take_part_again(rig: Rig) -> None:
    pool = rig.connect()
    tell(rig, "mount", size=12 * MIB)
    served(pool, 3)
    for key in [f"full/{i}" for i in range(26)]:
        assert pool.put(key, stamp(key, MIB - 4096), pin="hard").ok
    tell(rig, "unmount", segment=2)
    eventually(lambda: drains(pool), "it is emptied")
    for _ in range(20):  # longer than an empty one takes to go
        assert mounted(rig)[0]["objects"] > 0
        time.sleep(0.05)
    assert tell(rig, "unmount", segment=2, stay=True)["segment"]["state"] == "serving"
    for i in range(26):
        assert pool.get(f"full/{i}") == stamp(f"full/{i}", MIB - 4096)
    assert pool.remove([f"full/{i}" for i in range(26)]) == [RemoveStatus.REMOVED] * 26
    assert pool.put("again", stamp("again", 5 * MIB)).ok


@pytest.mark.parametrize("who", ["master", "node"])
def test_it_outlives_a_kill_of_its_node_and_leaves_under_a_new_master(rig: Rig, who: str) -> None:
    pool = rig.connect()
    tell(rig, "mount", size=12 * MIB)
    served(pool, 3)
    for key, size in SIZES.items():
        assert pool.put(key, stamp(key, size)).ok
    if who == "master":
        tell(rig, "unmount", segment=2)
        rig.kill(rig.master)
    else:
        rig.kill(rig.node("n0"))
    rig.restart()

    def whole() -> bool:
        try:
            return all(pool.get(key) == stamp(key, size) for key, size in SIZES.items())
        except MoonpoolError:
            return False

    eventually(whole, "all is readable again")
    if who == "node":
        assert [one["capacity_bytes"] for one in mounted(rig)] == [12 * MIB]
        tell(rig, "unmount", segment=2)
    eventually(lambda: mounted(rig) == [], "the segment is given back")
    assert whole()


def test_a_stay_that_no_master_hears_is_no_success_and_may_be_said_again(rig: Rig) -> None:
    pool = rig.connect()
    tell(rig, "mount", size=12 * MIB)
    served(pool, 3)
    for key, size in SIZES.items():
        assert pool.put(key, stamp(key, size)).ok
    rig.kill(rig.master)

    def unheard() -> bool:
        try:
            tell(rig, "unmount", segment=2)  # begins, whoever is there
            tell(rig, "unmount", segment=2, stay=True)
        except NotReady:
            return True
        return False

    eventually(unheard, "the node has seen that its master is away")
    rig.restart()
    served(pool, 3)
    assert tell(rig, "unmount", segment=2, stay=True)["segment"]["state"] == "serving"
    assert not drains(pool)


def test_what_cannot_be_is_said(rig: Rig) -> None:
    with pytest.raises(BadInput):
        tell(rig, "unmount", segment=2)
    with pytest.raises(BadInput):
        tell(rig, "mount", size=-1)
    with pytest.raises(BadInput):
        tell(rig, "shred")
    with pytest.raises(MoonpoolError):
        tell(rig, "mount", size=1 << 50)
    assert mounted(rig) == [] and not list(Path(rig.directory).glob("n0@*"))
    with pytest.raises(BadInput):
        control_of(rig.directory, "")
