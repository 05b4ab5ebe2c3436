"""Quotas, borrowing and turns at a master with real agents."""

from __future__ import annotations

import random

import msgspec
import pytest

from moonpool.core.sections import MasterConfig, PolicyName
from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys, u64
from moonpool.pool.tenancy import gate
from tests.pool.master_world import CONFIG, reserve_message
from tests.pool.tenancy.world import TenantWorld, recounted, tenant

STORED = m.PutStatus.COMMITTED
SIZE, CAPACITY = 64, 1 << 12  # 64 objects


def config(**how: object) -> MasterConfig:
    return msgspec.structs.replace(CONFIG, **how)


def keys(word: str, count: int) -> list[bytes]:
    return [f"{word}{i}".encode() for i in range(count)]


def fill(world: TenantWorld, session: int, word: str, count: int) -> list[m.PutStatus]:
    return [world.put(session, [key], SIZE)[0] for key in keys(word, count)]


@pytest.fixture(params=["lru", "s3fifo"])
def policy(request: pytest.FixtureRequest) -> PolicyName:
    name: PolicyName = request.param
    return name


def test_idle_capacity_is_borrowed_and_comes_back(policy: PolicyName) -> None:
    """A borrows everything; B, within its quota, gets all of it back, and takes nothing of A's."""
    half = CAPACITY // 2
    world = TenantWorld(
        tenant("a", quota_bytes=half), tenant("b", quota_bytes=half), config=config(policy=policy)
    )
    world.add_node(capacity=CAPACITY)
    a, b = world.visitor("a"), world.visitor("b")
    assert set(fill(world, a, "a", 64)) == {STORED}
    assert world.held("a")["borrowed_bytes"] == half
    assert set(fill(world, b, "b", 32)) == {STORED}
    assert world.held("a")["committed_bytes"] == world.held("b")["committed_bytes"] == half
    assert world.held("a")["borrowed_bytes"] == 0
    # Now both are at their quotas: whoever wants more pays for it itself.
    assert set(fill(world, b, "more", 40)) == {STORED}
    assert world.held("a")["committed_bytes"] == half
    assert world.held("b")["committed_bytes"] == half
    assert world.held("b")["evicted_objects"] == 40 and world.held("a")["evicted_objects"] == 32


def test_a_debtor_gives_no_more_than_its_debt(policy: PolicyName) -> None:
    """A owes twelve objects and C eight: B, which is owed twenty, has twelve from A and no more."""
    half = CAPACITY // 2
    world = TenantWorld(
        *(tenant("a", quota_bytes=half), tenant("b", quota_bytes=half), tenant("c")),
        config=config(policy=policy),
    )
    world.add_node(capacity=CAPACITY)
    for name, count in (("b", 12), ("c", 8), ("a", 44)):
        assert set(fill(world, world.visitor(name), name, count)) == {STORED}
    assert set(world.put(world.visitor("b"), keys("many", 20), SIZE)) == {STORED}
    assert world.held("a")["committed_bytes"] == world.held("b")["committed_bytes"] == half
    assert [world.held(name)["evicted_objects"] for name in "abc"] == [12, 0, 8]


def test_nobody_within_its_quota_is_evicted_for_others() -> None:
    world = TenantWorld(tenant("a", quota_bytes=CAPACITY), tenant("b"))
    world.add_node(capacity=CAPACITY)
    a, b = world.visitor("a"), world.visitor("b")
    assert set(fill(world, a, "a", 64)) == {STORED}
    assert set(fill(world, b, "b", 8)) == {m.PutStatus.HELD}
    assert world.look(a, *keys("a", 64)) == [m.LookupStatus.FOUND] * 64


def test_what_is_borrowed_is_shared_by_weight(policy: PolicyName) -> None:
    """Unbounded demand of both: capacity one to three, whoever came first."""
    world = TenantWorld(tenant("a", weight=1), tenant("b", weight=3), config=config(policy=policy))
    world.add_node(capacity=CAPACITY)
    a, b = world.visitor("a"), world.visitor("b")
    fill(world, a, "first", 64)
    for i in range(100):
        assert world.put(a, [f"a{i}".encode()], SIZE) == [STORED]
        assert world.put(b, [f"b{i}".encode()], SIZE) == [STORED]
    assert world.held("b")["committed_bytes"] == pytest.approx(
        3 * world.held("a")["committed_bytes"], rel=0.1
    )


def test_a_tenant_that_may_not_borrow_lives_within_its_quota() -> None:
    world = TenantWorld(tenant("a", quota_bytes=10 * SIZE, borrow=False))
    world.add_node(capacity=CAPACITY)
    a = world.visitor("a")
    assert set(fill(world, a, "a", 25)) == {STORED}  # its oldest go for its newest
    assert world.held("a")["committed_bytes"] == 10 * SIZE
    assert world.put(a, [b"big"], 11 * SIZE) == [m.PutStatus.QUOTA]
    assert world.held("a")["committed_bytes"] == 10 * SIZE  # nothing went for what never fits
    assert world.put(a, keys("batch", 12), SIZE) == [m.PutStatus.QUOTA] * 12
    assert world.held("a")["refused"] > 0


def test_so_it_does_with_places_for_objects() -> None:
    world = TenantWorld(
        tenant("a", quota_bytes=CAPACITY, quota_objects=5, borrow=False), tenant("b")
    )
    world.add_node(capacity=CAPACITY)
    a = world.visitor("a")
    assert set(fill(world, a, "a", 9)) == {STORED}
    assert world.held("a")["objects"] == 5
    assert set(fill(world, world.visitor("b"), "b", 9)) == {STORED}


def test_a_chain_keeps_its_head_at_the_quota() -> None:
    world = TenantWorld(tenant("a", quota_bytes=4 * SIZE, borrow=False))
    world.add_node(capacity=CAPACITY)
    status = world.put(world.visitor("a"), keys("c", 6), SIZE, chain=True)
    assert status == [STORED] * 4 + [m.PutStatus.QUOTA] * 2


def test_hard_pins_are_not_borrowed() -> None:
    """What cannot be evicted could never be given back."""
    world = TenantWorld(tenant("a", quota_bytes=3 * SIZE))
    world.add_node(capacity=CAPACITY)
    a = world.visitor("a")
    assert world.put(a, keys("p", 3), SIZE, pin=2) == [STORED] * 3
    assert world.put(a, [b"more"], SIZE, pin=2) == [m.PutStatus.QUOTA]
    assert world.put(a, [b"more"], SIZE) == [STORED]


def test_a_promise_counts_until_it_ends() -> None:
    world = TenantWorld(tenant("a", quota_bytes=2 * SIZE, borrow=False))
    world.add_node(capacity=CAPACITY)
    a = world.visitor("a")
    reserved = world.reserve(a, keys("k", 2), SIZE)
    assert world.reserve(a, [b"third"], SIZE).status == bytes([m.PutStatus.QUOTA])
    world.call(a, m.Abort(reserved.row, reserved.attempt), m.Done)
    assert world.held("a")["promised_bytes"] == 0
    assert world.put(a, keys("k", 2), SIZE) == [STORED] * 2
    world.reserve(a, [b"late"], SIZE, replace=True)
    world.pass_time(11.0)
    assert world.held("a")["promised_bytes"] == 0


def test_a_segment_that_serves_one_takes_nothing_of_others() -> None:
    world = TenantWorld(tenant("a"), tenant("b"))
    node = world.add_node(capacity=CAPACITY)
    node.machine.endpoint = msgspec.structs.replace(
        node.machine.endpoint, trust_domain=b"a", path="/own", unix="/sock"
    )
    world.leave(node)
    world.join(node)
    a, b = world.visitor("a"), world.visitor("b")
    assert world.put(a, [b"k"], SIZE) == [STORED]
    assert world.put(b, [b"k"], SIZE) == [m.PutStatus.NO_NODE]
    told = world.call(a, m.Topology(), m.TopologyIs).segments
    assert [(one.path, one.unix) for one in told] == [("/own", "/sock")]
    assert world.call(b, m.Topology(), m.TopologyIs).segments == []


def test_a_segment_of_nobody_we_know_is_not_taken() -> None:
    world = TenantWorld(tenant("a"))
    node = world.add_node(capacity=CAPACITY)
    node.machine.endpoint = msgspec.structs.replace(node.machine.endpoint, trust_domain=b"x")
    world.leave(node)
    world.join(node)
    assert "serves tenant 'x' alone" in node.machine.refusal


def test_repair_stays_where_the_tenant_may_be() -> None:
    world = TenantWorld(tenant("a"), tenant("b"), config=config(repair_delay_s=1.0))
    first, second = (world.add_node(capacity=CAPACITY) for _ in range(2))
    third = world.add_node(capacity=CAPACITY)
    third.machine.endpoint = msgspec.structs.replace(third.machine.endpoint, trust_domain=b"b")
    world.leave(third)
    world.join(third)
    a = world.visitor("a")
    assert world.put(a, [b"k"], SIZE, replicas=2) == [STORED]
    world.leave(second)
    world.pass_time(30.0)
    assert [place[0] for place in world.placed(a, b"k")] == [0]
    assert first.agent.usage()["sealed"] == 1


def test_usage_agrees_with_the_rows_whatever_happens() -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    world = TenantWorld(
        tenant("a", quota_bytes=CAPACITY // 4, weight=1),
        tenant("b", quota_bytes=CAPACITY // 2, weight=3),
        tenant("c", quota_bytes=CAPACITY // 8, borrow=False),
    )
    nodes = [world.add_node(capacity=CAPACITY) for _ in range(2)]
    sessions = [world.visitor(name) for name in ("a", "b", "c", "")]
    for step in range(250):
        session = draw.choice(sessions)
        some = keys("k", 40)
        chosen = draw.sample(some, draw.randint(1, 5))
        what = draw.random()
        if what < 0.6:
            how = {"replace": draw.random() < 0.3, "replicas": draw.choice([1, 1, 2])}
            world.put(session, chosen, draw.choice([16, 64, 300]), **how)
        elif what < 0.75:
            world.call(session, m.Remove(pack_keys(chosen)), m.Removed)
        elif what < 0.9:
            world.reserve(session, chosen, 64)
        else:
            world.pass_time(draw.choice([0.5, 12.0]))
        if step % 25 == 24:
            shares = world.master.shares
            assert shares is not None
            held = shares.usage.by_tenant
            counted = recounted(world)
            for number, one in held.items():
                assert (one.committed_bytes, one.objects) == counted.get(number, (0, 0)), number
    world.pass_time(30.0)
    assert all(one.promised_bytes == 0 for one in held.values())
    world.start(2, first_term=50)
    for node in nodes:
        world.join(node)
    shares = world.master.shares
    assert shares is not None
    counted = recounted(world)
    assert (
        counted
        and {
            number: (one.committed_bytes, one.objects)
            for number, one in shares.usage.by_tenant.items()
            if one.objects
        }
        == counted
    )


@pytest.mark.parametrize(
    "limit", [{"quota_bytes": 5 * 1024}, {"quota_bytes": 1 << 15, "quota_objects": 5}]
)
def test_what_lies_below_memory_makes_no_room_in_it(limit: dict[str, int]) -> None:
    """Room for a put is made in memory, though what goes is on disk as well; for an object's place
    it goes from the disk, too."""
    world = TenantWorld(tenant("a", borrow=False, **limit), config=config(offload="write"))
    world.add_node("n", 1 << 20, medium="disk")
    world.add_node("n", 1 << 16)
    a = world.visitor("a")
    for number in range(12):
        assert world.put(a, [b"k%d" % number], 1024) == [m.PutStatus.COMMITTED], number
        world.pass_time(0.2, 0.1)
    held = world.held("a")
    assert held["committed_bytes"] <= 5 * 1024
    assert held["objects"] == limit.get("quota_objects", 12)


# Turns.


def test_turns_go_by_weight_while_more_is_on_its_way_than_may_be() -> None:
    world = TenantWorld(
        tenant("a", weight=1), tenant("b", weight=3), config=config(inflight_bytes_max=4096)
    )
    world.add_node(capacity=1 << 20)
    sessions = {"a": world.visitor("a"), "b": world.visitor("b")}
    waiting: dict[int, tuple[str, bytes]] = {}
    given: dict[str, int] = {"a": 0, "b": 0}
    count = 0
    while sum(given.values()) < 400 * 1024:
        for name, session in sessions.items():  # both always have ten requests there
            while sum(owner == name for owner, _ in waiting.values()) < 10:
                count += 1
                key = f"{name}{count}".encode()
                waiting[world.ask(session, reserve_message([key], 1024))] = (name, key)
        answered = [number for number in waiting if world.replies[number]]
        assert answered
        for number in answered:
            name, key = waiting.pop(number)
            (reply,) = world.replies.pop(number)
            assert isinstance(reply, m.Reserved) and reply.status == bytes(1), reply
            given[name] += 1024
            world._writer = name
            world.call(sessions[name], world.seal(reply, [key], 1024), m.Committed)
    assert given["b"] / given["a"] == pytest.approx(3, rel=0.1)
    assert world.held("b")["admitted_objects"] == pytest.approx(
        3 * world.held("a")["admitted_objects"], rel=0.1
    )


def test_a_turn_that_does_not_come_is_said_in_time() -> None:
    world = TenantWorld(tenant("a"), config=config(inflight_bytes_max=4096))
    world.add_node(capacity=1 << 16)
    a = world.visitor("a")
    world.reserve(a, [b"slow"], 5000)
    waits = world.ask(a, reserve_message([b"k"], 64))
    assert world.replies[waits] == []
    world.pass_time(1.5)
    answer = world.answer(waits, m.Reserved)
    assert answer.status == bytes([m.PutStatus.THROTTLED])
    assert answer.term == world.master.catalog.term
    assert world.held("a")["throttled"] == 1


def test_puts_that_wait_are_bounded_by_their_keys_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A put may name a hundred thousand keys, and thousands of puts may wait."""
    monkeypatch.setattr(gate, "WAITING_BYTES_MAX", 5000)
    world = TenantWorld(tenant("a"), config=config(inflight_bytes_max=4096))
    world.add_node(capacity=1 << 16)
    a = world.visitor("a")
    world.reserve(a, [b"slow"], 5000)
    many = [b"%0200d" % number for number in range(15)]
    first = world.ask(a, reserve_message(many, 64))
    second = world.ask(a, reserve_message(many, 64))
    assert world.replies[first] == []
    assert world.answer(second, m.Reserved).status == bytes([m.PutStatus.THROTTLED] * 15)


def test_who_hangs_up_waits_no_longer() -> None:
    world = TenantWorld(tenant("a"), config=config(inflight_bytes_max=4096))
    world.add_node(capacity=1 << 16)
    a, other = world.visitor("a"), world.visitor("a")
    reserved = world.reserve(a, [b"slow"], 5000)
    gone = world.ask(other, reserve_message([b"k"], 64))
    stays = world.ask(a, reserve_message([b"l"], 64))
    world.perform(world.master.disconnected(other, world.now))
    world.call(a, m.Abort(reserved.row, reserved.attempt), m.Done)
    assert world.replies[gone] == []
    assert u64(world.answer(stays, m.Reserved).attempt)[0] > 0
