"""Why a key is a miss, in one sentence."""

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
