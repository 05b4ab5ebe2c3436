"""An agent whose slots change faster than its node tells: told late, or asked for everything."""

from __future__ import annotations

import numpy as np
import pytest

from moonpool._core import SegmentAgent
from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.node_shadow import CHANGES_MAX
from moonpool.pool.ports import CLAIM_DTYPE
from tests.pool.master_world import CONFIG, MasterWorld, Node
from tests.pool.snapshot.rig import contents, restart, snapshot

REMEMBERED = 1 << 16  # changes that an agent keeps
AT_ONCE = 128


@pytest.fixture
def world() -> MasterWorld:
    world = MasterWorld(CONFIG)
    world.add_node()
    return world


def change(agent: SegmentAgent, times: int) -> None:
    """Slots claimed and given up: so many changes, and nothing is different."""
    records = np.zeros(AT_ONCE, CLAIM_DTYPE)
    key = b"x"
    for i in range(AT_ONCE):
        records[i] = (1, agent.term, 1 << 40 | i, 0, 0, len(key), 0, 1, 0, 0, 0)
    before = agent.sequence
    while agent.sequence < before + times:
        status, slots, generations = agent.claim(records, key * AT_ONCE, agent.term)
        assert not status.any()
        agent.abort(slots, generations)


def heartbeats(world: MasterWorld, node: Node) -> list[m.Heartbeat]:
    """What the node says by itself in a second, with the times it asks for."""
    said, end = [], world.now + 1.0
    while world.now < end:
        world.now = min(end, max(world.now + 0.001, node.machine.next_deadline()))
        for message in node.machine.tick(world.now, world.boottime_ns):
            assert isinstance(message, m.Heartbeat)
            said.append(message)
            world.from_node(node, message)
    return said


def test_what_one_heartbeat_cannot_tell_is_told_before_the_next_is_due(world: MasterWorld) -> None:
    node = world.nodes[0]
    heartbeats(world, node)
    change(node.agent, 5 * CHANGES_MAX)
    said = heartbeats(world, node)
    assert [len(one.change_kind) for one in said[:5]] == [CHANGES_MAX] * 5
    assert said[-1].sequence == node.agent.sequence and not any(one.gap for one in said)


def test_changes_that_were_forgotten_before_they_were_told_cost_an_inventory(
    world: MasterWorld,
) -> None:
    """And nothing else: what is there is found, what went is not, what nobody knows is retired."""
    client, node = world.client(), world.nodes[0]
    world.put(client, [b"stays", b"goes"])
    world.pass_time(1.0)
    ((segment, slot, generation),) = world.placed(client, b"goes")
    at = np.array([slot], np.uint32), np.array([generation], np.uint64)
    node.agent.retire(*at, node.agent.term)
    world.claim(segment, b"stray", 1 << 41, 64, node.agent.term)
    world.put(client, [b"late"])
    promised = world.reserve(client, [b"promised"])
    commit = world.seal(promised, [b"promised"])
    change(node.agent, REMEMBERED + 1)
    (first, *_) = heartbeats(world, node)
    assert first.gap and not first.change_kind
    world.pass_time(2.0)
    assert world.look(client, b"stays", b"goes", b"late") == [L.FOUND, L.ABSENT, L.FOUND]
    world.call(client, commit, m.Committed)
    assert world.look(client, b"promised") == [L.FOUND]
    assert node.agent.usage()["sealed"] == 3, "the stray is retired, what is promised is not"


def test_a_snapshot_from_before_them_is_not_believed(world: MasterWorld) -> None:
    client, node = world.client(), world.nodes[0]
    world.put(client, [b"a", b"b", b"c"])
    world.pass_time(1.0)
    data = snapshot(world)
    world.call(client, m.Remove(pack_keys([b"c"]), 1000), m.Removed)
    world.put(client, [b"d"])  # as many as before
    world.pass_time(1.0)
    before = contents(world)
    change(node.agent, REMEMBERED + 1)
    client = restart(world, data)
    assert contents(world) == before
    assert world.stat(client)["restored_segments"] == 0
