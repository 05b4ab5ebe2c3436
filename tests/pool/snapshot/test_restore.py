"""A restart from a snapshot: as far as the nodes agree, and no further."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.messages import PutStatus as S
from tests.pool.master_world import MasterWorld, Node, reserve_message
from tests.pool.snapshot.rig import contents, restart, saved_of, sealed, settle, snapshot


def world_of(nodes: int = 1, *keys: bytes) -> tuple[MasterWorld, int]:
    world = MasterWorld()
    for _ in range(nodes):
        world.add_node()
    client = world.client()
    if keys:
        world.put(client, keys, replicas=nodes)
    settle(world)
    return world, client


def spied(node: Node) -> list[m.Message]:
    """What this node is told from now on."""
    heard: list[m.Message] = []
    handle = node.machine.handle

    def spy(message: m.MasterToNode, now: float, boottime_ns: int) -> list[m.NodeToMaster]:
        heard.append(message)
        return handle(message, now, boottime_ns)

    node.machine.handle = spy  # type: ignore[method-assign]
    return heard


def test_nothing_is_told_again_that_did_not_change() -> None:
    world, _ = world_of(2, b"a", b"b", b"c")
    before, data = contents(world), snapshot(world)
    client = restart(world, data, join=False)
    for node in world.nodes:
        world.join(node)
        assert node.machine._reported and not node.machine.inventory_pending()
    assert contents(world) == before
    assert world.stat(client)["restored_objects"] == 6
    assert world.put(client, [b"a", b"d"]) == [S.EXISTS, S.COMMITTED]


def test_what_changed_after_it_is_what_the_node_says() -> None:
    world, client = world_of(1, b"a", b"b", b"c")
    data = snapshot(world)
    world.put(client, [b"new"])
    world.call(client, m.Remove(pack_keys([b"a"]), 1000), m.Removed)
    world.put(client, [b"b"], replace=True)
    before = contents(world)
    client = restart(world, data)
    assert contents(world) == before
    assert world.look(client, b"a", b"b", b"c", b"new") == [L.ABSENT, L.FOUND, L.FOUND, L.FOUND]
    assert world.stat(client)["restored_segments"] == 1


def test_what_was_sealed_before_it_and_committed_after_it_is_not_lost() -> None:
    """The change number of the seal was told before the snapshot was written."""
    world, client = world_of(1, b"a")
    reserved = world.call(client, reserve_message([b"late"]), m.Reserved)
    commit = world.seal(reserved, [b"late"])
    settle(world)
    data = snapshot(world)
    assert list(world.call(client, commit, m.Committed).status) == [S.COMMITTED]
    client = restart(world, data)
    assert world.stat(client)["restored_segments"] == 1
    assert world.look(client, b"late", b"a") == [L.FOUND, L.FOUND]


def test_a_retirement_that_never_arrived_is_found_out_by_counting() -> None:
    """The catalog no longer has the object, its agent still does: no change tells of it."""
    world, client = world_of(2, b"a", b"b")
    node = world.nodes[1]
    node.deaf = True
    world.ask(client, m.Remove(pack_keys([b"a"]), 60_000))
    data = snapshot(world)
    world.leave(node)  # the order was lost with the connection; the other node keeps a tombstone
    settle(world)
    node.deaf = False
    client = restart(world, data)
    assert world.stat(client)["distrusted_segments"] == 1
    assert world.look(client, b"a", b"b") == [L.ABSENT, L.FOUND]
    assert sealed(world.nodes) == 2


def test_a_removed_object_stays_removed_where_its_node_was_away() -> None:
    world, client = world_of(2, b"a", b"b")
    data = snapshot(world)
    world.leave(world.nodes[1])
    world.pass_time(4.0)
    world.call(client, m.Remove(pack_keys([b"a"]), 1000), m.Removed)
    client = restart(world, data)
    assert world.look(client, b"a", b"b") == [L.ABSENT, L.FOUND]
    assert sealed(world.nodes) == 2


def test_a_lease_is_not_renewed_before_the_rows_were_judged() -> None:
    """A removed object on a node that was away must not be read on the strength of a heartbeat."""
    world, _ = world_of(1, b"a")
    data = snapshot(world)
    restart(world, data, join=False)
    node = world.nodes[0]
    heard = spied(node)
    world.restoring = False
    world.join(node)
    for _ in range(3):
        world.now += 1.0
        world.hear(node)
    assert not any(isinstance(message, m.HeartbeatAck) for message in heard)
    world.restoring = True
    world.take_piece()
    world.take_piece()
    assert sum(isinstance(message, m.HeartbeatAck) for message in heard) == 3
    assert node.agent.valid_until_ns > world.boottime_ns


def test_a_node_of_another_life_tells_all() -> None:
    """Its agent counts changes anew, so that the snapshot's number means nothing to it."""
    world, client = world_of(1, b"a")
    data = snapshot(world)
    world.put(client, [b"b"])
    saved = saved_of(data)
    incarnation = world.nodes[0].agent.incarnation
    part = saved.find(incarnation, 256)
    assert part is not None and saved.find(incarnation, 255) is None
    part.since = 1 << 40
    world.start(9, first_term=world.master.catalog.term + 1, saved=saved)
    world.join(world.nodes[0])
    client = world.client()
    assert world.look(client, b"a", b"b") == [L.FOUND, L.FOUND]
    assert world.stat(client)["restored_segments"] == 0


def test_a_damaged_piece_ends_the_trust_in_all_of_it(caplog: pytest.LogCaptureFixture) -> None:
    long = b"b" * 300  # so that only a look at the rows finds it
    world, _ = world_of(2, b"a", long)
    before = contents(world)
    data = bytearray(snapshot(world))
    data[data.rfind(long)] ^= 1
    with caplog.at_level(logging.WARNING):
        client = restart(world, bytes(data))
    assert contents(world) == before
    assert world.stat(client)["restored_segments"] == 1  # the other one was whole
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "the snapshot is damaged and not used any more"
    ]


def test_a_node_that_goes_and_comes_while_it_is_taken_in() -> None:
    world, _ = world_of(1, *[b"%d" % number for number in range(40)])
    before, data = contents(world), snapshot(world, slots_a_step=8)
    restart(world, data, join=False)
    node = world.nodes[0]
    world.restoring = False
    world.join(node)
    for _ in range(3):
        world.take_piece()
    world.leave(node)
    world.restoring = True
    world.join(node)
    client = world.client()
    assert contents(world) == before
    assert world.stat(client)["segments"]["0"]["state"] == "live"
    assert world.stat(client)["restored_segments"] == 1


def test_a_segment_given_back_while_it_is_taken_in_holds_up_no_other() -> None:
    world, _ = world_of(2, *[b"%d" % number for number in range(40)])
    data = snapshot(world, slots_a_step=8)
    restart(world, data, join=False)
    world.restoring = False
    for node in world.nodes:
        world.join(node)
    world.take_piece()
    first = world.nodes[0]
    world.from_node(first, m.Leaving(first.machine.segment, first.agent.term, "gone"))
    world.restoring = True
    settle(world)
    assert world.stat(world.client())["segments"]["1"]["state"] == "live"
    assert len(contents(world)) == 40


def test_what_was_read_last_is_evicted_last_after_a_restart() -> None:
    world = MasterWorld()
    world.add_node(capacity=8 * 4096)
    client = world.client()
    keys = [b"%d" % number for number in range(8)]
    world.put(client, keys, 4096)  # within a call the last one goes first
    settle(world)
    table = world.master.catalog.table
    row = int(table.find(keys[5], np.array([1], np.uint32))[0])
    sequence = table.seq[[row]].tobytes()
    world.call(client, m.Touch(m.Touches(np.array([row], np.int32).tobytes(), sequence)), m.Done)
    data = snapshot(world)
    world.put(client, [b"x"], 4096)  # evicts 7; it is more recent than all of the snapshot
    client = restart(world, data)
    world.put(client, [b"y", b"z"], 4096)
    assert set(contents(world)) == {b"x", b"y", b"z", *(keys[i] for i in (0, 1, 2, 3, 5))}


def test_tiers_are_told_whole() -> None:
    world = MasterWorld()
    node = world.add_node(medium="disk")
    settle(world)
    assert saved_of(snapshot(world)).find(node.agent.incarnation, 256) is None


def test_a_segment_with_a_gap_is_left_out() -> None:
    world, _ = world_of(1, b"a")
    link = next(iter(world.master.nodes.links))
    link.progress = world.master.catalog.inventory.begin(link.segment)
    assert len(saved_of(snapshot(world))) == 0
