"""Calls that wait for nodes to retire are bounded: one more is refused and changes nothing."""

from __future__ import annotations

import pytest

from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys
from moonpool.pool.master_limits import MasterLimits
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.messages import PutStatus as S
from moonpool.pool.messages import RemoveStatus as R
from tests.pool.master_world import MasterWorld


@pytest.fixture
def world() -> MasterWorld:
    """One node, which does not listen any more, holds a, b and c; one call may wait for it."""
    world = MasterWorld(limits=MasterLimits(retire_waits_max=1))
    node = world.add_node()
    world.put(world.client(), [b"a", b"b", b"c"])
    node.deaf = True
    return world


def remove(world: MasterWorld, client: int, key: bytes, wait_ms: int = 60_000) -> int:
    return world.ask(client, m.Remove(pack_keys([key]), wait_ms))


def listen(world: MasterWorld) -> None:
    world.nodes[0].deaf = False
    world.pump(world.nodes[0])


def test_a_removal_without_room_to_wait_is_refused(world: MasterWorld) -> None:
    client = world.client()
    first = remove(world, client, b"a")
    refused = world.answer(remove(world, client, b"b"), m.Failure)
    assert refused.code == "not_ready" and "retire_waits_max" in refused.text
    assert world.call(client, m.RemovePrefix(b"c"), m.Failure).code == "not_ready"
    assert world.look(client, b"a", b"b", b"c") == [L.ABSENT, L.FOUND, L.FOUND]
    stat = world.stat(client)
    assert (stat["retire_waits"], stat["retire_refused"]) == (1, 2)
    listen(world)
    assert list(world.answer(first, m.Removed).status) == [R.REMOVED]
    assert world.stat(client)["retire_waits"] == 0
    assert list(world.answer(remove(world, client, b"b"), m.Removed).status) == [R.REMOVED]


def test_a_call_whose_time_is_up_makes_room(world: MasterWorld) -> None:
    client = world.client()
    late = remove(world, client, b"a", wait_ms=100)
    world.now += 0.2
    world.perform(world.master.tick(world.now))
    assert list(world.answer(late, m.Removed).status) == [R.PENDING]
    assert world.replies[remove(world, client, b"b")] == []


def test_a_replacement_without_room_to_wait_ends_and_the_old_value_stays(
    world: MasterWorld,
) -> None:
    client = world.client()
    again = world.seal(world.reserve(client, [b"b"], replace=True), [b"b"])
    other = world.seal(world.reserve(client, [b"new"]), [b"new"])
    remove(world, client, b"a")
    assert list(world.call(client, again, m.Committed).status) == [S.GONE]
    assert list(world.call(client, other, m.Committed).status) == [S.COMMITTED]
    assert world.look(client, b"b", b"new") == [L.FOUND, L.FOUND]
    assert world.stat(client)["reservations"] == 0


def test_a_key_whose_removal_is_open_waits_for_room_too(world: MasterWorld) -> None:
    client = world.client()
    remove(world, client, b"a")
    again = world.seal(world.reserve(client, [b"a"]), [b"a"])
    assert list(world.call(client, again, m.Committed).status) == [S.GONE]
    listen(world)
    assert world.put(client, [b"a"]) == [S.COMMITTED]


def test_a_put_that_waited_for_a_removal_is_counted_when_it_is_answered(world: MasterWorld) -> None:
    client = world.client()
    again = world.seal(world.reserve(client, [b"b"], replace=True), [b"b"])
    waits = world.ask(client, again)
    assert world.replies[waits] == []
    assert world.stat(client)["answers"]["puts"] == {"committed": 3}
    listen(world)
    assert list(world.answer(waits, m.Committed).status) == [S.COMMITTED]
    assert world.stat(client)["answers"]["puts"] == {"committed": 4}
