"""What was evicted while a node that has it was away, and put anew before that node returned."""

import pytest

from moonpool.pool import messages as m
from moonpool.pool.unheard import Unheard
from tests.pool.master_world import MasterWorld, Node

L, R, S = m.LookupStatus, m.RemoveStatus, m.PutStatus
LEASE_OVER_S = 4


def there(world: MasterWorld, client: int) -> bool:
    return world.look(client, b"a") == [L.FOUND]


def fill(world: MasterWorld, client: int, names: bytes) -> None:
    """One object for each letter; four of them are as much as a node holds."""
    for name in names:
        assert world.put(client, [bytes([name])]) == [S.COMMITTED]


def evicted_while_away(lost: bool) -> tuple[MasterWorld, int, Node]:
    """ "a" lay on both nodes; one went, then the other gave it up. `lost`: when the lease of the
    one that went was over, else before."""
    world = MasterWorld()
    world.add_node(capacity=256)
    away = world.add_node(capacity=256)
    client = world.client()
    assert world.put(client, [b"a"], replicas=2) == [S.COMMITTED]
    world.leave(away)
    if lost:
        world.pass_time(LEASE_OVER_S)
    fill(world, client, b"bcde")
    assert not there(world, client)
    world.pass_time(LEASE_OVER_S)
    return world, client, away


def there_after_all(world: MasterWorld, away: Node) -> bool:
    """Under the next master, which knows what nodes tell it."""
    world.start(2)
    world.join(world.nodes[0])
    world.join(away)
    return there(world, world.client())


@pytest.mark.parametrize("lost", [True, False])
def test_an_evicted_value_comes_back_with_its_node(lost: bool) -> None:
    world, _, away = evicted_while_away(lost)
    assert there_after_all(world, away)


@pytest.mark.parametrize("lost", [True, False])
def test_it_does_not_once_a_newer_one_was_put_and_evicted_too(lost: bool) -> None:
    """Seed 35 of the simulation, with disks."""
    world, client, away = evicted_while_away(lost)
    assert world.put(client, [b"a"]) == [S.COMMITTED]
    assert len(world.nodes[0].agent.tombstones()[1]) == 1
    fill(world, client, b"fghi")
    assert not there(world, client)
    assert not there_after_all(world, away)
    assert away.agent.usage()["sealed"] == 0


def test_nor_once_the_newer_one_was_removed() -> None:
    world, client, away = evicted_while_away(lost=True)
    assert world.put(client, [b"a"]) == [S.COMMITTED]
    request = world.ask(client, m.Remove(m.KeyColumn(b"a", (1).to_bytes(4, "little"))))
    assert list(world.answer(request, m.Removed).status) == [R.REMOVED]
    assert not there_after_all(world, away)


def test_the_tombstone_goes_when_that_node_has_reported() -> None:
    world, client, away = evicted_while_away(lost=True)
    assert world.put(client, [b"a"]) == [S.COMMITTED]
    world.join(away)
    assert len(world.nodes[0].agent.tombstones()[1]) == 0


def test_what_goes_after_that_node_reported_needs_none() -> None:
    world, client, away = evicted_while_away(lost=True)
    world.join(away)
    assert world.put(client, [b"a"]) == [S.COMMITTED]
    assert len(world.nodes[0].agent.tombstones()[1]) == 0


def test_it_is_told_once_and_bounded() -> None:
    unheard = Unheard(2)
    unheard.add(1, [b"a", b"b"])
    unheard.add(2, [b"b"])
    assert (unheard.take(b"b"), unheard.take(b"b")) == ({1, 2}, set())
    unheard.add(1, [b"c", b"d"])
    assert (len(unheard), unheard.dropped, unheard.take(b"a")) == (2, 1, set())
    unheard.reported(1)
    assert len(unheard) == 0
