"""Nodes of other sizes join a pool under load and leave it again: no read fails, none is late,
no object is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from moonpool.pool.pool import Pool
from moonpool.pool.results import Hit
from tests.faults.pool_rig import KIB, LATE_S, MIB, Rig, eventually, live_nodes, running, stamp

pytestmark = pytest.mark.faults

TIMEOUT_S = 10.0
SIZE = 60 * KIB
BATCH = 12  # keys that one read asks for


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running(nodes=2, memory=8 * MIB, slow_start_s=0.0) as rig:
        yield rig


class Load:
    """Puts one object after the other, as many as are wanted, and reads the last ones and the
    first ones all the time."""

    def __init__(self, pool: Pool) -> None:
        self.bad: list[object] = []
        self.slowest_s = 0.0
        self.keys: list[str] = []
        self.reads = 0
        self._pool, self._wanted = pool, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            if len(self.keys) < self._wanted:
                key = f"j/{len(self.keys)}"
                if not self._pool.put(key, stamp(key, SIZE)).ok:
                    self.bad.append((key, "not stored"))
                self.keys.append(key)
            began = time.monotonic()
            asked = self.keys[-BATCH:] + self.keys[:BATCH]
            for key, answer in zip(asked, self._pool.get_many(asked), strict=True):
                if not isinstance(answer, Hit) or answer.data != stamp(key, SIZE):
                    self.bad.append((key, answer))
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.reads += 1

    def more(self, objects: int) -> None:
        self._wanted += objects
        seen = self.reads
        eventually(
            lambda: len(self.keys) == self._wanted and self.reads > seen + 2, "the load goes on"
        )


def objects_of(pool: Pool, node: str) -> int:
    segments = pool.stat()["segments"]
    assert isinstance(segments, dict)
    return sum(one["objects"] for one in segments.values() if one["node"] == node)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_nodes_join_and_leave_under_load(rig: Rig, shared_memory: bool) -> None:
    pool = rig.connect()
    reader = rig.connect(shared_memory=shared_memory, timeout_s=TIMEOUT_S)
    with Load(reader) as load:  # 220 objects, 13 MB: they fit without the newcomers
        load.more(30)
        small, large = rig.add_node("small", 3 * MIB), rig.add_node("large", 24 * MIB)
        eventually(lambda: live_nodes(pool) == 4, "they are part of the pool")
        load.more(170)
        assert objects_of(pool, "large") > 20, "what is put goes there, too"
        for node in (small, large):
            eventually(lambda node=node: pool.drain(node.name) == 0, "it is empty")  # type: ignore[misc]
            rig.kill(node)
            load.more(5)
        eventually(lambda: live_nodes(pool) == 2, "they are gone")
        load.more(5)
    assert load.bad == []
    assert load.slowest_s < TIMEOUT_S + LATE_S
    fresh = rig.connect(shared_memory=shared_memory)
    assert all(fresh.get(key) == stamp(key, SIZE) for key in load.keys)
