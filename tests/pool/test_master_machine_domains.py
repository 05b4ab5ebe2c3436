"""Copies that are made later lie apart as those of a put do: in different failure domains."""

from __future__ import annotations

import msgspec

from moonpool.pool import messages as m
from moonpool.pool.messages import PutStatus as S
from tests.pool.master_world import CONFIG, MasterWorld, Node

KEYS = [b"k%d" % i for i in range(20)]
RACKS = msgspec.structs.replace(CONFIG, repair_delay_s=2.0, slow_start_s=0.0, failure_domain="rack")


def world_of(racks: str) -> MasterWorld:
    """A node in each rack that is named, all on one host."""
    world = MasterWorld(RACKS)
    for rack in racks:
        node = Node(f"n{len(world.nodes)}")
        node.machine.endpoint = msgspec.structs.replace(
            node.machine.endpoint, labels={"rack": rack}
        )
        world.nodes.append(node)
        world.join(node)
    return world


def nodes_of(world: MasterWorld, client: int, key: bytes) -> list[int]:
    return sorted(segment for segment, _, _ in world.placed(client, key))


def apart(world: MasterWorld, client: int, racks: str) -> bool:
    """Whether each object lies in two racks."""
    where = [nodes_of(world, client, key) for key in KEYS]
    return all(len({racks[node] for node in nodes}) == 2 == len(nodes) for nodes in where)


def test_repair_takes_a_rack_that_has_no_copy() -> None:
    racks = "aaabb"
    world = world_of(racks)
    client = world.client()
    assert world.put(client, KEYS, replicas=2, prefer_segment=3) == [S.COMMITTED] * len(KEYS)
    assert apart(world, client, racks)
    world.leave(world.nodes[3])
    world.pass_time(8.0)
    assert apart(world, client, racks)


def test_a_drained_nodes_objects_stay_in_its_rack_where_the_others_have_copies() -> None:
    racks = "aaabb"
    world = world_of(racks)
    client = world.client()
    world.put(client, KEYS, replicas=2, prefer_segment=3)
    world.call(client, m.Drain("n3"), m.Done)
    world.pass_time(8.0)
    assert world.call(client, m.Drain("n3"), m.Done).count == 0
    assert apart(world, client, racks)


def test_without_room_apart_they_lie_beside_each_other_until_there_is() -> None:
    world = world_of("aab")
    client = world.client()
    assert world.put(client, [b"big"], 30_000, prefer_segment=2) == [S.COMMITTED]
    world.put(client, [b"k"], replicas=2, prefer_segment=2)
    world.leave(world.nodes[2])
    world.pass_time(8.0)
    assert nodes_of(world, client, b"k") == [0, 1]
    world.join(world.nodes[2])
    world.pass_time(8.0)
    kept = nodes_of(world, client, b"k")
    assert len(kept) == 2 and 2 in kept, "the one too many is of the rack that has two"
