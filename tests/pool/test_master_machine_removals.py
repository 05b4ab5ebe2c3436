"""What is removed or replaced: answered when nobody can read it any more, and it does not come back
with a node that missed it."""

from __future__ import annotations

import pytest

from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.messages import PutStatus as S
from moonpool.pool.messages import RemoveStatus as R
from moonpool.pool.tombstones import Tomb, Tombstones, digest
from tests.pool.master_world import MasterWorld
from tests.pool.test_master_machine_recovery import RECOVERING


@pytest.fixture
def world() -> MasterWorld:
    world = MasterWorld()
    world.add_node()
    world.add_node()
    return world


def removed(world: MasterWorld, request: int) -> list[R]:
    return [R(byte) for byte in world.answer(request, m.Removed).status]


def remove(world: MasterWorld, client: int, *keys: bytes, wait_ms: int = 60_000) -> int:
    return world.ask(client, m.Remove(pack_keys(keys), wait_ms))


def test_a_removed_key_does_not_come_back_with_a_node_that_was_away(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], replicas=2)
    away = world.nodes[1]
    world.leave(away)
    request = remove(world, client, b"a")
    assert world.replies[request] == []
    world.pass_time(4)
    assert removed(world, request) == [R.REMOVED]
    assert len(world.nodes[0].agent.tombstones()[1]) == 1
    world.start(2)
    world.join(world.nodes[0])
    world.join(away)
    client = world.client()
    assert world.look(client, b"a") == [L.ABSENT]
    assert away.agent.usage()["sealed"] == 0


def test_nor_when_that_node_is_heard_first(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], replicas=2)
    away = world.nodes[1]
    world.leave(away)
    remove(world, client, b"a")
    world.start(2)
    world.join(away)
    world.join(world.nodes[0])
    assert world.look(world.client(), b"a") == [L.ABSENT]
    assert away.agent.usage()["sealed"] == 0


def test_nor_does_a_newer_value_that_this_master_never_heard_of() -> None:
    """Seed 13460 of the simulation: the node of the old copy missed that it was replaced."""
    world = MasterWorld(RECOVERING)
    world.add_node()
    world.add_node()
    world.pass_time(5)
    client = world.client()
    world.put(client, [b"a"], prefer_segment=0)
    old, new = world.nodes
    world.leave(old)
    reserved = world.reserve(client, [b"a"], replace=True, prefer_segment=1)
    request = world.ask(client, world.seal(reserved, [b"a"]))
    world.pass_time(4)
    assert list(world.answer(request, m.Committed).status) == [S.COMMITTED]
    world.start(2, first_term=1000)
    world.join(old)
    world.pass_time(4)
    client = world.client()
    assert removed(world, remove(world, client, b"a")) == [R.REMOVED]
    world.join(new)
    assert world.look(client, b"a") == [L.ABSENT]
    assert new.agent.usage()["sealed"] == 0


def test_tombstones_are_forgotten_once_the_node_reported(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], replicas=2)
    world.leave(world.nodes[1])
    remove(world, client, b"a")
    world.join(world.nodes[1])
    assert len(world.nodes[0].agent.tombstones()[1]) == 0
    assert world.nodes[1].agent.usage()["sealed"] == 0


def test_remove_is_answered_when_every_agent_has_retired(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], replicas=2)
    slow = world.nodes[1]
    slow.deaf = True
    request = remove(world, client, b"a", b"x")
    assert world.look(client, b"a") == [L.ABSENT]
    assert world.replies[request] == []
    slow.deaf = False
    world.pump(slow)
    assert removed(world, request) == [R.REMOVED, R.ABSENT]


@pytest.mark.parametrize("told", [False, True])
def test_a_removal_ends_when_the_node_that_missed_it_returns(
    world: MasterWorld, told: bool
) -> None:
    client, away = world.client(), world.nodes[1]
    world.put(client, [b"a"], prefer_segment=1)
    away.deaf = told  # it got the order, and died before it obeyed
    if not told:
        world.leave(away)
    request = remove(world, client, b"a")
    assert world.replies[request] == []
    if told:
        world.leave(away)
        away.deaf = False
    world.join(away)
    assert removed(world, request) == [R.REMOVED]
    assert away.agent.usage()["sealed"] == 0
    assert world.call(client, m.Stat(), m.Status).values["retire_orders"] == 0
    world.put(client, [b"a"])
    assert world.look(client, b"a") == [L.FOUND]


def test_remove_says_pending_and_where_at_its_deadline(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], replicas=2)
    world.put(client, [b"b"], prefer_segment=0)
    world.leave(world.nodes[1])
    request = remove(world, client, b"a", b"b", wait_ms=1000)
    world.pass_time(1.5)
    assert removed(world, request) == [R.PENDING, R.REMOVED]
    assert world.answer(request, m.Removed).pending_nodes == ["n1"]


def test_what_no_living_node_remembers_is_not_said_to_be_removed() -> None:
    """Its lease has passed and nobody reads it; but the next master would hear of it from the
    node that returns, and from nobody that it was removed."""
    world = MasterWorld()
    node = world.add_node()
    client = world.client()
    world.put(client, [b"a", b"b"])
    world.leave(node)
    early = remove(world, client, b"a", wait_ms=8000)
    world.pass_time(5.0)
    assert world.master.nodes.links[0].lost
    late = remove(world, client, b"b", wait_ms=8000)
    assert world.replies[early] == world.replies[late] == []
    world.pass_time(9.0)
    assert removed(world, early) == removed(world, late) == [R.PENDING]


def test_remove_prefix(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a1", b"a2", b"b"])
    assert world.call(client, m.RemovePrefix(b"a"), m.Done).count == 2
    assert world.look(client, b"a1", b"a2", b"b") == [L.ABSENT, L.ABSENT, L.FOUND]


def test_replace_is_acknowledged_after_the_old_replicas_are_retired(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], prefer_segment=0)
    ((_, slot, generation),) = world.placed(client, b"a")
    reserved = world.reserve(client, [b"a"], replace=True, prefer_segment=1)
    commit = world.seal(reserved, [b"a"])
    world.nodes[0].deaf = True
    request = world.ask(client, commit)
    assert world.replies[request] == []
    world.nodes[0].deaf = False
    world.pump(world.nodes[0])
    assert list(world.answer(request, m.Committed).status) == [S.COMMITTED]
    assert not isinstance(world.nodes[0].agent.read(slot, generation), bytes)


def test_replace_of_what_a_lost_node_holds_waits_for_its_lease(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], prefer_segment=1)
    world.leave(world.nodes[1])
    reserved = world.reserve(client, [b"a"])
    request = world.ask(client, world.seal(reserved, [b"a"]))
    world.pass_time(2.5)
    assert world.replies[request] == []
    world.pass_time(1)
    assert list(world.answer(request, m.Committed).status) == [S.COMMITTED]
    world.join(world.nodes[1])
    assert world.nodes[1].agent.usage()["sealed"] == 0


def test_older_tombstones_say_nothing_new_and_old_ones_end() -> None:
    tombs = Tombstones(2, 10.0)
    one = digest(b"a")
    assert tombs.add(Tomb(one, 1, 5), {0}, 0.0)
    assert not tombs.add(Tomb(one, 1, 4), {1}, 0.0)
    assert tombs.add(Tomb(one, 2, 1), {0}, 1.0)
    assert tombs.covers(b"a", 1, 9) and not tombs.covers(b"a", 2, 2)
    assert tombs.reported(0) == []
    assert tombs.reported(1) == [Tomb(one, 2, 1)]
    for i in range(3):
        tombs.add(Tomb(digest(b"%d" % i), 1, i), None, float(i))
    assert (len(tombs), tombs.dropped) == (2, 1)
    assert not tombs.add(Tomb(digest(b"1"), 1, 1), {3}, 2.0)
    assert len(tombs.expire(11.5)) == 1


def test_a_new_value_of_an_evicted_key_waits_until_the_old_one_is_retired() -> None:
    world = MasterWorld()
    node = world.add_node(capacity=256)
    client = world.client()
    assert world.put(client, [b"a", b"b", b"c", b"d"]) == [S.COMMITTED] * 4
    node.deaf = True
    assert world.put(client, [b"e"]) == [S.COMMITTED]  # evicts d, which can still be read
    commit = world.seal(world.reserve(client, [b"d"]), [b"d"])
    request = world.ask(client, commit)
    assert world.replies[request] == []
    node.deaf = False
    world.hear(node)
    assert world.answer(request, m.Committed).status == bytes([S.COMMITTED])


def test_a_removal_with_one_copy_on_a_lost_node_waits_for_the_other(world: MasterWorld) -> None:
    lost, slow = world.nodes
    client = world.client()
    assert world.put(client, [b"k"], replicas=2) == [S.COMMITTED]
    world.leave(lost)
    world.pass_time(5)
    slow.deaf = True
    request = world.ask(client, m.Remove(pack_keys([b"k"]), wait_ms=1000))
    assert world.replies[request] == []
    slow.deaf = False
    world.hear(slow)
    assert removed(world, request) == [R.REMOVED]


def test_a_repeated_commit_waits_as_the_first_one_does() -> None:
    world = MasterWorld()
    node = world.add_node()
    client = world.client()
    assert world.put(client, [b"k"]) == [S.COMMITTED]
    commit = world.seal(world.reserve(client, [b"k"], replace=True), [b"k"])
    node.deaf = True
    first, again = world.ask(client, commit), world.ask(client, commit)
    assert world.replies[first] == world.replies[again] == []
    node.deaf = False
    world.hear(node)
    assert world.answer(first, m.Committed) == world.answer(again, m.Committed)
