"""P11: a process is stopped. Callers get an answer within their deadline, the rest goes on, and
once it is woken all is as before."""

from collections.abc import Iterator
from functools import partial

import pytest

from moonpool.core.errors import MoonpoolError, Unreachable
from moonpool.pool.pool import Pool
from moonpool.pool.results import Hit, Miss, MissReason, PutStatus, RemoveStatus
from tests.faults.pool_rig import (
    LEASE_MS,
    MIB,
    Rig,
    answered_within,
    await_usage,
    eventually,
    live_nodes,
    put_each,
    running,
    stamp,
)

pytestmark = pytest.mark.faults

TIMEOUT_S = 0.6
BIG = 6 * MIB


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running(nodes=2, memory=24 * MIB) as rig:
        yield rig


def store(pool: Pool, count: int, size: int = 5000, *, replicas: int = 1) -> dict[str, int]:
    sizes = {f"k/{i}": size + i for i in range(count)}
    put_each(pool, sizes, replicas=replicas)
    return sizes


def right_or_miss(pool: Pool, sizes: dict[str, int]) -> list[Miss]:
    """Reads all within the deadline; whatever is no miss is right. The misses."""
    keys = list(sizes)
    answers = answered_within(TIMEOUT_S, lambda: pool.get_many(keys, timeout_s=TIMEOUT_S))
    for key, answer in zip(keys, answers, strict=True):
        assert not isinstance(answer, Hit) or answer.data == stamp(key, sizes[key]), key
    return [answer for answer in answers if isinstance(answer, Miss)]


def all_readable(pool: Pool, sizes: dict[str, int]) -> None:
    eventually(lambda: right_or_miss(pool, sizes) == [], "every object readable again")


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_stopped_master(rig: Rig, shared_memory: bool) -> None:
    pool = rig.connect(shared_memory=shared_memory)
    sizes = store(pool, 20)
    cold = rig.connect(shared_memory=shared_memory)
    pid = rig.master.pid
    rig.stop(rig.master)
    for ask in (
        lambda: pool.put("new", b"value", timeout_s=TIMEOUT_S),
        lambda: pool.exists("k/1", timeout_s=TIMEOUT_S),
        lambda: pool.remove("k/0", timeout_s=TIMEOUT_S),
        lambda: pool.stat(timeout_s=TIMEOUT_S),
    ):
        with pytest.raises(Unreachable):
            answered_within(TIMEOUT_S, ask)
    assert right_or_miss(cold, sizes), "who never saw a placement cannot have one now"
    right_or_miss(pool, sizes)
    rig.wake(pid)
    del sizes["k/0"]  # asked for, and perhaps done
    all_readable(pool, sizes)
    all_readable(cold, sizes)
    eventually(lambda: live_nodes(pool) == 2, "both nodes heard")
    assert pool.put("after", stamp("after", 100)).ok
    assert cold.get("after") == stamp("after", 100)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_stopped_node(rig: Rig, shared_memory: bool) -> None:
    pool = rig.connect(shared_memory=shared_memory)
    sizes = store(pool, 40)
    node = rig.nodes[0]
    rig.stop(node)
    right_or_miss(pool, sizes)
    right_or_miss(rig.connect(shared_memory=shared_memory), sizes)
    eventually(lambda: live_nodes(pool) == 1, "the node is given up")
    more = {f"more/{i}": 3000 for i in range(10)}
    for key, size in more.items():
        assert answered_within(10, partial(pool.put, key, stamp(key, size))).ok
    assert right_or_miss(pool, more) == [], "the other node goes on"
    rig.wake(node.pid)
    eventually(lambda: live_nodes(pool) == 2, "the node is back")
    all_readable(pool, sizes | more)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_puts_while_a_node_is_stopped_end_within_their_deadline(
    rig: Rig, shared_memory: bool
) -> None:
    pool = rig.connect(shared_memory=shared_memory)
    stored: dict[str, int] = {}
    rig.stop(rig.nodes[0])
    for i in range(6):
        key = f"p/{i}"
        put = partial(pool.put_many, [key], [stamp(key, 9000)], timeout_s=TIMEOUT_S)
        if answered_within(TIMEOUT_S, put)[0].ok:
            stored[key] = 9000
    rig.wake(rig.nodes[0].pid)
    all_readable(pool, stored)
    await_usage(pool, writing=0)


def test_removing_from_a_stopped_node_waits_for_its_lease_only(rig: Rig) -> None:
    pool, other = rig.connect(), rig.connect()
    sizes = store(pool, 20, replicas=2)
    assert right_or_miss(other, sizes) == []
    node = rig.nodes[0]
    rig.stop(node)
    statuses = answered_within(LEASE_MS / 1000 + 10, lambda: pool.remove(list(sizes)))
    assert set(statuses) <= {RemoveStatus.REMOVED, RemoveStatus.PENDING}
    if set(statuses) == {RemoveStatus.REMOVED}:
        assert len(right_or_miss(other, sizes)) == len(sizes), "no cached placement reads on"
    rig.wake(node.pid)
    eventually(lambda: live_nodes(pool) == 2, "the node is back")
    await_usage(pool, sealed=0, retired=0)
    for reader in (pool, other, rig.connect()):
        assert len(right_or_miss(reader, sizes)) == len(sizes)


def test_a_replace_is_acknowledged_when_the_old_value_cannot_be_read_any_more(rig: Rig) -> None:
    """P5 with the old value on a stopped node: its memory is mapped, nobody there retires it."""
    pool, reader = rig.connect(), rig.connect()
    held: dict[str, list[str]] = {"n0": [], "n1": []}
    while max(map(len, held.values())) < 24 * MIB // BIG:  # until one node is full
        key = f"k/{sum(map(len, held.values()))}"
        pool.put(key, stamp(key, BIG))
        held[pool.match_prefix([key]).nodes[0]].append(key)
    full = max(held, key=lambda node: len(held[node]))
    key = held[full][0]
    assert reader.get(key) == stamp(key, BIG)
    rig.stop(rig.node(full))
    # The new value goes to the other node at once: the old one's is what is waited for.
    answer = answered_within(
        10, lambda: pool.put_many([key], [stamp("new", BIG)], replace=True, timeout_s=10)
    )[0]
    assert answer.status is PutStatus.STORED
    assert reader.get(key, timeout_s=TIMEOUT_S) in (None, stamp("new", BIG)), "the old value"
    assert rig.connect().get(key) == stamp("new", BIG)


def test_a_removal_with_a_short_deadline_says_pending(rig: Rig) -> None:
    pool = rig.connect()
    sizes = store(pool, 20, replicas=2)
    rig.stop(rig.nodes[0])
    statuses = answered_within(0.3, lambda: pool.remove(list(sizes), timeout_s=0.3))
    assert set(statuses) == {RemoveStatus.PENDING}
    assert len(right_or_miss(rig.connect(), sizes)) == len(sizes)
    rig.wake(rig.nodes[0].pid)
    await_usage(pool, sealed=0, retired=0)
    assert len(right_or_miss(pool, sizes)) == len(sizes)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_reader_stopped_in_mid_transfer_holds_nobody_up(rig: Rig, shared_memory: bool) -> None:
    pool = rig.connect()
    key, size = "big", BIG
    pool.put(key, stamp(key, size))
    reader = rig.role("read", key, size, shared_memory=shared_memory)
    for _ in range(3):
        reader.expect("ok")
    reader.stop()
    assert answered_within(10, lambda: pool.remove(key)) == RemoveStatus.REMOVED
    sizes = {f"x/{i}": BIG for i in range(5)}
    for other, bytes_ in sizes.items():
        assert pool.put(other, stamp(other, bytes_)).ok
    assert pool.get(key) is None
    reader.wake()
    said = [reader.line()]
    while said[-1] != ["miss", "absent"]:
        said.append(reader.line())
    assert all(line in (["ok"], ["miss", "absent"]) for line in said), said
    all_readable(rig.connect(timeout_s=TIMEOUT_S), sizes)
    reader.kill()
    pool.remove(list(sizes))
    await_usage(pool, sealed=0, retired=0, writing=0)


def test_a_client_outlives_a_long_stop(rig: Rig) -> None:
    """Its session at the master is gone by then, its mapping is not."""
    pool = rig.connect()
    pool.put("long", stamp("long", 9000))
    reader = rig.role("ask", "long", 9000)
    reader.tell()
    reader.expect("ok")
    reader.stop()
    rig.kill(rig.master)
    rig.restart()
    eventually(lambda: whole(pool), "the pool is whole")
    pool.put("later", stamp("later", 9000))
    reader.wake()
    reader.tell()
    reader.expect("ok")


def whole(pool: Pool) -> bool:
    try:
        return live_nodes(pool) == 2
    except MoonpoolError:
        return False


def test_a_cut_off_node_is_a_miss_until_it_is_back(rig: Rig) -> None:
    """The master stopped for longer than the lease: memory nobody vouches for is not read."""
    pool = rig.connect()
    sizes = store(pool, 10)
    assert right_or_miss(pool, sizes) == []
    pid = rig.master.pid
    rig.stop(rig.master)
    eventually(lambda: len(right_or_miss(pool, sizes)) == len(sizes), "the lease ends")
    assert {miss.reason for miss in right_or_miss(pool, sizes)} <= {
        MissReason.UNREACHABLE,
        MissReason.DEADLINE,
    }
    rig.wake(pid)
    all_readable(pool, sizes)
