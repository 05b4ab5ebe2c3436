"""What the asyncio face has besides plain calls: views, sessions, lists; and Pool's very names."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Iterator

import pytest

from moonpool import Pool, aio
from moonpool.core.errors import BadSize, Closed, PoolFull
from moonpool.pool.aio_sessions import AsyncReadSession, AsyncWriteSession
from moonpool.pool.results import MissReason, PutStatus
from moonpool.pool.sessions import ReadSession, WriteSession
from tests.faults.pool_rig import MIB, Rig, running, stamp

VALUE = stamp("value", 4000)
LAYERS = [stamp(f"layer {i}", 1000) for i in range(4)]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=1, memory=8 * MIB) as rig:
        yield rig


@pytest.fixture(autouse=True)
def empty(rig: Rig) -> None:
    cleaner = rig.connect()
    cleaner.remove([item.key for item in cleaner.list()])


def calls_of(face: type) -> dict[str, list[inspect.Parameter]]:
    """Public methods and properties with their parameters, types left aside."""
    plain = inspect.Parameter.empty
    return {
        name: [p.replace(annotation=plain) for p in inspect.signature(member).parameters.values()]
        if callable(member)
        else []
        for name, member in inspect.getmembers(face)
        if not name.startswith("_")
    }


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377])
def test_a_cancelled_put_gives_its_keys_back(rig: Rig, steps: int) -> None:
    """Cancelled at whatever step: the keys are nobody's long before `reservation_ms` is over."""
    keys = [b"cancelled/%d" % i for i in range(8)]

    other = rig.connect()

    async def cancel_and_put() -> set[PutStatus]:
        async with await aio.connect(rig.address) as pool:
            put = asyncio.ensure_future(pool.put_many(keys, [VALUE] * len(keys)))
            for _ in range(steps):
                await asyncio.sleep(0)
            put.cancel()
            await asyncio.wait([put])
            # Its session lives on: nothing but the put itself ends what it holds.
            again = await asyncio.to_thread(other.put_many, keys, [VALUE] * len(keys), wait_s=5)
            return {result.status for result in again}

    assert asyncio.run(cancel_and_put()) <= {PutStatus.STORED, PutStatus.EXISTS}


@pytest.mark.parametrize(
    ("blocking", "awaitable", "apart"),
    [
        (Pool, aio.AsyncPool, {"local"}),
        (WriteSession, AsyncWriteSession, {"begin"}),
        (ReadSession, AsyncReadSession, {"begin"}),
    ],
)
def test_both_faces_have_the_same_calls(blocking: type, awaitable: type, apart: set[str]) -> None:
    ours, theirs = calls_of(blocking), calls_of(awaitable)
    assert set(ours) ^ set(theirs) == apart
    for name in set(ours) & set(theirs):
        assert ours[name] == theirs[name], name


async def test_a_view_shows_the_object_and_keeps_it(rig: Rig) -> None:
    async with await aio.connect(rig.address) as pool:
        await pool.put("k", VALUE)
        async with pool.view("k", verify=True) as data:
            assert data is not None and bytes(data) == VALUE
            assert await pool.remove("k") == "removed"
            assert data is not None and bytes(data) == VALUE
        view = await pool.view("k")
        assert view.data is None and view.miss is not None
        assert view.miss.reason is MissReason.ABSENT


@pytest.mark.parametrize("verify", [False, True])
async def test_a_view_pins_and_a_slice_keeps_it_open(rig: Rig, verify: bool) -> None:
    async with await aio.connect(rig.address) as pool:
        await pool.put("k", VALUE)
        view = await pool.view("k", verify=verify)
        assert view.zero_copy and view.data is not None
        assert pool._pins.bytes == len(VALUE)
        piece = view.data[:4]
        with pytest.raises(BufferError):
            view.close()
        piece.release()
        view.close()
        assert pool._pins.bytes == 0


async def test_a_view_elsewhere_is_a_copy(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONPOOL_CLIENT_SHARED_MEMORY", "false")
    async with await aio.connect(rig.address) as pool:
        await pool.put("k", VALUE)
        view = await pool.view("k")
        assert not view.zero_copy and view.data is not None
        assert bytes(view.data) == VALUE


async def test_views_hold_no_more_than_their_budget(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONPOOL_CLIENT_PINNED_BYTES_MAX", "5000")
    async with await aio.connect(rig.address) as pool:
        await pool.put("k", VALUE)
        async with pool.view("k"):
            with pytest.raises(PoolFull):
                await pool.view("k")
        async with pool.view("k") as data:
            assert data is not None and bytes(data) == VALUE


@pytest.mark.parametrize("shared", ["true", "false"])
async def test_sessions(rig: Rig, monkeypatch: pytest.MonkeyPatch, shared: str) -> None:
    monkeypatch.setenv("MOONPOOL_CLIENT_SHARED_MEMORY", shared)
    async with await aio.connect(rig.address) as pool:
        async with pool.write_session(["k"], [4000], layers=4) as writer:
            await asyncio.gather(*(writer.write(i, [data]) for i, data in enumerate(LAYERS)))
            assert await pool.get("k") is None, "visible before its commit"
        (result,) = writer.results
        assert result is not None and result.status is PutStatus.STORED
        assert await pool.get("k") == b"".join(LAYERS)
        async with pool.read_session(["k", "nothing"], layers=4) as reader:
            assert reader.sizes == [4000, 0]
            buffers = [bytearray(1000), bytearray(0)]
            assert await reader.read(2, buffers) == [True, False]
            assert buffers[0] == LAYERS[2]
            assert await reader.read_at(0, 500, buffers[0])
            assert buffers[0] == b"".join(LAYERS)[500:1500]
        with pytest.raises(Closed):
            await reader.read(0, buffers)


async def test_a_session_that_fails_leaves_nothing(rig: Rig) -> None:
    async with await aio.connect(rig.address) as pool:
        with pytest.raises(RuntimeError):
            async with pool.write_session(["k"], [1000]) as writer:
                await writer.write_at(0, 0, bytes(500))
                raise RuntimeError("the caller's own")
        assert await pool.get("k") is None
        session = await pool.write_session(["k"], [1000])
        with pytest.raises(BadSize):
            await session.write_at(0, 600, bytes(500))
        await session.abort()
        assert (await pool.put("k", b"now")).ok


@pytest.mark.parametrize("moment", range(4))
async def test_a_session_cancelled_while_it_opens_frees_its_keys(rig: Rig, moment: int) -> None:
    async with await aio.connect(rig.address) as pool:
        await pool.put("warm", VALUE)

        async def write() -> None:
            async with pool.write_session(["k"], [1000]) as writer:
                await writer.write(0, [bytes(1000)])
                await asyncio.sleep(60)

        writing = asyncio.create_task(write())
        for _ in range(moment * 3):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        assert writing.cancelled()
        result = await pool.put("k", b"now", wait_s=5)
        assert result.status is PutStatus.STORED
        assert await pool.get("k") == b"now"


async def test_a_forgotten_write_session_gives_its_keys_back(rig: Rig) -> None:
    async with await aio.connect(rig.address) as pool:
        session = await pool.write_session(["k"], [1000])
        del session
        gc.collect()
        assert await pool.get("k") is None
        assert (await pool.put("k", b"now", wait_s=5)).status is PutStatus.STORED


async def test_listing_comes_page_by_page(rig: Rig) -> None:
    async with await aio.connect(rig.address) as pool:
        keys = [f"page/{i}" for i in range(10)]
        await pool.put_many(keys, [b"x"] * 10)
        await pool.put("other", b"x")
        found = [item.key.decode() async for item in pool.list("page/", page=3)]
        assert sorted(found) == sorted(keys)


async def test_flush_reports_reads_at_once(rig: Rig) -> None:
    async with await aio.connect(rig.address) as pool:
        await pool.put("k", VALUE)
        assert await pool.get("k") == VALUE
        await pool.get("k")
        assert len(pool._shell.state.touches)
        await pool.flush()
        assert not len(pool._shell.state.touches)
