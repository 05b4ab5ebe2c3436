"""One batch over memory and tiers of which one hangs: each key has an outcome of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from moonpool import aio
from moonpool.pool.pool import Pool
from moonpool.pool.results import Hit, Miss, MissReason
from tests.faults.pool_rig import MIB, Rig, answered_within, counter, eventually, running, stamp

pytestmark = pytest.mark.faults

SIZE = 100_000
KEYS = [f"k{i:02d}" for i in range(60)]  # more than memory holds
TIMEOUT_S = 3.0


@pytest.fixture
def rig() -> Iterator[Rig]:
    """The master names a stopped node on: its lease is long."""
    settings: dict[str, Any] = {"node_lease_ms": 60_000, "nodes_expected": 2, "offload": "write"}
    with running(nodes=2, memory=2 * MIB, disk_size=64 * MIB, **settings) as rig:
        yield rig


def places(rig: Rig, shared_memory: bool) -> dict[str, tuple[str, bool]]:
    """Of each key: the node that it is read from, and whether it lies in memory there."""
    writer = rig.connect()
    for key in KEYS:
        assert writer.put(key, stamp(key, SIZE)).ok
        eventually(lambda: counter(writer, "offload_queue") == 0, "the disk keeps up")
    eventually(lambda: counter(writer, "tier_objects") == len(KEYS), "all are on disk")
    pool = rig.connect(shared_memory=shared_memory)
    found = {}
    for key, hit in zip(KEYS, pool.get_many(KEYS), strict=True):
        assert isinstance(hit, Hit), (key, hit)
        found[key] = (
            hit.node,
            key.encode() in pool._state.cache,
        )  # what lies below is not remembered
    assert len(set(found.values())) == 4, "both nodes have some in memory and some on disk"
    return found


def read(rig: Rig, face: str) -> list[Hit | Miss]:
    if face == "asyncio":
        return list(asyncio.run(awaited(rig.address)))
    pool: Pool = rig.connect(shared_memory=face == "blocking")
    return list(answered_within(TIMEOUT_S, lambda: pool.get_many(KEYS, timeout_s=TIMEOUT_S)))


async def awaited(address: str) -> list[Hit | Miss]:
    async with await aio.connect(address) as pool:
        return list(await pool.get_many(KEYS, timeout_s=TIMEOUT_S))


@pytest.mark.parametrize("face", ["blocking", "remote", "asyncio"])
@pytest.mark.parametrize("stopped", [0, 1])
def test_what_does_not_lie_there_is_read_and_the_rest_says_deadline(
    rig: Rig, face: str, stopped: int
) -> None:
    found = places(rig, face != "remote")
    rig.stop(rig.nodes[stopped])
    for key, answer in zip(KEYS, read(rig, face), strict=True):
        node, in_memory = found[key]
        if node != f"n{stopped}" or (in_memory and face != "remote"):  # mapped memory needs nobody
            assert isinstance(answer, Hit) and answer.data == stamp(key, SIZE), (key, found[key])
        else:
            assert isinstance(answer, Miss), (key, found[key])
            assert answer.reason in (MissReason.DEADLINE, MissReason.UNREACHABLE)
