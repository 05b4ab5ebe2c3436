"""Copies made by the master's order: repair of what lost a node, and the emptying of a node."""

from __future__ import annotations

import msgspec
import pytest

from moonpool._core import crc32c
from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys, u8
from moonpool.pool.master_limits import MasterLimits
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.messages import PutStatus as S
from moonpool.pool.messages import RemoveStatus as R
from moonpool.pool.node_copies import keep
from tests.pool.master_world import CONFIG, MasterWorld, Node, stamp

KEYS = [b"k%d" % i for i in range(20)]
REPAIR = msgspec.structs.replace(CONFIG, repair_delay_s=2.0, slow_start_s=0.0)


@pytest.fixture
def world() -> MasterWorld:
    world = MasterWorld(REPAIR)
    for _ in range(3):
        world.add_node()
    return world


def nodes_of(world: MasterWorld, client: int, key: bytes) -> list[int]:
    return sorted(segment for segment, _, _ in world.placed(client, key))


def promised(world: MasterWorld) -> int:
    return sum(one.promised_bytes for one in world.master.catalog.segments)


def drain(world: MasterWorld, client: int, node: str, stop: bool = False) -> int:
    return world.call(client, m.Drain(node, stop), m.Done).count


def test_what_lost_a_node_gets_another_copy_after_the_delay(world: MasterWorld) -> None:
    client = world.client()
    assert world.put(client, KEYS, replicas=2) == [S.COMMITTED] * 20
    world.leave(world.nodes[0])
    world.pass_time(1.5)
    assert world.master.catalog.copying.copied == 0
    world.pass_time(6.0)
    assert all(nodes_of(world, client, key) == [1, 2] for key in KEYS)
    assert promised(world) == 0 and len(world.master.catalog.copying) == 0
    for key in KEYS:
        places = world.placed(client, key)
        held = [world.agent(segment).inventory(slot, 1) for segment, slot, _ in places]
        assert {int(one["crc"][0]) for one in held} == {crc32c(stamp(key, 64))}


def test_a_node_that_comes_back_leaves_no_copy_too_many(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, KEYS, replicas=2)
    world.leave(world.nodes[0])
    world.pass_time(8.0)
    world.join(world.nodes[0])
    world.pass_time(5.0)
    assert all(len(nodes_of(world, client, key)) == 2 for key in KEYS)
    assert sum(node.agent.usage()["sealed"] for node in world.nodes) == 40


def lease(world: MasterWorld, client: int, key: bytes, ttl_ms: int) -> None:
    found = world.call(client, m.Lookup(pack_keys([key])), m.Found)
    leased = world.call(client, m.Lease(0, found.row, found.sequence, ttl_ms), m.Leased)
    assert leased.granted == b"\1"


def test_a_copy_too_many_that_is_leased_stays_until_its_lease_is_over(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], replicas=2)
    world.leave(world.nodes[0])
    world.pass_time(8.0)
    lease(world, client, b"a", 6000)
    world.join(world.nodes[0])
    world.pass_time(4.0)
    assert len(nodes_of(world, client, b"a")) == 3
    world.pass_time(6.0)
    assert len(nodes_of(world, client, b"a")) == 2


def reserve_anew(world: MasterWorld, client: int, key: bytes, segment: int) -> m.Commit:
    reserved = world.reserve(client, [key], 65, replace=True, prefer_segment=segment)
    return world.seal(reserved, [key], 65)


def test_a_new_value_waits_until_a_copy_that_was_trimmed_cannot_be_read(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], replicas=2)
    world.leave(world.nodes[0])
    world.pass_time(8.0)
    world.join(world.nodes[0])
    before = nodes_of(world, client, b"a")
    assert len(before) == 3
    world.now += 0.5
    for node in world.nodes:
        world.hear(node)  # its copies may be read again
        node.deaf = True
    for _ in range(10):
        world.now += 0.2
        world.perform(world.master.tick(world.now))
    kept = nodes_of(world, client, b"a")
    (trimmed,) = set(before) - set(kept)
    for segment in kept:
        world.nodes[segment].deaf = False
        world.pump(world.nodes[segment])
    request = world.ask(client, reserve_anew(world, client, b"a", kept[0]))
    assert world.replies[request] == []
    world.nodes[trimmed].deaf = False
    world.pump(world.nodes[trimmed])
    assert world.answer(request, m.Committed).status == bytes([S.COMMITTED])


def test_a_new_value_waits_until_a_copy_that_moved_cannot_be_read(world: MasterWorld) -> None:
    client = world.client()
    node, order = order_to(world, client, b"a")
    source = world.nodes[0]
    source.deaf = True
    world.from_node(node, keep(node.agent, order, [stamp(b"a", 64)]))
    assert nodes_of(world, client, b"a") == [order.segment]
    request = world.ask(client, reserve_anew(world, client, b"a", order.segment))
    assert world.replies[request] == []
    source.deaf = False
    world.pump(source)
    assert world.answer(request, m.Committed).status == bytes([S.COMMITTED])


def test_what_moved_away_unheard_does_not_come_back_after_its_removal(world: MasterWorld) -> None:
    client = world.client()
    node, order = order_to(world, client, b"a")
    source = world.nodes[0]
    source.deaf = True
    world.from_node(node, keep(node.agent, order, [stamp(b"a", 64)]))
    world.leave(source)
    request = world.ask(client, m.Remove(pack_keys([b"a"]), 60_000))
    assert world.replies[request] == []
    world.pass_time(5.0)
    assert world.answer(request, m.Removed).status == bytes([R.REMOVED])
    source.deaf = False
    world.start(2, first_term=2)
    for one in world.nodes:
        world.join(one)
    assert source.agent.usage()["sealed"] == 0
    assert world.look(world.client(), b"a") == [L.ABSENT]


def test_a_put_that_found_too_few_nodes_gets_its_copies_when_there_are_more() -> None:
    world = MasterWorld(REPAIR)
    world.add_node()
    client = world.client()
    assert world.put(client, [b"a"], replicas=2, min_replicas=1) == [S.COMMITTED]
    assert nodes_of(world, client, b"a") == [0]
    world.add_node()
    world.pass_time(3.0)
    assert nodes_of(world, client, b"a") == [0, 1]


def test_a_copy_evicts_nothing() -> None:
    world = MasterWorld(REPAIR)
    world.add_node()
    client = world.client()
    world.put(client, [b"a"], 30_000, replicas=2, min_replicas=1)
    world.add_node()
    world.put(client, [b"x"], 40_000, prefer_segment=1)
    world.pass_time(5.0)
    assert nodes_of(world, client, b"a") == [0] and world.look(client, b"x") == [L.FOUND]
    world.call(client, m.Touch(m.Touches()), m.Done)
    world.ask(client, m.Remove(pack_keys([b"x"])))
    world.pass_time(5.0)
    assert nodes_of(world, client, b"a") == [0, 1]


def test_a_drained_node_is_emptied_and_gets_nothing_new(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, KEYS, prefer_segment=0)
    world.put(client, [b"two"], replicas=2, prefer_segment=0)
    assert drain(world, client, "n0") == 21
    world.pass_time(4.0)
    assert drain(world, client, "n0") == 0
    assert world.nodes[0].agent.usage()["sealed"] == 0
    assert world.look(client, *KEYS, b"two") == [L.FOUND] * 21
    assert nodes_of(world, client, b"two") == [1, 2]
    world.put(client, [b"new"], prefer_segment=0)
    assert nodes_of(world, client, b"new") != [0]
    segments = world.stat(client)["segments"]
    assert segments["0"]["draining"] and not segments["1"]["draining"]
    drain(world, client, "n0", stop=True)
    world.put(client, [b"newer"], prefer_segment=0)
    assert nodes_of(world, client, b"newer") == [0]


def test_what_is_leased_leaves_a_drained_node_when_its_lease_is_over(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], prefer_segment=0)
    lease(world, client, b"a", 5000)
    drain(world, client, "n0")
    world.pass_time(3.0)
    assert nodes_of(world, client, b"a") == [0]
    world.pass_time(5.0)
    assert nodes_of(world, client, b"a") in ([1], [2])


def test_an_unknown_node_cannot_be_drained(world: MasterWorld) -> None:
    client = world.client()
    (reply,) = world.replies[world.ask(client, m.Drain("nobody"))]
    assert isinstance(reply, m.Failure) and "nobody" in reply.text


def order_to(world: MasterWorld, client: int, key: bytes) -> tuple[Node, m.Copy]:
    """A copy of `key` is on its way: who is to make it."""
    world.copying = False
    world.put(client, [key], prefer_segment=0)
    drain(world, client, "n0")
    world.pass_time(0.5)
    (node,) = [node for node in world.nodes if node.machine.copies]
    return node, node.machine.copies[0]


def test_a_copy_of_a_value_that_was_replaced_meanwhile_does_not_count(world: MasterWorld) -> None:
    client = world.client()
    node, order = order_to(world, client, b"a")
    copied = keep(node.agent, order, [stamp(b"a", 64)])
    assert copied.status == b"\0"
    assert world.put(client, [b"a"], 65, replace=True) == [S.COMMITTED]
    places = world.placed(client, b"a")
    world.from_node(node, copied)
    assert world.placed(client, b"a") == places
    world.pass_time(1.0)
    assert sum(node.agent.usage()["sealed"] for node in world.nodes) == 1
    assert promised(world) == 0


def test_a_sealed_copy_is_not_taken_for_a_stranger_before_its_answer(world: MasterWorld) -> None:
    client = world.client()
    node, order = order_to(world, client, b"a")
    copied = keep(node.agent, order, [stamp(b"a", 64)])
    world.now += 1.0
    world.hear(node)  # its heartbeat tells of a sealed slot
    assert node.agent.usage()["sealed"] == 1
    world.from_node(node, copied)
    assert nodes_of(world, client, b"a") == [order.segment]


def test_a_lease_taken_while_a_copy_is_made_keeps_the_source(world: MasterWorld) -> None:
    client = world.client()
    node, order = order_to(world, client, b"a")
    lease(world, client, b"a", 3000)
    world.from_node(node, keep(node.agent, order, [stamp(b"a", 64)]))
    assert nodes_of(world, client, b"a") == [0, order.segment]
    world.copying = True
    world.pass_time(5.0)
    assert nodes_of(world, client, b"a") == [order.segment]


def test_a_copy_sealed_unheard_of_does_not_come_back_after_its_removal(world: MasterWorld) -> None:
    client = world.client()
    node, order = order_to(world, client, b"a")
    copied = keep(node.agent, order, [stamp(b"a", 64)])  # sealed; the answer is never heard
    assert copied.status == b"\0"
    request = world.ask(client, m.Remove(pack_keys([b"a"]), 60_000))
    assert world.answer(request, m.Removed).status == bytes([R.REMOVED])
    world.start(2, first_term=2)
    for one in world.nodes:
        one.machine.copies.clear()
        world.join(one)
    assert world.look(world.client(), b"a") == [L.ABSENT]


def test_a_removal_waits_until_the_copying_agent_knows(world: MasterWorld) -> None:
    client = world.client()
    node, _ = order_to(world, client, b"a")
    node.deaf = True
    request = world.ask(client, m.Remove(pack_keys([b"a"]), 60_000))
    assert world.replies[request] == []
    node.deaf = False
    world.pump(node)
    assert world.answer(request, m.Removed).status == bytes([R.REMOVED])


@pytest.mark.parametrize("how", ["silence", "lost"])
def test_an_order_that_is_not_answered_is_given_up(world: MasterWorld, how: str) -> None:
    client = world.client()
    node, _ = order_to(world, client, b"a")
    assert promised(world) == 64
    node.machine.copies.clear()
    if how == "lost":
        world.leave(node)
    world.copying = True
    world.pass_time(14.0)
    assert promised(world) == 0
    assert nodes_of(world, client, b"a") != [0] and drain(world, client, "n0") == 0


def test_objects_on_their_way_are_counted(world: MasterWorld) -> None:
    client = world.client()
    assert world.put(client, [b"a", b"b", b"c"], prefer_segment=0) == [S.COMMITTED] * 3
    world.copying = False
    drain(world, client, "n0")
    world.pass_time(0.5)
    assert world.stat(client)["copies_open"] == 3


def test_bytes_that_are_not_the_objects_are_not_kept(world: MasterWorld) -> None:
    client = world.client()
    node, order = order_to(world, client, b"a")
    copied = keep(node.agent, order, [b"x" * 64])
    assert u8(copied.status)[0] != 0 and node.agent.usage()["sealed"] == 0
    stale = msgspec.structs.replace(order, term=order.term + 1)
    assert u8(keep(node.agent, stale, [stamp(b"a", 64)]).status)[0] != 0
    world.from_node(node, msgspec.structs.replace(copied, id=99))
    world.from_node(node, copied)
    assert world.master.catalog.copying.failed == 1 and promised(world) == 0


def test_a_malformed_answer_changes_nothing(world: MasterWorld) -> None:
    client = world.client()
    node, order = order_to(world, client, b"a")
    world.from_node(node, m.Copied(order.id, order.segment, b"", b"", b""))
    assert len(world.master.catalog.copying) == 1


def test_a_new_term_ends_all_orders(world: MasterWorld) -> None:
    client = world.client()
    order_to(world, client, b"a")
    old = Node("old")
    old.agent.raise_term(world.master.catalog.term + 5, bytes(16))
    world.nodes.append(old)
    world.join(old)
    assert len(world.master.catalog.copying) == 0 and promised(world) == 0


def test_an_open_order_alone_makes_nobody_tick_all_the_time(world: MasterWorld) -> None:
    client = world.client()
    order_to(world, client, b"a")
    drain(world, client, "n0", stop=True)
    world.perform(world.master.tick(world.now))
    due = world.master.next_deadline()
    assert due is not None and due > world.now
    assert len(world.master.catalog.copying) == 1


def test_what_cannot_leave_a_drained_node_does_not_hold_up_the_rest() -> None:
    world = MasterWorld(REPAIR, limits=MasterLimits(copied_rows_a_step=1))
    world.add_node()
    client = world.client()
    world.put(client, [b"big"], 40_000)
    world.put(client, [b"small"])
    world.add_node(capacity=1 << 14)
    drain(world, client, "n0")
    world.pass_time(4.0)
    assert nodes_of(world, client, b"small") == [1] and nodes_of(world, client, b"big") == [0]
    assert drain(world, client, "n0") == 1
    world.add_node()
    world.pass_time(4.0)
    assert nodes_of(world, client, b"big") == [2]


def test_a_step_of_repair_is_bounded_and_goes_on() -> None:
    world = MasterWorld(REPAIR, limits=MasterLimits(copied_rows_a_step=4))
    for _ in range(3):
        world.add_node()
    client = world.client()
    world.put(client, KEYS, replicas=2)
    world.leave(world.nodes[0])
    world.pass_time(8.0)
    assert all(nodes_of(world, client, key) == [1, 2] for key in KEYS)
    world.join(world.nodes[0])
    world.pass_time(8.0)
    assert sum(node.agent.usage()["sealed"] for node in world.nodes) == 40
