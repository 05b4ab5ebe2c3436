"""P4, P5: views outlive removal and replacement of their object, and end with their process."""

from collections.abc import Iterator

import pytest

from moonpool.core.errors import PoolFull
from moonpool.pool.pool import Pool
from moonpool.pool.results import PutStatus, RemoveStatus
from tests.faults.pool_rig import (
    MIB,
    Rig,
    answered_within,
    await_usage,
    eventually,
    live_nodes,
    running,
    stamp,
    usage,
)

pytestmark = pytest.mark.faults

SIZE = 2 * MIB


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=1, memory=16 * MIB) as rig:
        yield rig


@pytest.fixture
def pool(rig: Rig) -> Iterator[Pool]:
    """A client; the pool is empty before and after."""
    pool = rig.connect()
    await_usage(pool, sealed=0, retired=0, writing=0, pins=0)
    yield pool
    pool.remove([item.key for item in pool.list()])
    await_usage(pool, sealed=0, retired=0, writing=0, pins=0)


def test_a_view_keeps_its_bytes_while_the_object_is_removed(rig: Rig, pool: Pool) -> None:
    pool.put("k", stamp("k", SIZE))
    other, reader = rig.connect(), rig.connect()
    assert reader.get("k") == stamp("k", SIZE)
    view = pool.view("k")
    with view as data:
        assert view.zero_copy and data is not None
        assert answered_within(10, lambda: other.remove("k")) == RemoveStatus.REMOVED
        for client in (pool, other, reader, rig.connect(), rig.connect(shared_memory=False)):
            assert client.get("k") is None
            assert not client.exists("k")
        await_usage(pool, retired=1, pins=1)
        # Everything else is written over and over; the view's memory is not.
        for i in range(12):
            assert other.put(f"f/{i}", stamp(f"f/{i}", SIZE)).ok
        assert bytes(data or b"") == stamp("k", SIZE)
    await_usage(pool, retired=0, pins=0)


def test_a_view_keeps_its_bytes_while_the_object_is_replaced(rig: Rig, pool: Pool) -> None:
    pool.put("k", stamp("old", SIZE))
    other, reader = rig.connect(), rig.connect()
    assert reader.get("k") == stamp("old", SIZE)
    with pool.view("k") as data:
        assert other.put("k", stamp("new", SIZE), replace=True).status == PutStatus.STORED
        for client in (pool, other, reader, rig.connect()):
            assert client.get("k") == stamp("new", SIZE), "a get begun later sees the new value"
        assert bytes(data or b"") == stamp("old", SIZE)
        with pool.view("k", verify=True) as fresh:
            assert bytes(fresh or b"") == stamp("new", SIZE)
    await_usage(pool, retired=0, pins=0)


def test_a_view_keeps_its_bytes_over_a_restart_of_its_node(pool: Pool, rig: Rig) -> None:
    pool.put("k", stamp("k", SIZE))
    with pool.view("k") as data:
        rig.kill(rig.nodes[0])
        rig.restart()
        eventually(lambda: live_nodes(pool) == 1, "the node is back")
        assert pool.remove("k") == RemoveStatus.REMOVED
        for i in range(12):
            assert pool.put(f"f/{i}", stamp(f"f/{i}", SIZE)).ok
        assert bytes(data or b"") == stamp("k", SIZE)
        await_usage(pool, retired=1, pins=1)


def test_killed_readers_leave_no_pin(rig: Rig, pool: Pool) -> None:
    pool.put("k", stamp("k", SIZE))
    readers = [rig.role("views", "k", 7) for _ in range(3)]
    for reader in readers:
        reader.expect("holds", "7")
    await_usage(pool, pins=21)
    assert pool.remove("k") == RemoveStatus.REMOVED
    await_usage(pool, retired=1)
    for reader in readers:
        reader.kill()
    await_usage(pool, pins=0, retired=0)


def test_a_stopped_readers_view_stays_and_holds_nobody_up(rig: Rig, pool: Pool) -> None:
    pool.put("k", stamp("k", SIZE))
    reader = rig.role("views", "k", 1)
    reader.expect("holds", "1")
    reader.stop()
    assert answered_within(10, lambda: pool.remove("k")) == RemoveStatus.REMOVED
    assert answered_within(10, lambda: pool.put("k", stamp("next", SIZE))).ok
    await_usage(pool, pins=1, retired=1)
    assert pool.get("k") == stamp("next", SIZE)
    reader.kill()


def test_eviction_passes_a_viewed_object_by_without_harm(rig: Rig, pool: Pool) -> None:
    """It may go from the catalog; its bytes stay as long as they are looked at."""
    pool.put("k", stamp("k", SIZE))
    with pool.view("k") as data:
        for i in range(30):
            assert pool.put(f"f/{i}", stamp(f"f/{i}", SIZE)).ok
        assert bytes(data or b"") == stamp("k", SIZE)
        assert pool.get("k") in (None, stamp("k", SIZE))


def test_closing_a_pool_does_not_pull_memory_from_under_a_view(rig: Rig, pool: Pool) -> None:
    pool.put("k", stamp("k", SIZE))
    short = rig.connect()
    view = short.view("k")
    short.close()
    assert bytes(view.data or b"") == stamp("k", SIZE)
    assert pool.remove("k") == RemoveStatus.REMOVED
    await_usage(pool, pins=1, retired=1)
    assert bytes(view.data or b"") == stamp("k", SIZE)
    view.close()


def test_open_views_are_bounded(rig: Rig, pool: Pool) -> None:
    pool.put("k", stamp("k", SIZE))
    careful = rig.connect(pinned_bytes_max=2 * SIZE)
    with careful.view("k") as first, careful.view("k") as second:
        assert bytes(first or b"") == bytes(second or b"") == stamp("k", SIZE)
        with pytest.raises(PoolFull, match="close views"):
            careful.view("k")
    with careful.view("k") as again:
        assert again is not None
    assert usage(pool)["retired"] == 0
