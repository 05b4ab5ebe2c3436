"""A master that has just started: what is answered, held and refused until its nodes are back."""

from __future__ import annotations

import msgspec

from moonpool.core.sections import MasterConfig
from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys
from moonpool.pool.master_limits import MasterLimits
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.messages import PutStatus as S
from moonpool.pool.messages import RemoveStatus as R
from tests.pool.master_world import CONFIG, MasterWorld, Node, reserve_message

RECOVERING = msgspec.structs.replace(CONFIG, grace_ms=3200)


def recovering(nodes_expected: int = 0) -> tuple[MasterWorld, int]:
    world = MasterWorld(RECOVERING, nodes_expected=1)
    world.add_node()
    client = world.client()
    assert world.put(client, [b"a"]) == [S.COMMITTED]
    world.start(2, nodes_expected)
    return world, world.client()


def test_reads_are_answered_at_once_while_recovering() -> None:
    world, client = recovering()
    assert world.look(client, b"a") == [L.RECOVERING]
    world.join(world.nodes[0])
    assert world.look(client, b"a", b"x") == [L.FOUND, L.RECOVERING]


def test_puts_are_held_until_the_grace_is_over() -> None:
    world, client = recovering()
    world.join(world.nodes[0])
    assert list(world.reserve(client, [b"a"]).status) == [S.EXISTS]
    request = world.ask(client, reserve_message([b"a", b"b"]))
    assert world.replies[request] == []
    world.pass_time(3.5)
    assert list(world.answer(request, m.Reserved).status) == [S.EXISTS, S.GRANTED]


def test_puts_are_answered_recovering_at_their_deadline() -> None:
    world, client = recovering()
    request = world.ask(client, reserve_message([b"b"]), deadline_ms=500)
    world.pass_time(1)
    assert list(world.answer(request, m.Reserved).status) == [S.RECOVERING]


def test_the_recovery_ends_when_the_expected_nodes_have_reported() -> None:
    world, client = recovering(nodes_expected=1)
    request = world.ask(client, reserve_message([b"b"]))
    world.join(world.nodes[0])
    assert list(world.answer(request, m.Reserved).status) == [S.GRANTED]
    assert not world.master.recovering


def test_held_puts_are_bounded_and_end_with_their_session() -> None:
    config: MasterConfig = RECOVERING
    world = MasterWorld(config, limits=MasterLimits(held_puts_max=1))
    client = world.client()
    first = world.ask(client, reserve_message([b"a"]))
    second = world.ask(client, reserve_message([b"a"]))
    assert world.replies[first] == []
    assert list(world.answer(second, m.Reserved).status) == [S.RECOVERING]
    world.perform(world.master.disconnected(client, world.now))
    world.pass_time(4)
    assert world.replies[first] == []


def test_removals_wait_for_the_recovery_too() -> None:
    world, client = recovering()
    request = world.ask(client, m.Remove(pack_keys([b"a"]), 60_000))
    world.join(world.nodes[0])
    world.pass_time(4)
    assert world.answer(request, m.Removed).status == bytes([R.REMOVED])
    assert world.nodes[0].agent.usage()["sealed"] == 0


def test_a_node_that_reports_nonsense_is_not_believed_nor_waited_for() -> None:
    world, client = recovering(nodes_expected=2)
    world.join(world.nodes[0])
    node = Node("bad")
    world.nodes.append(node)
    world._session += 1
    node.session = world._session
    node.deaf = True
    world.perform(world.master.connected(node.session, "node", "bad", "h", world.now))
    for message in node.machine.connected(world.now):
        world.from_node(node, message)
    segment, term = world.master.catalog.segments.find(node.agent.incarnation), 2
    assert segment is not None
    world.from_node(node, m.Adopted(segment.id, term, 0))
    nonsense = m.InventoryChunk(
        segment.id,
        term,
        *(bytes(4), bytes(8), bytes(8), bytes(8), bytes(8), bytes(4), bytes(4), bytes(8)),
        *(bytes(4), b"\x01", b"\x00", m.KeyColumn(b"x", bytes(4)), m.KeyColumn(b"", bytes(4))),
        True,
    )
    world.from_node(node, nonsense)
    assert isinstance(node.inbox[-1], m.Failure)
    world.pass_time(4)
    assert not world.master.recovering
    assert world.put(client, [b"z"]) == [S.COMMITTED]


def test_a_malformed_removal_is_answered_when_the_recovery_is_over() -> None:
    world = MasterWorld(RECOVERING)
    client = world.client()
    request = world.ask(client, m.Remove(m.KeyColumn(b"k", bytes([2, 0, 0, 0])), wait_ms=60_000))
    world.pass_time(4)
    assert world.answer(request, m.Failure).code == "bad_input"
