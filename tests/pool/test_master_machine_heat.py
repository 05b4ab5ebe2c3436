"""What many hosts read often gets an additional copy for as long as it is hot."""

from __future__ import annotations

import msgspec
import pytest

from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys
from moonpool.pool.messages import LookupStatus as L
from tests.pool.master_world import MasterWorld
from tests.pool.test_master_machine_copies import REPAIR, lease


def read(world: MasterWorld, clients: list[int], key: bytes, times: int) -> None:
    """Each client reads the key so often within a moment."""
    for client in clients:
        found = world.call(client, m.Lookup(pack_keys([key])), m.Found)
        touches = m.Touches(found.row * times, found.sequence * times)
        world.call(client, m.Touch(touches), m.Done)


HOT = msgspec.structs.replace(REPAIR, hot_reads_per_s=30.0, hot_hosts=3, cold_after_s=4.0)


def hot_world() -> tuple[MasterWorld, list[int]]:
    world = MasterWorld(HOT)
    for _ in range(3):
        world.add_node()
    return world, [world.client(f"host{i}") for i in range(3)]


def test_what_three_hosts_read_often_gains_a_copy_and_loses_it_when_it_is_cold() -> None:
    world, readers = hot_world()
    world.put(readers[0], [b"hot", b"cold"])
    read(world, readers, b"hot", 10)
    read(world, readers, b"cold", 9)
    world.pass_time(3.0)
    assert len(world.placed(readers[0], b"hot")) == 2
    assert len(world.placed(readers[0], b"cold")) == 1
    assert world.stat(readers[0])["hot_objects"] == 1
    world.pass_time(6.0)
    assert len(world.placed(readers[0], b"hot")) == 1
    assert world.look(readers[0], b"hot") == [L.FOUND]
    assert sum(node.agent.usage()["sealed"] for node in world.nodes) == 2


def test_an_additional_copy_that_is_leased_goes_after_its_lease() -> None:
    world, readers = hot_world()
    world.put(readers[0], [b"hot"])
    read(world, readers, b"hot", 10)
    world.pass_time(3.0)
    lease(world, readers[0], b"hot", 6000)
    world.pass_time(5.0)
    assert len(world.placed(readers[0], b"hot")) == 2
    world.pass_time(5.0)
    assert len(world.placed(readers[0], b"hot")) == 1


def test_what_is_read_on_stays_hot() -> None:
    world, readers = hot_world()
    world.put(readers[0], [b"hot"], replicas=2)
    for _ in range(5):
        read(world, readers, b"hot", 10)
        world.pass_time(2.0)
    assert len(world.placed(readers[0], b"hot")) == 3
    world.pass_time(8.0)
    assert len(world.placed(readers[0], b"hot")) == 2


@pytest.mark.parametrize(("hosts", "times"), [(2, 100), (3, 9)])
def test_too_few_hosts_or_reads_are_not_hot(hosts: int, times: int) -> None:
    world, readers = hot_world()
    world.put(readers[0], [b"a"])
    read(world, readers[:hosts], b"a", times)
    world.pass_time(3.0)
    assert len(world.placed(readers[0], b"a")) == 1


def test_a_value_put_anew_is_not_hot_for_the_old_ones_reads() -> None:
    world, readers = hot_world()
    world.put(readers[0], [b"a"])
    found = world.call(readers[0], m.Lookup(pack_keys([b"a"])), m.Found)
    world.put(readers[0], [b"a"], replace=True)
    for reader in readers:
        world.call(reader, m.Touch(m.Touches(found.row * 50, found.sequence * 50)), m.Done)
    world.pass_time(3.0)
    assert len(world.placed(readers[0], b"a")) == 1


def test_an_additional_copy_evicts_nothing() -> None:
    world, readers = hot_world()
    world.put(readers[0], [b"a"], 30_000, prefer_segment=0)
    world.put(readers[0], [b"x"], 40_000, prefer_segment=1)
    world.put(readers[0], [b"y"], 40_000, prefer_segment=2)
    read(world, readers, b"a", 20)
    world.pass_time(3.0)
    assert len(world.placed(readers[0], b"a")) == 1
    assert world.look(readers[0], b"x", b"y") == [L.FOUND, L.FOUND]


def test_what_cools_while_its_copy_is_made_loses_it_afterwards() -> None:
    world, readers = hot_world()
    world.copying = False
    world.put(readers[0], [b"a"])
    read(world, readers, b"a", 20)
    world.pass_time(5.0)  # cold again, the order is still open
    assert len(world.master.catalog.copying) == 1
    (node,) = [node for node in world.nodes if node.machine.copies]
    world.fetch_copies(node)
    assert len(world.placed(readers[0], b"a")) == 2
    world.pass_time(3.0)
    assert len(world.placed(readers[0], b"a")) == 1
