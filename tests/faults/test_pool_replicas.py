"""P6 as far as the foundation goes: a put with k sealed replicas survives k-1 lost nodes, and reads
fail over within their deadline."""

from collections.abc import Iterator
from functools import partial

import pytest

from moonpool.core.errors import BadSize, MoonpoolError
from moonpool.pool.pool import Pool
from moonpool.pool.results import Hit, Miss, MissReason, PutStatus
from tests.faults.pool_rig import (
    MIB,
    Rig,
    answered_within,
    eventually,
    live_nodes,
    put_each,
    running,
    stamp,
)

pytestmark = pytest.mark.faults

TIMEOUT_S = 4.0
SIZES = {f"k/{i}": 1 + 3001 * i for i in range(24)}


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running(nodes=2, memory=16 * MIB) as rig:
        yield rig


def store(pool: Pool) -> None:
    values = [stamp(key, size) for key, size in SIZES.items()]
    for result in pool.put_many(list(SIZES), values, replicas=2):
        assert (result.status, result.replicas) == (PutStatus.STORED, 2)


def all_hit(pool: Pool) -> None:
    answers = answered_within(TIMEOUT_S, lambda: pool.get_many(list(SIZES), timeout_s=TIMEOUT_S))
    for (key, size), answer in zip(SIZES.items(), answers, strict=True):
        assert isinstance(answer, Hit), f"{key}: {answer}"
        assert answer.data == stamp(key, size), key


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("lost", [0, 1])
def test_either_node_may_be_killed(rig: Rig, lost: int, shared_memory: bool) -> None:
    pool = rig.connect(shared_memory=shared_memory)
    store(pool)
    all_hit(pool)
    rig.kill(rig.nodes[lost])
    all_hit(pool)
    all_hit(rig.connect(shared_memory=shared_memory))
    eventually(lambda: live_nodes(pool) == 1, "the node is given up")
    all_hit(pool)


@pytest.mark.parametrize("lost", [0, 1])
def test_either_node_may_be_stopped_in_mid_read(rig: Rig, lost: int) -> None:
    pool = rig.connect(shared_memory=False)
    store(pool)
    all_hit(pool)
    rig.stop(rig.nodes[lost])
    all_hit(pool)
    all_hit(rig.connect(shared_memory=False))


def test_a_put_that_cannot_have_its_copies_says_so_and_leaves_nothing(rig: Rig) -> None:
    pool = rig.connect()
    rig.kill(rig.nodes[1])
    eventually(lambda: live_nodes(pool) == 1, "the node is given up")
    with pytest.raises(MoonpoolError):
        answered_within(2, lambda: pool.put("two", b"v" * 900, replicas=2, timeout_s=2))
    assert not pool.exists("two")
    result = answered_within(
        TIMEOUT_S,
        lambda: pool.put("one", stamp("one", 900), replicas=2, min_replicas=1, timeout_s=TIMEOUT_S),
    )
    assert (result.status, result.replicas) == (PutStatus.STORED, 1)
    assert rig.connect().get("one") == stamp("one", 900)


def test_a_node_killed_in_mid_put_costs_no_acknowledged_byte(rig: Rig) -> None:
    loader = rig.role("load", "c", 5)
    loader.expect("ready")
    for _ in range(5):
        loader.line()
    rig.kill(rig.nodes[0])
    said = [loader.line() for _ in range(30)]
    said += loader.kill()
    assert [line for line in said if line[0] == "W"] == []
    assert any(line[0] == "P" for line in said[5:]), "puts go on at the other node"


def test_what_only_a_killed_node_has_is_unreachable_and_the_rest_is_there(rig: Rig) -> None:
    pool = rig.connect(shared_memory=False)  # what is mapped may be read until the lease has passed
    put_each(pool, SIZES)
    where = pool.match_prefix(list(SIZES)).nodes
    rig.kill(rig.node("n0"))
    eventually(lambda: live_nodes(pool) == 1, "the node is given up")
    for key, node, answer in zip(SIZES, where, pool.get_many(list(SIZES)), strict=True):
        if node == "n0":
            assert isinstance(answer, Miss) and answer.reason is MissReason.UNREACHABLE
        else:
            assert isinstance(answer, Hit) and answer.data == stamp(key, SIZES[key])


@pytest.mark.parametrize("size", [5_000, 3 * MIB])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_put_for_which_one_copy_suffices_does_not_fail_with_a_silent_node(
    shared_memory: bool, size: int
) -> None:
    """Half of the deadline is the silent node's, the rest is for the commit."""
    with running(nodes=2, node_lease_ms=60_000, nodes_expected=2) as rig:
        pool = rig.connect(shared_memory=shared_memory)
        put_each(pool, {f"warm/{i}": 100 for i in range(8)}, replicas=2)
        rig.stop(rig.nodes[1])
        put = partial(pool.put, "k", stamp("k", size), replicas=2, timeout_s=TIMEOUT_S)
        result = answered_within(TIMEOUT_S, partial(put, min_replicas=1))
        assert (result.status, result.replicas) == (PutStatus.STORED, 1)
        assert pool.get("k") == stamp("k", size)
        rig.wake(rig.nodes[1].pid)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_put_that_needs_all_its_copies_has_them_elsewhere_when_a_node_is_silent(
    shared_memory: bool, replicas: int
) -> None:
    """The master names the silent node on: its lease is long. Half of the deadline is that node's,
    the rest another one's."""
    with running(nodes=3, node_lease_ms=60_000, nodes_expected=3) as rig:
        pool = rig.connect(shared_memory=shared_memory)
        put_each(pool, {f"warm/{i}": 100 for i in range(12)}, replicas=replicas)
        rig.stop(rig.nodes[1])
        for size in (700, 400_000):
            keys = [f"{size}/{i}" for i in range(3)]
            for key in keys:
                put = partial(pool.put, key, stamp(key, size), replicas=replicas)
                result = answered_within(TIMEOUT_S, partial(put, timeout_s=TIMEOUT_S))
                assert (result.status, result.replicas) == (PutStatus.STORED, replicas)
                assert pool.get(key) == stamp(key, size)
        assert all("n1" != hit.node for hit in pool.get_many(keys) if isinstance(hit, Hit))
        rig.wake(rig.nodes[1].pid)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_session_for_which_one_copy_suffices_outlives_a_silent_node(shared_memory: bool) -> None:
    with running(nodes=2, node_lease_ms=60_000, nodes_expected=2) as rig:
        pool = rig.connect(shared_memory=shared_memory)
        put_each(pool, {f"warm/{i}": 100 for i in range(8)}, replicas=2)
        value, half = stamp("k", 6000), 3000
        begin = partial(pool.write_session, ["k"], [6000], layers=2, timeout_s=TIMEOUT_S)
        enough = begin(replicas=2, min_replicas=1)
        enough.write(0, [value[:half]])
        rig.stop(rig.nodes[1])
        answered_within(TIMEOUT_S, lambda: enough.write(1, [value[half:]]))
        (result,) = answered_within(TIMEOUT_S, enough.commit)
        assert (result.status, result.replicas) == (PutStatus.STORED, 1)
        assert pool.get("k") == value
        begun = answered_within(
            2 * TIMEOUT_S,  # half of what it has
            lambda: pool.write_session(
                ["late"], [10], replicas=2, min_replicas=1, timeout_s=4 * TIMEOUT_S
            ),
        )
        begun.write(0, [b"0123456789"])
        (result,) = answered_within(TIMEOUT_S, begun.commit)
        assert (result.status, result.replicas) == (PutStatus.STORED, 1)
        rig.wake(rig.nodes[1].pid)


def test_a_session_that_needs_both_copies_says_when_it_has_one(rig: Rig) -> None:
    pool = rig.connect()
    writer = pool.write_session(["k"], [10], replicas=2, timeout_s=2)
    writer.write(0, [b"0123456789"])
    rig.kill(rig.nodes[1])
    (result,) = writer.commit()
    assert result.status is PutStatus.UNREACHABLE and "1 of 2 copies" in result.text
    assert not pool.exists("k")
    with pytest.raises(BadSize, match="min_replicas"):
        pool.write_session(["k"], [10], replicas=2, min_replicas=3)
