"""The asyncio client: cancelled in mid-call it is quiet, and the loop goes on beside a fault."""

import asyncio
from collections.abc import Iterator

import pytest

from moonpool import aio
from moonpool.core.errors import Unreachable
from moonpool.pool.aio_shell import COPY_THREADS
from moonpool.pool.results import Hit, PutStatus
from tests.faults.pool_rig import MIB, Rig, eventually, live_nodes, put_each, running, stamp

pytestmark = pytest.mark.faults

SIZE = 8 * MIB


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv("MOONPOOL_CLIENT_SHARED_MEMORY", "false")
    with running(nodes=1, memory=32 * MIB, reservation_ms=1000) as rig:
        yield rig


@pytest.mark.parametrize("cancels", [1, 3])
async def test_a_get_cancelled_in_mid_transfer_leaves_the_buffer_quiet(
    rig: Rig, cancels: int
) -> None:
    rig.connect().put("k", stamp("k", SIZE))
    async with await aio.connect(rig.address, timeout_s=5) as pool:
        buffer = bytearray(SIZE)
        assert await pool.get_into("k", buffer) == SIZE
        buffer[:] = bytes(SIZE)
        rig.stop(rig.nodes[0])
        get = asyncio.create_task(pool.get_into("k", buffer, timeout_s=2))
        await asyncio.sleep(0.2)
        for _ in range(cancels):
            get.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await get
        at_the_end = bytes(buffer)
        rig.wake(rig.nodes[0].pid)
        await asyncio.sleep(0.5)
        assert buffer == at_the_end, "a byte came after the end"
        assert await pool.get_into("k", buffer) == SIZE
        assert buffer == stamp("k", SIZE)


@pytest.mark.parametrize("moment", range(5))
async def test_a_get_cancelled_at_any_moment_leaves_the_buffer_quiet(rig: Rig, moment: int) -> None:
    rig.connect().put("k", stamp("k", SIZE))
    async with await aio.connect(rig.address, timeout_s=5) as pool:
        assert await pool.get("k") == stamp("k", SIZE)
        buffer = bytearray(SIZE)
        get = asyncio.create_task(pool.get_into("k", buffer))
        await asyncio.sleep(moment * 0.001)
        get.cancel()
        await asyncio.wait([get])
        at_the_end = bytes(buffer)
        await asyncio.sleep(0.1)
        assert buffer == at_the_end
        assert await pool.get("k") == stamp("k", SIZE)


async def test_a_cancelled_put_leaves_nothing_and_the_key_free(rig: Rig) -> None:
    async with await aio.connect(rig.address, timeout_s=20) as pool:
        put = asyncio.create_task(pool.put("k", stamp("old", SIZE)))
        await asyncio.sleep(0.004)
        put.cancel()
        await asyncio.wait([put])
        if put.cancelled():
            assert await pool.get("k") in (None, stamp("old", SIZE))
        result = await pool.put("k", stamp("new", SIZE), replace=True, wait_s=15)
        assert result.status is PutStatus.STORED
        assert await pool.get("k") == stamp("new", SIZE)


async def test_many_calls_at_once_stay_apart(rig: Rig) -> None:
    async with await aio.connect(rig.address) as pool:
        sizes = {f"k/{i}": 3000 * i for i in range(40)}
        puts = (pool.put(key, stamp(key, size)) for key, size in sizes.items())
        assert all(result.ok for result in await asyncio.gather(*puts))
        answers = await asyncio.gather(*(pool.get(key) for key in sizes))
        assert answers == [stamp(key, size) for key, size in sizes.items()]


async def test_the_loop_lives_while_the_master_is_stopped(rig: Rig) -> None:
    async with await aio.connect(rig.address) as pool:
        await pool.put("k", stamp("k", 900))
        rig.stop(rig.master)
        call = asyncio.create_task(pool.exists(["k"], timeout_s=1))
        beats = 0
        while not call.done():
            await asyncio.sleep(0.05)
            beats += 1
        assert beats > 3
        with pytest.raises(Unreachable):
            await call
        rig.wake(rig.master.pid)
        assert await pool.exists(["k"]) == [True]


async def test_a_client_goes_on_after_master_and_node_were_killed(rig: Rig) -> None:
    watcher = rig.connect()
    async with await aio.connect(rig.address) as pool:
        await pool.put("k", stamp("k", SIZE))
        assert await pool.get("k") == stamp("k", SIZE)
        rig.kill(rig.master, rig.nodes[0])
        rig.restart()
        eventually(lambda: live_nodes(watcher) == 1, "the node is back")
        answer = (await pool.get_many(["k"], timeout_s=10))[0]
        assert isinstance(answer, Hit) and answer.data == stamp("k", SIZE)
        assert (await pool.put("next", stamp("next", 900), timeout_s=10)).ok


async def test_a_silent_node_keeps_nobody_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """More reads wait for it than there are threads for copies; the other node's objects come."""
    monkeypatch.setenv("MOONPOOL_CLIENT_SHARED_MEMORY", "false")
    with running(nodes=2, memory=16 * MIB, node_lease_ms=60_000, nodes_expected=2) as rig:
        sizes = {f"k/{i}": 5000 for i in range(40)}
        plain = rig.connect()
        put_each(plain, sizes)
        nodes = dict(zip(sizes, plain.match_prefix(list(sizes)).nodes, strict=True))
        async with await aio.connect(rig.address, timeout_s=20) as pool:
            for key in sizes:
                assert await pool.get(key) == stamp(key, 5000)
            rig.stop(rig.node("n0"))
            silent = [asyncio.create_task(pool.get(k)) for k in sizes if nodes[k] == "n0"]
            await asyncio.sleep(0.1)
            assert len(silent) > COPY_THREADS
            for key, node in nodes.items():
                if node == "n1":
                    assert await pool.get(key) == stamp(key, 5000)
            assert not any(task.done() for task in silent)
            rig.wake(rig.node("n0").pid)
            assert all(await asyncio.gather(*silent))
