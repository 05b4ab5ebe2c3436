"""Why a key is a miss, in one sentence."""

import asyncio

from moonpool.dashboard.story import explain_key, explain_request
from moonpool.pool.aio import AsyncPool


async def test_a_key_that_is_there(pool: AsyncPool) -> None:
    await pool.put("k", b"x")
    story = await explain_key(pool, b"k")
    assert story["readable"] and story["nodes"][0] in story["because"]
    assert story["events"][-1]["kind"] == "put"


async def test_a_key_nobody_stored(pool: AsyncPool) -> None:
    story = await explain_key(pool, b"never")
    assert not story["readable"] and story["events"] == []
    assert "nobody" in story["because"]


async def test_a_key_that_was_removed(pool: AsyncPool) -> None:
    await pool.put("k2", b"x")
    await pool.remove("k2")
    assert "removed by a client" in (await explain_key(pool, b"k2"))["because"]


async def test_a_key_that_was_evicted(pool: AsyncPool) -> None:
    await pool.put("old", b"x")
    for i in range(12):
        await pool.put(f"fill{i}", bytes(1 << 20))
    story = await explain_key(pool, b"old")
    assert "evicted to make room" in story["because"]
    assert [event["kind"] for event in story["events"]] == ["put", "evict"]


async def test_a_key_whose_time_is_over(pool: AsyncPool) -> None:
    """At once, and when its event tells of it."""
    await pool.put("short", b"x", ttl_s=0.05)
    async with asyncio.timeout(30):
        while await pool.exists("short"):
            await asyncio.sleep(0.01)
        story = await explain_key(pool, b"short")
        assert "time to live" in story["because"]
        while story["events"][-1]["kind"] == "put":
            await asyncio.sleep(0.05)
            story = await explain_key(pool, b"short")
    assert story["events"][-1]["kind"] == "expire"
    assert "came to the end of its time to live" in story["because"]


async def test_a_key_that_is_being_written(pool: AsyncPool) -> None:
    async with pool.write_session(["w"], [3]) as session:
        assert "being written" in (await explain_key(pool, b"w"))["because"]
        await session.write_at(0, 0, b"abc")
    assert (await explain_key(pool, b"w"))["readable"]


async def test_a_request_ends_at_its_first_miss(pool: AsyncPool) -> None:
    keys = [b"r0", b"r1", b"r2", b"r3"]
    await pool.put_many(keys, [b"x"] * 4)
    whole = await explain_request(pool, keys)
    assert whole["readable"] and (whole["hits"], whole["blocks"]) == (4, 4)
    await pool.remove("r1")
    story = await explain_request(pool, keys)
    assert (story["hits"], story["behind_the_gap"], story["readable"]) == (1, 2, False)
    assert "block 1 (r1)" in story["because"] and "removed by a client" in story["because"]
    assert story["first_miss"]["events"][-1]["kind"] == "remove"
