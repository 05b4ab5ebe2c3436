"""P6 in full: what lost a node is copied anew; and a node is emptied without a miss."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from moonpool.pool.pool import Pool
from moonpool.pool.results import Hit
from tests.faults.pool_rig import MIB, Rig, eventually, live_nodes, put_each, running, stamp

pytestmark = pytest.mark.faults

SIZES = {f"k/{i}": 1 + 3001 * i for i in range(40)}


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running(nodes=3, memory=16 * MIB, repair_delay_s=0.3) as rig:
        yield rig


def all_hit(pool: Pool) -> None:
    for (key, size), answer in zip(SIZES.items(), pool.get_many(list(SIZES)), strict=True):
        assert isinstance(answer, Hit), f"{key}: {answer}"
        assert answer.data == stamp(key, size), key


def held(pool: Pool) -> dict[str, int]:
    """Copies on each node that is alive."""
    segments = pool.stat()["segments"]
    assert isinstance(segments, dict)
    return {one["node"]: one["objects"] for one in segments.values() if one["alive"]}


def whole(pool: Pool) -> bool:
    return sum(held(pool).values()) == 2 * len(SIZES) and not pool.stat()["copies_open"]


def test_after_the_repair_another_node_may_go(rig: Rig) -> None:
    pool = rig.connect(shared_memory=False)
    put_each(pool, SIZES, replicas=2)
    rig.kill(rig.nodes[0])
    eventually(lambda: live_nodes(pool) == 2, "the node is given up")
    eventually(lambda: whole(pool), "every object has two copies again")
    rig.kill(rig.nodes[1])
    all_hit(rig.connect(shared_memory=False))


def test_a_node_is_drained_under_load_without_a_miss(rig: Rig) -> None:
    pool = rig.connect()
    put_each(pool, SIZES)
    over = threading.Event()
    misses: list[object] = []

    def read() -> None:
        reader = rig.connect()
        while not over.is_set():
            answers = reader.get_many(list(SIZES))
            misses.extend(one for one in answers if not isinstance(one, Hit))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        victim = rig.nodes[1].name
        eventually(lambda: pool.drain(victim) == 0, "the node is empty")
    finally:
        over.set()
        thread.join()
    assert misses == []
    assert held(pool)[victim] == 0 and sum(held(pool).values()) == len(SIZES)
    rig.kill(rig.nodes[1])
    all_hit(pool)
