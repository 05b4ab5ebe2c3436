"""P1, P6, P11: a node is stopped while its copies are read by the network. Others answer within a
fraction of the deadline, and no late answer reaches the caller's memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from moonpool.core.sections import ClientConfig
from moonpool.pool.aio import AsyncPool
from moonpool.pool.aio_shell import AsyncShell
from moonpool.pool.gathering import RowsWanted
from moonpool.pool.pool import Pool
from moonpool.pool.results import Hit
from tests.faults.pool_rig import Rig, eventually, live_nodes, put_each, running, stamp

pytestmark = pytest.mark.faults

DEADLINE_S = 20.0
SOON_S = 8.0  # less than half of the deadline, when fail-over without a hedge would begin
SIZES = {f"k/{i}": 40_000 + i for i in range(24)}


@pytest.fixture
def rig() -> Iterator[Rig]:
    # The master goes on naming the stopped node for longer than any of these reads takes.
    with running(nodes=2, node_lease_ms=60_000, nodes_expected=2) as rig:
        yield rig


def first_node(pool: Pool, key: bytes) -> str:
    return pool._state.cache[key].replicas[0].port.node


def warm(pool: Pool) -> str:
    """Reads all, so that connections are there; which node's copies come first in most."""
    assert all(isinstance(answer, Hit) for answer in pool.get_many(list(SIZES)))
    firsts = [first_node(pool, key.encode()) for key in SIZES]
    return max(set(firsts), key=firsts.count)


def test_a_stopped_nodes_objects_come_from_the_others(rig: Rig) -> None:
    pool = rig.connect(shared_memory=False, timeout_s=DEADLINE_S)
    put_each(pool, SIZES, replicas=2)
    node = rig.node(warm(pool))
    rig.stop(node)
    buffers = [bytearray(size + 16) for size in SIZES.values()]
    began = time.monotonic()
    answers = pool.get_many_into(list(SIZES), buffers)
    assert time.monotonic() - began < SOON_S
    kept = [bytes(buffer) for buffer in buffers]
    for (key, size), answer, was in zip(SIZES.items(), answers, kept, strict=True):
        assert isinstance(answer, Hit) and answer.node != node.name
        assert was[:size] == stamp(key, size) and was[size:] == bytes(16)
    assert pool._state.hedging.won > 0
    for buffer in buffers:
        buffer[:] = bytes(len(buffer))  # a late answer would show
    rig.wake(node.pid)
    eventually(lambda: live_nodes(pool) == 2, "both nodes heard")
    assert pool.get("k/0") == stamp("k/0", SIZES["k/0"])
    assert not any(any(buffer) for buffer in buffers), "written after the call had ended"


def test_switched_off_the_deadline_is_halved_as_ever(rig: Rig) -> None:
    pool = rig.connect(shared_memory=False, timeout_s=3.0, hedge_ms=-1)
    put_each(pool, SIZES, replicas=2)
    node = rig.node(warm(pool))
    rig.stop(node)
    began = time.monotonic()
    answers = pool.get_many(list(SIZES))
    assert time.monotonic() - began >= 1.5
    assert all(isinstance(answer, Hit) for answer in answers)
    rig.wake(node.pid)


def test_awaited_reads_are_hedged_and_end_quiet_when_cancelled(rig: Rig) -> None:
    asyncio.run(hedged(rig))


async def hedged(rig: Rig) -> None:
    config = ClientConfig(
        master=rig.address, shared_memory=False, timeout_ms=int(DEADLINE_S * 1000)
    )
    plain = rig.connect(shared_memory=False, timeout_s=DEADLINE_S)
    put_each(plain, SIZES, replicas=2)
    pool = AsyncPool(AsyncShell(config), config)
    try:
        assert all(isinstance(a, Hit) for a in await pool.get_many(list(SIZES)))
        node = rig.node(warm(plain))
        rig.stop(node)
        answers = await asyncio.wait_for(pool.get_many(list(SIZES)), SOON_S)
        for (key, size), answer in zip(SIZES.items(), answers, strict=True):
            assert isinstance(answer, Hit) and answer.data == stamp(key, size)
        rig.wake(node.pid)
    finally:
        await pool.close()


def test_copies_of_one_batch_may_be_large(rig: Rig) -> None:
    """Frames of megabytes, of which the stopped node may have sent a part."""
    pool = rig.connect(shared_memory=False, timeout_s=DEADLINE_S)
    sizes = {f"big/{i}": (1 << 20) + i for i in range(3)}
    put_each(pool, sizes, replicas=2)
    assert all(isinstance(answer, Hit) for answer in pool.get_many(list(sizes)))
    for _ in range(3):
        for node in rig.nodes:
            rig.stop(node)
            read = partial(pool.get_many, list(sizes))
            for (key, size), answer in zip(sizes.items(), read(), strict=True):
                assert isinstance(answer, Hit) and answer.data == stamp(key, size)
            rig.wake(node.pid)


def test_so_are_ranges_and_the_pieces_of_a_session(rig: Rig) -> None:
    pool = rig.connect(shared_memory=False, timeout_s=DEADLINE_S)
    put_each(pool, SIZES, replicas=2)
    keys = [key for key in SIZES if key != "k/0"]
    node = rig.node(warm(pool))
    assert pool.get_range("k/0", 7, 99) == stamp("k/0", SIZES["k/0"])[7:106]
    buffers = [bytearray(1000) for _ in keys]
    with pool.read_session(keys) as session:
        for index, buffer in enumerate(buffers):
            assert session.read_at(index, 5, buffer)
        rig.stop(node)
        began = time.monotonic()
        for key, size in SIZES.items():
            assert pool.get_range(key, 100, 30_000) == stamp(key, size)[100:30_100]
        for index, buffer in enumerate(buffers):
            assert session.read_at(index, 100, buffer)
        assert time.monotonic() - began < SOON_S
        for key, buffer in zip(keys, buffers, strict=True):
            assert buffer == stamp(key, SIZES[key])[100:1100]
            buffer[:] = bytes(len(buffer))
        rig.wake(node.pid)
        eventually(lambda: live_nodes(pool) == 2, "both nodes heard")
        assert pool.get("k/0") == stamp("k/0", SIZES["k/0"])
        assert not any(any(buffer) for buffer in buffers), "written after the call had ended"


def test_rows_come_from_the_next_copy_within_the_deadline(rig: Rig) -> None:
    pool = rig.connect(shared_memory=False, timeout_s=4.0)
    put_each(pool, SIZES, replicas=2)
    node = rig.node(warm(pool))
    wanted = RowsWanted(
        row_bytes=100,
        unit_tokens=400,
        offsets=np.zeros(len(SIZES), np.uint64),
        strides=np.zeros(len(SIZES), np.uint64),
        layers=np.zeros(1, np.uint32),
        counts=np.array([len(SIZES)], np.uint32),
        positions=np.arange(len(SIZES), dtype=np.uint32) * np.uint32(400) + np.uint32(3),
    )
    out = bytearray(100 * len(SIZES))
    with pool.read_session(list(SIZES)) as session:
        assert session.read_rows(wanted, out)
        expected = bytes(out)
        out[:] = bytes(len(out))
        rig.stop(node)
        assert session.read_rows(wanted, out)
        assert out == expected == b"".join(stamp(k, s)[300:400] for k, s in SIZES.items())
        rig.wake(node.pid)
