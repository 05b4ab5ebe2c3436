"""Removal by conditions, and ranges: the blocking and the asyncio face over real pools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

import moonpool
from moonpool import aio
from moonpool.core.errors import BadInput, BadSize
from moonpool.pool import messages as m
from moonpool.pool.results import RemovedWhere
from tests.faults.pool_rig import MIB, Rig, running
from tests.pool.master_world import CONFIG, MasterWorld

VALUE = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=1, memory=4 * MIB) as rig:
        yield rig


@pytest.fixture
def pool() -> Iterator[moonpool.Pool]:
    with moonpool.Pool.local("1MiB") as pool:
        yield pool


def fill(pool: moonpool.Pool) -> None:
    for key, size in (("a/x.tmp", 10), ("a/y", 100), ("b/x.tmp", 1000), ("b/y", 10_000)):
        pool.put(key, bytes(size))


@pytest.mark.parametrize(
    ("where", "gone"),
    [
        ({"prefix": "a/"}, {"a/x.tmp", "a/y"}),
        ({"suffix": ".tmp"}, {"a/x.tmp", "b/x.tmp"}),
        ({"contains": "/y"}, {"a/y", "b/y"}),
        ({"min_bytes": 100, "max_bytes": 1000}, {"a/y", "b/x.tmp"}),
        ({"prefix": "b/", "suffix": ".tmp"}, {"b/x.tmp"}),
        ({"contains": "nowhere"}, set()),
    ],
)
def test_what_fits_all_conditions_goes(
    pool: moonpool.Pool, where: dict[str, object], gone: set[str]
) -> None:
    fill(pool)
    sizes = {one.key.decode(): one.size for one in pool.list()}
    expected = RemovedWhere(len(gone), sum(sizes[key] for key in gone))
    assert pool.remove_where(dry_run=True, **where) == expected  # type: ignore[arg-type]
    assert len(list(pool.list())) == 4
    assert pool.remove_where(**where) == expected  # type: ignore[arg-type]
    assert {one.key.decode() for one in pool.list()} == set(sizes) - gone


def test_no_condition_is_refused(pool: moonpool.Pool) -> None:
    with pytest.raises(BadInput, match="everything"):
        pool.remove_where()
    with pytest.raises(BadSize):
        pool.remove_where(min_bytes=5, max_bytes=4)


def test_a_step_looks_at_some_rows_and_says_where_to_go_on() -> None:
    world = MasterWorld(CONFIG)
    world.add_node()
    client = world.client()
    world.put(client, [b"k%d" % i for i in range(10)])
    reply = world.call(client, m.RemoveWhere(prefix=b"k", look=True, cursor=4), m.RemovedWhere)
    assert (reply.count, reply.cursor) == (6, -1)
    (refused,) = world.replies[world.ask(client, m.RemoveWhere(size_min=-1))]
    assert isinstance(refused, m.Failure)


def test_a_recovering_master_lets_it_wait_and_then_says_so() -> None:
    world = MasterWorld(msgspec.structs.replace(CONFIG, grace_ms=3200))
    client = world.client()
    world.master.tick(world.now)
    request = world.ask(client, m.RemoveWhere(prefix=b"k", wait_ms=10))
    world.now += 1.0
    world.perform(world.master.tick(world.now))
    (reply,) = world.replies[request]
    assert isinstance(reply, m.Failure) and reply.code == "not_ready"


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("verify", [True, False])
def test_a_range_is_the_bytes_that_are_there(rig: Rig, shared_memory: bool, verify: bool) -> None:
    pool = rig.connect(shared_memory=shared_memory)
    pool.put("r", VALUE, replace=True)
    for offset, size in ((0, 10), (300, 5000), (len(VALUE) - 3, 100), (len(VALUE), 5), (7, 0)):
        got = pool.get_range("r", offset, size, verify=verify)
        assert got == VALUE[offset : offset + size]
    assert pool.get_range("absent", 0, 1, verify=verify) is None
    with pytest.raises(BadSize):
        pool.get_range("r", len(VALUE) + 1, 1, verify=verify)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_range_of_a_value_that_was_replaced_is_the_new_ones(
    rig: Rig, shared_memory: bool
) -> None:
    pool, other = rig.connect(shared_memory=shared_memory), rig.connect()
    pool.put("r", VALUE, replace=True)
    assert pool.get_range("r", 0, 4) == VALUE[:4]
    other.put("r", b"new bytes", replace=True)
    assert pool.get_range("r", 4, 100) == b"bytes"
    other.remove("r")
    assert pool.get_range("r", 0, 4) is None


def test_the_awaitable_twins(rig: Rig) -> None:
    async def use() -> None:
        pool = await aio.connect(rig.address)
        try:
            await pool.put("t/1.tmp", VALUE)
            assert await pool.get_range("t/1.tmp", 5, 6) == VALUE[5:11]
            assert await pool.get_range("absent", 0, 1, verify=True) is None
            assert [one.key for one in (await pool.list_page("t/")).objects] == [b"t/1.tmp"]
            assert (await pool.remove_where(suffix="1.tmp")).objects == 1
            assert not await pool.exists("t/1.tmp")
            assert await pool.drain(rig.nodes[0].name, stop=True) >= 0
        finally:
            await pool.close()

    asyncio.run(use())


def test_a_listing_in_pages_has_each_object_once_whatever_comes_meanwhile(
    pool: moonpool.Pool,
) -> None:
    pool.put_many([f"p/{i}" for i in range(300)], [b"x"] * 300)
    pool.put("other", b"x")
    found: list[bytes] = []
    cursor: int | None = 0
    while cursor is not None:
        page = pool.list_page("p/", cursor=cursor, limit=7)
        assert len(page.objects) <= 7
        found += [one.key for one in page.objects]
        cursor = page.cursor
        pool.put(f"p/late{len(found)}", b"y")
        pool.remove(f"p/late{len(found) - 20}")
    known = [key for key in found if not key.startswith(b"p/late")]
    assert sorted(known) == sorted(b"p/%d" % i for i in range(300))
    for wrong in ({"cursor": -1}, {"limit": 0}):
        with pytest.raises(BadSize):
            pool.list_page("p/", **wrong)
