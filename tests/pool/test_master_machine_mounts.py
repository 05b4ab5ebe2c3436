"""A node that lends several segments gives one back: its objects go elsewhere, none is lost."""

from __future__ import annotations

import msgspec
import pytest

from moonpool.pool import messages as m
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.messages import PutStatus as S
from tests.pool.master_world import CONFIG, MasterWorld, Node

SETTINGS = msgspec.structs.replace(CONFIG, slow_start_s=0.0)
KEYS = [b"k%d" % i for i in range(20)]


@pytest.fixture
def world() -> MasterWorld:
    """Node n0 lends segments 0 and 1, node n1 lends 2."""
    world = MasterWorld(SETTINGS)
    for name in ("n0", "n0", "n1"):
        world.add_node(name)
    return world


def tell(world: MasterWorld, node: Node, what: str) -> None:
    world.from_node(node, m.Leaving(node.machine.segment, node.agent.term, what))


def segments_of(world: MasterWorld, client: int, key: bytes) -> list[int]:
    return sorted(segment for segment, _, _ in world.placed(client, key))


def test_objects_go_to_the_nodes_other_segment_too(world: MasterWorld) -> None:
    client = world.client()
    assert world.put(client, KEYS, prefer_segment=1) == [S.COMMITTED] * 20
    world.leave(world.nodes[2])
    tell(world, world.nodes[1], "leave")
    world.pass_time(3.0)
    assert all(segments_of(world, client, key) == [0] for key in KEYS)
    assert world.nodes[1].agent.usage()["sealed"] == 0


def test_two_copies_stay_on_two_nodes(world: MasterWorld) -> None:
    client = world.client()
    assert world.put(client, KEYS, replicas=2, prefer_segment=1) == [S.COMMITTED] * 20
    held = [segments_of(world, client, key) for key in KEYS]
    assert all(one in ([0, 2], [1, 2]) for one in held) and [1, 2] in held
    tell(world, world.nodes[1], "leave")
    world.pass_time(4.0)
    assert all(segments_of(world, client, key) == [0, 2] for key in KEYS)


def test_nothing_new_comes_until_it_stays(world: MasterWorld) -> None:
    client = world.client()
    tell(world, world.nodes[1], "leave")
    world.put(client, KEYS[:5], prefer_segment=1)
    assert not any(segments_of(world, client, key) == [1] for key in KEYS[:5])
    tell(world, world.nodes[1], "stay")
    world.put(client, KEYS[5:6], prefer_segment=1)
    assert segments_of(world, client, KEYS[5]) == [1]


def test_a_drain_of_the_node_that_ends_does_not_end_it(world: MasterWorld) -> None:
    client = world.client()
    tell(world, world.nodes[1], "leave")
    world.call(client, m.Drain("n0"), m.Done)
    world.call(client, m.Drain("n0", stop=True), m.Done)
    draining = [one.draining for one in world.master.catalog.segments]
    assert draining == [False, True, False]


def test_gone_it_is_no_part_of_the_pool(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, KEYS, prefer_segment=1)
    tell(world, world.nodes[1], "leave")
    world.pass_time(3.0)
    before = world.stat(client)
    tell(world, world.nodes[1], "gone")
    world.perform(world.master.disconnected(world.nodes[1].session, world.now))
    world.nodes[1].session = 0
    world.pass_time(10.0)
    stat = world.stat(client)
    assert sorted(stat["segments"]) == ["0", "2"]
    assert stat["capacity_bytes"] < before["capacity_bytes"]
    topology = world.call(client, m.Topology(), m.TopologyIs)
    assert [one.segment for one in topology.segments] == [0, 2]
    assert world.look(client, *KEYS) == [L.FOUND] * 20
    assert world.master.catalog.segments.all_alive
    events = world.call(client, m.EventsFrom(0, 0), m.Events).events
    assert "node_lost" not in [event.kind for event in events]
    world.call(client, m.Drain("n0"), m.Done)
    world.pass_time(3.0)
    assert all(segments_of(world, client, key) == [2] for key in KEYS)


def test_what_was_put_meanwhile_is_lost_with_a_segment_that_is_gone_too_soon(
    world: MasterWorld,
) -> None:
    """A node that breaks its word costs its objects, and no wrong answer."""
    client = world.client()
    world.put(client, KEYS[:1], prefer_segment=1)
    tell(world, world.nodes[1], "gone")
    assert world.look(client, KEYS[0]) == [L.ABSENT]


def test_a_leader_that_did_not_hear_it_is_told_with_the_next_join(world: MasterWorld) -> None:
    client = world.client()
    world.leave(world.nodes[1])
    world.leave(world.nodes[0])
    gone = world.nodes[1].agent.incarnation
    world.nodes[0].machine.given_back.append(gone)
    world.join(world.nodes[0])
    assert sorted(world.stat(client)["segments"]) == ["0", "2"]
    world.nodes[2].machine.given_back.append(world.nodes[0].agent.incarnation)
    world.leave(world.nodes[2])
    world.join(world.nodes[2])
    assert sorted(world.stat(client)["segments"]) == ["0", "2"], "another node's word"


def test_what_was_gone_and_joins_again_is_part_of_the_pool(world: MasterWorld) -> None:
    """Its node was killed between its word and the removal of the file."""
    client = world.client()
    tell(world, world.nodes[1], "gone")
    world.leave(world.nodes[1])
    world.join(world.nodes[1])
    world.pass_time(1.0)
    assert sorted(world.stat(client)["segments"]) == ["0", "1", "2"]
    assert world.put(client, KEYS, prefer_segment=1) == [S.COMMITTED] * 20
    assert all(segments_of(world, client, key) == [1] for key in KEYS)


def test_another_nodes_word_is_not_taken(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, KEYS[:1], prefer_segment=1)
    world.from_node(world.nodes[0], m.Leaving(1, world.nodes[0].agent.term, "gone"))
    assert segments_of(world, client, KEYS[0]) == [1]
