"""Nodes: adoption, terms, loss and return, reports."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from moonpool.pool import messages as m
from moonpool.pool.master_limits import MasterLimits
from moonpool.pool.master_links import NodeLink
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.messages import PutStatus as S
from tests.pool.master_world import CONFIG, MasterWorld, Node


@pytest.fixture
def world() -> MasterWorld:
    world = MasterWorld()
    world.add_node()
    world.add_node()
    return world


def events(world: MasterWorld, client: int) -> list[str]:
    term = world.master.catalog.term
    return [one.kind for one in world.call(client, m.EventsFrom(term, 1), m.Events).events]


def test_a_first_node_is_adopted_under_a_raised_term() -> None:
    world = MasterWorld()
    node = world.add_node()
    assert node.agent.term == world.master.catalog.term == 1
    assert world.master.nodes.links[0].state.value == "live"


def test_a_node_of_a_former_master_raises_the_term_of_all() -> None:
    world = MasterWorld()
    world.add_node()
    old = Node("old")
    old.agent.raise_term(7, bytes(16))
    world.nodes.append(old)
    client = world.client()
    reserved = world.reserve(client, [b"a"])
    world.join(old)
    assert [node.agent.term for node in world.nodes] == [8, 8]
    commit = m.Commit(
        1,
        reserved.row,
        reserved.attempt,
        bytes(4),
        m.ReplicaColumn(b"\x01", bytes(2), bytes(4), bytes(8)),
    )
    assert list(world.call(client, commit, m.Committed).status) == [S.STALE_TERM]
    assert world.put(client, [b"a"]) == [S.COMMITTED]


def test_a_restarted_master_finds_everything_and_grants_higher_versions(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a", b"b"], chain=True, replicas=2)
    last = world.master.catalog.admission.next_sequence
    world.start(2)
    for node in world.nodes:
        world.join(node)
    client = world.client()
    assert world.look(client, b"a", b"b") == [L.FOUND] * 2
    assert len(world.placed(client, b"a")) == 2
    assert world.master.catalog.admission.next_sequence >= last
    assert world.put(client, [b"a", b"c"]) == [S.EXISTS, S.COMMITTED]


def test_a_lost_node_is_a_miss_at_once_and_an_event_after_its_lease(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], prefer_segment=1)
    world.leave(world.nodes[1])
    assert world.look(client, b"a") == [L.UNREACHABLE]
    assert "node_lost" not in events(world, client)
    world.pass_time(4)
    assert events(world, client)[-1] == "node_lost"
    world.join(world.nodes[1])
    world.pass_time(1)
    assert events(world, client)[-1] == "node_back"
    assert world.look(client, b"a") == [L.FOUND]
    assert world.put(client, [b"b"], prefer_segment=1) == [S.COMMITTED]


def test_a_silent_node_is_lost_too_and_back_when_heard(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], prefer_segment=1)
    world.nodes[1].deaf = True
    world.pass_time(4)
    assert world.look(client, b"a") == [L.UNREACHABLE]
    world.nodes[1].deaf = False
    world.pass_time(1)
    assert world.look(client, b"a") == [L.FOUND]
    assert events(world, client)[-2:] == ["node_lost", "node_back"]
    assert {n for (n, _, _) in world.placed(client, b"a")} == {1}


def test_a_node_that_stays_away_is_forgotten(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"], prefer_segment=1)
    world.leave(world.nodes[1])
    world.pass_time(64)
    assert world.look(client, b"a") == [L.ABSENT]
    world.join(world.nodes[1])
    assert world.nodes[1].agent.usage()["sealed"] == 0


def test_a_gap_asks_for_the_inventory(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a", b"b"], prefer_segment=0)
    node = world.nodes[0]
    ((segment, slot, generation),) = world.placed(client, b"a")
    at = np.array([slot], np.uint32), np.array([generation], np.uint64)
    node.agent.retire(*at, node.agent.term)
    world.from_node(node, m.Heartbeat(segment, node.agent.term, 0, {}, gap=True))
    # Its own clock has not asked for a heartbeat yet: give the machine one to pair the answer with.
    world.pass_time(2)
    links = world.master.nodes.links
    assert links[0].state.value == "live"


def test_a_slot_the_agent_gave_up_is_lost(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"])
    ((segment, slot, generation),) = world.placed(client, b"a")
    agent = world.agent(segment)
    agent.retire(np.array([slot], np.uint32), np.array([generation], np.uint64), agent.term)
    world.pass_time(1)
    assert world.look(client, b"a") == [L.ABSENT]


def test_a_round_without_any_node_looks_at_each_of_them_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A master that was cut off from a thousand asked each of all others: for half a second."""
    world = MasterWorld()
    for _ in range(40):
        world.leave(world.add_node())
    asked = 0
    obeys: property = vars(NodeLink)["obeys"]

    def counted(link: NodeLink) -> bool:
        nonlocal asked
        asked += 1
        return bool(obeys.__get__(link))

    monkeypatch.setattr(NodeLink, "obeys", property(counted))
    world.now += 100.0
    world.perform(world.master.tick(world.now))
    assert 0 < asked <= 3 * 40


def test_expiries_a_node_missed_are_told_on_its_return(world: MasterWorld) -> None:
    client = world.client()
    reserved = world.reserve(client, [b"a"], prefer_segment=1)
    world.seal(reserved, [b"a"])
    world.leave(world.nodes[1])
    world.call(client, m.Abort(reserved.row, reserved.attempt), m.Done)
    world.join(world.nodes[1])
    assert world.nodes[1].agent.usage()["sealed"] == 0


def join_message(node: Node, **changes: object) -> m.JoinSegment:
    (join,) = node.machine.connected(0.0)
    assert isinstance(join, m.JoinSegment)
    return msgspec.structs.replace(join, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"slots": 0},
        {"slots": 2**40},
        {"term": -1},
        {"endpoint": m.SegmentEndpoint(0, b"short", "n", "h", capacity_bytes=5)},
        {"endpoint": m.SegmentEndpoint(0, b"x" * 16, "n", "h", capacity_bytes=-5)},
    ],
)
def test_absurd_segments_are_refused(world: MasterWorld, changes: dict[str, object]) -> None:
    session = 500
    world.master.connected(session, "node", "n", "h", world.now)
    (effect,) = world.master.handle(
        session, 0, join_message(Node("x"), **changes), world.now, world.wall_ms
    )
    assert isinstance(effect.message, m.Failure)
    assert len(world.master.catalog.segments) == 2


def test_segments_are_bounded_and_keep_their_geometry() -> None:
    world = MasterWorld(limits=MasterLimits(segments_max=1))
    node = world.add_node()
    other = Node("y")
    world.master.connected(500, "node", "n", "h", world.now)
    for message in (join_message(other), join_message(node, slots=77)):
        (effect,) = world.master.handle(500, 0, message, world.now, world.wall_ms)
        assert isinstance(effect.message, m.Failure)


@pytest.mark.parametrize(
    "message",
    [
        m.Stat(),
        m.Heartbeat(0, 1, 0, {}, change_kind=b"\x01"),
        m.Heartbeat(0, 1, 0, {}, bytes(8), b"\x01", b"\xff" * 4, bytes(8), bytes(8), bytes(8)),
    ],
)
def test_malformed_reports_are_refused(world: MasterWorld, message: m.Message) -> None:
    session = world.nodes[0].session
    effects = world.master.handle(session, 0, message, world.now, world.wall_ms)
    assert isinstance(effects[0].message, m.Failure)


def test_reports_of_other_sessions_and_terms_are_ignored(world: MasterWorld) -> None:
    session = world.nodes[0].session
    for message in (m.Heartbeat(1, 1, 0, {}), m.Heartbeat(0, 9, 0, {}), m.RetireDone(1, 1, b"")):
        assert world.master.handle(session, 0, message, world.now, world.wall_ms) == []


@pytest.mark.parametrize("end", ["abort", "commit"])
def test_a_value_reported_while_its_key_is_reserved_is_the_keys_until_the_commit(end: str) -> None:
    world = MasterWorld()
    first, second = world.add_node(), world.add_node()
    client = world.client()
    assert world.put(client, [b"k"], size=64, prefer_segment=0) == [S.COMMITTED]
    holder = first if first.agent.usage()["sealed"] else second
    other = second if holder is first else first
    world.leave(holder)
    world.start(instance=2)
    world.join(other)
    client = world.client()
    commit = world.seal(world.reserve(client, [b"k"]), [b"k"])
    world.join(holder)
    assert world.look(client, b"k") == [L.FOUND]
    if end == "abort":
        world.call(client, m.Abort(commit.row, commit.attempt), m.Done)
        world.hear(other)
        assert (holder.agent.usage()["sealed"], other.agent.usage()["sealed"]) == (1, 0)
    else:
        assert world.call(client, commit, m.Committed).status == bytes([S.COMMITTED])
        world.hear(holder)
        assert (holder.agent.usage()["sealed"], other.agent.usage()["sealed"]) == (0, 1)
    assert world.look(client, b"k") == [L.FOUND]
    assert world.stat(client)["objects"] == 1


def test_labels_name_the_failure_domain_and_an_empty_node_starts_slowly() -> None:
    world = MasterWorld(msgspec.structs.replace(CONFIG, failure_domain="rack", slow_start_s=10.0))
    node = world.add_node()
    assert world.master.catalog.segments[0].facts()[6:] == ("h", 0.1)
    node.machine.endpoint = msgspec.structs.replace(node.machine.endpoint, labels={"rack": "r7"})
    world.leave(node)
    world.join(node)
    assert world.master.catalog.segments[0].facts().domain == "r7"
    world.now += 20.0
    world.master.nodes.reports.heartbeat(
        node.session, m.Heartbeat(0, world.master.catalog.term, 0, {}), world.now, world.wall_ms
    )
    assert world.master.catalog.segments[0].facts().warmth == 1.0
