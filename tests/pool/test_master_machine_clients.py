"""What clients ask of the master: puts, waits, reads, leases, events, malformed requests."""

from __future__ import annotations

import numpy as np
import pytest

from moonpool.pool import messages as m
from moonpool.pool.columns import i32, pack_keys, u64, unpack_keys
from moonpool.pool.master_limits import MasterLimits
from moonpool.pool.messages import AwaitStatus as A
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.messages import PutStatus as S
from tests.pool.master_world import CONFIG, MasterWorld, reserve_message


@pytest.fixture
def world() -> MasterWorld:
    world = MasterWorld()
    world.add_node()
    return world


def abort(world: MasterWorld, client: int, reserved: m.Reserved) -> None:
    world.call(client, m.Abort(reserved.row, reserved.attempt), m.Done)


def awaited(world: MasterWorld, request: int) -> list[A]:
    return [A(byte) for byte in world.answer(request, m.Awaited).status]


def test_a_put_becomes_readable_with_its_placement(world: MasterWorld) -> None:
    client = world.client()
    assert world.put(client, [b"a", b"b"], chain=True) == [S.COMMITTED] * 2
    found = world.call(client, m.Lookup(pack_keys([b"b", b"x"])), m.Found)
    assert list(found.status) == [L.FOUND, L.ABSENT]
    assert u64(found.size).tolist() == [64, 0]
    ((segment, slot, generation),) = world.placed(client, b"b")
    columns = world.agent(segment).inventory(0, 256)
    assert generation in columns["generation"][columns["slot"] == slot]


def test_exists_and_list(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a1", b"a2", b"b"])
    reply = world.call(client, m.Exists(pack_keys([b"a1", b"x"])), m.Existence)
    assert list(reply.found) == [1, 0]
    listed = world.call(client, m.List(b"a", 0, 10), m.Listed)
    assert sorted(unpack_keys(listed.keys)) == [b"a1", b"a2"]
    assert (list(listed.replicas), listed.cursor) == ([1, 1], -1)


def test_list_goes_on_at_its_cursor(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"%d" % i for i in range(7)])
    keys: list[bytes] = []
    cursor = 0
    while cursor >= 0:
        listed = world.call(client, m.List(b"", cursor, 3), m.Listed)
        keys += unpack_keys(listed.keys)
        cursor = listed.cursor
    assert sorted(keys) == [b"%d" % i for i in range(7)]


def test_await_of_what_is_settled_is_answered_at_once(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"])
    request = world.ask(client, m.Await(pack_keys([b"a", b"x"]), 1000))
    assert awaited(world, request) == [A.COMMITTED, A.ABSENT]


def test_await_ends_with_the_commit(world: MasterWorld) -> None:
    writer, reader = world.client(), world.client()
    reserved = world.reserve(writer, [b"a", b"b"])
    request = world.ask(reader, m.Await(pack_keys([b"a", b"b"]), 1000))
    assert world.replies[request] == []
    world.call(writer, world.seal(reserved, [b"a", b"b"]), m.Committed)
    assert awaited(world, request) == [A.COMMITTED] * 2


def test_await_times_out(world: MasterWorld) -> None:
    writer, reader = world.client(), world.client()
    world.reserve(writer, [b"a"])
    request = world.ask(reader, m.Await(pack_keys([b"a"]), 1000))
    world.pass_time(2)
    assert awaited(world, request) == [A.TIMEOUT]
    assert world.stat(reader)["waiters"] == 0


def test_the_first_waiter_inherits_and_the_others_wait_on(world: MasterWorld) -> None:
    writer, first, second = world.client(), world.client(), world.client()
    reserved = world.reserve(writer, [b"a"])
    one = world.ask(first, m.Await(pack_keys([b"a"]), 60_000))
    two = world.ask(second, m.Await(pack_keys([b"a"]), 60_000))
    abort(world, writer, reserved)
    assert awaited(world, one) == [A.YOURS]
    assert world.replies[two] == []
    assert list(world.reserve(second, [b"a"]).status) == [S.IN_FLIGHT]
    assert world.put(first, [b"a"]) == [S.COMMITTED]
    assert awaited(world, two) == [A.COMMITTED]


def test_an_inheritance_lapses_to_the_next_waiter(world: MasterWorld) -> None:
    writer, first, second = world.client(), world.client(), world.client()
    reserved = world.reserve(writer, [b"a"])
    one = world.ask(first, m.Await(pack_keys([b"a"]), 60_000))
    two = world.ask(second, m.Await(pack_keys([b"a"]), 60_000))
    abort(world, writer, reserved)
    world.pass_time(3)
    assert (awaited(world, one), awaited(world, two)) == ([A.YOURS], [A.YOURS])


def test_an_heir_that_leaves_passes_the_key_on(world: MasterWorld) -> None:
    writer, first, second = world.client(), world.client(), world.client()
    reserved = world.reserve(writer, [b"a"])
    world.ask(first, m.Await(pack_keys([b"a"]), 60_000))
    two = world.ask(second, m.Await(pack_keys([b"a"]), 60_000))
    abort(world, writer, reserved)
    world.perform(world.master.disconnected(first, world.now))
    assert awaited(world, two) == [A.YOURS]


def test_a_waiter_on_several_keys_is_told_of_its_inheritance_at_once(world: MasterWorld) -> None:
    writer, reader = world.client(), world.client()
    reserved = world.reserve(writer, [b"a"])
    world.reserve(writer, [b"b"])
    request = world.ask(reader, m.Await(pack_keys([b"b", b"a"]), 60_000))
    abort(world, writer, reserved)
    assert awaited(world, request) == [A.ABSENT, A.YOURS]


def test_a_writer_that_disconnects_gives_its_keys_up(world: MasterWorld) -> None:
    writer, reader = world.client(), world.client()
    world.reserve(writer, [b"a"])
    request = world.ask(reader, m.Await(pack_keys([b"a"]), 60_000))
    world.perform(world.master.disconnected(writer, world.now))
    assert awaited(world, request) == [A.YOURS]


def test_a_reservation_expires_and_its_memory_returns(world: MasterWorld) -> None:
    writer = world.client()
    reserved = world.reserve(writer, [b"a"])
    commit = world.seal(reserved, [b"a"])
    world.pass_time(11)
    assert list(world.call(writer, commit, m.Committed).status) == [S.GONE]
    world.pass_time(1)
    usage = world.nodes[0].agent.usage()
    assert (usage["sealed"], usage["writing"]) == (0, 0)
    assert world.stat(writer)["promised_bytes"] == 0


def test_what_is_sealed_but_never_committed_is_retired_after_its_reservation(
    world: MasterWorld,
) -> None:
    writer = world.client()
    reserved = world.reserve(writer, [b"a"])
    abort(world, writer, reserved)
    world.seal(reserved, [b"a"])
    world.pass_time(2)
    assert world.nodes[0].agent.usage()["sealed"] == 0


def test_waiters_are_bounded() -> None:
    world = MasterWorld(limits=MasterLimits(waiters_max=1))
    world.add_node()
    writer, reader = world.client(), world.client()
    world.reserve(writer, [b"a", b"b"])
    request = world.ask(reader, m.Await(pack_keys([b"a", b"b"]), 1000))
    assert awaited(world, request) == [A.TIMEOUT] * 2


def test_touches_ride_on_requests(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"])
    world.put(client, [b"b"])
    found = world.call(client, m.Lookup(pack_keys([b"a"])), m.Found)
    world.call(client, m.Touch(m.Touches(found.row, found.sequence)), m.Done)
    table = world.master.catalog.table
    order = [table.key(int(row)) for row in table.replica_object[table.list_iter(0)]]
    assert order == [b"b", b"a"]


def test_reoffer_names_another_segment(world: MasterWorld) -> None:
    world.add_node()
    client = world.client()
    reserved = world.reserve(client, [b"a"], prefer_segment=0)
    failed = np.array([0], np.uint16).tobytes()
    reply = world.call(client, m.Reoffer(reserved.row, reserved.attempt, failed), m.Reoffered)
    assert reply.segments == np.array([1], np.uint16).tobytes()


def test_a_corrupt_replica_that_is_reported_is_dropped(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"])
    found = world.call(client, m.Lookup(pack_keys([b"a"])), m.Found)
    where = (found.replicas.segment, found.replicas.slot, found.replicas.generation)
    assert world.call(client, m.Report(found.row, found.sequence, *where), m.Done).count == 1
    assert world.call(client, m.Report(found.row, found.sequence, *where), m.Done).count == 0
    bad = (np.array([9], np.uint16).tobytes(), *where[1:])
    assert world.call(client, m.Report(found.row, found.sequence, *bad), m.Done).count == 0
    assert world.look(client, b"a") == [L.ABSENT]
    assert world.nodes[0].agent.usage()["sealed"] == 0


def test_leases_over_the_wire(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"])
    found = world.call(client, m.Lookup(pack_keys([b"a"])), m.Found)
    taken = world.call(client, m.Lease(0, found.row, found.sequence, 1000), m.Leased)
    assert (list(taken.granted), taken.ttl_ms) == ([1], 1000)
    again = world.call(client, m.Lease(taken.lease, found.row, found.sequence, 2000), m.Leased)
    assert (list(again.granted), again.ttl_ms) == ([1], 2000)
    world.call(client, m.Lease(taken.lease, b"", b"", 0), m.Leased)
    assert world.stat(client)["leases"] == 0
    world.call(client, m.Lease(0, found.row, found.sequence, 1000), m.Leased)
    world.pass_time(2)
    assert world.stat(client)["leases"] == 0


def test_events_are_followed(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"])
    term = world.master.catalog.term
    first = world.call(client, m.EventsFrom(term, 1), m.Events)
    assert [(one.kind, one.key) for one in first.events] == [("put", b"a")]
    request = world.ask(client, m.EventsFrom(term, first.next_sequence, 10, 60_000))
    assert world.replies[request] == []
    world.put(client, [b"b"])
    assert [one.key for one in world.answer(request, m.Events).events] == [b"b"]
    late = world.ask(client, m.EventsFrom(term, first.next_sequence + 1, 10, 1000))
    world.pass_time(2)
    assert world.answer(late, m.Events).events == []
    rebase = world.call(client, m.EventsFrom(term + 9, 1), m.Events)
    assert rebase.rebase and rebase.next_sequence == first.next_sequence + 1


def test_topology_names_the_segments(world: MasterWorld) -> None:
    topology = world.call(world.client(), m.Topology(), m.TopologyIs)
    (segment,) = topology.segments
    assert (segment.segment, segment.node, segment.alive) == (0, "n0", True)
    assert segment.incarnation == world.nodes[0].agent.incarnation


@pytest.mark.parametrize(
    "message",
    [
        m.Reserve(m.KeyColumn(b"ab", b"\x01\0\0\0"), bytes(8), bytes(4)),
        m.Reserve(pack_keys([b"a"]), bytes(9), bytes(4)),
        m.Reserve(pack_keys([b"a"]), bytes(16), bytes(4)),
        m.Reserve(pack_keys([b""]), bytes(8), b"\xff" * 4),
        m.Reserve(pack_keys([b"x" * 1025]), bytes(8), b"\xff" * 4),
        m.Reserve(pack_keys([b"a"]), bytes(8), b"\xfe" + b"\xff" * 3, pack_keys([b""])),
        m.Reserve(pack_keys([b"a"]), bytes(8), b"\xfe" + b"\xff" * 3, pack_keys([b""]), 2),
        reserve_message([b"a"], replicas=0),
        reserve_message([b"a"], replicas=9),
        reserve_message([b"a"], min_replicas=2),
        reserve_message([b"a"], pin=7),
        reserve_message([b"a"], touches=m.Touches(bytes(4), bytes(16))),
        reserve_message([b"k"] * 65_537),
        m.Commit(1, bytes(4), bytes(8), bytes(4), m.ReplicaColumn(b"\x02", b"", b"", b"")),
        m.Commit(1, bytes(4), bytes(16), bytes(4), m.ReplicaColumn()),
        m.Commit(-1, bytes(4), bytes(8), bytes(4), m.ReplicaColumn(b"\x00")),
        m.Abort(bytes(4), bytes(16)),
        m.Reoffer(bytes(4), bytes(8), b""),
        m.Lease(0, bytes(4), b"", 10),
        m.Report(bytes(4), b"", b"", b"", b""),
        m.Lookup(m.KeyColumn(b"ab", b"\x09\0\0\0")),
        m.Await(m.KeyColumn(b"ab", b"\x09\0\0\0"), 5),
        m.Remove(m.KeyColumn(b"ab", b"\x09\0\0\0")),
        m.Heartbeat(0, 1, 0, {}),
    ],
)
def test_malformed_requests_are_refused_and_change_nothing(
    world: MasterWorld, message: m.Message
) -> None:
    client = world.client()
    assert world.call(client, message, m.Failure).code == "bad_input"
    assert world.stat(client)["rows"] == 0 and world.stat(client)["failures"] == 1


def test_odd_row_numbers_and_versions_are_harmless(world: MasterWorld) -> None:
    client = world.client()
    rows = np.array([-1, 2**31 - 1, 7], np.int32).tobytes()
    sequences = np.array([0, 2**64 - 1, 1], np.uint64).tobytes()
    replicas = m.ReplicaColumn(b"\x01\x01\x01", b"\xff" * 6, b"\xff" * 12, bytes(24))
    status = world.call(client, m.Commit(1, rows, sequences, bytes(12), replicas), m.Committed)
    assert list(status.status) == [S.GONE] * 3
    assert world.call(client, m.Abort(rows, sequences), m.Done).count == 0
    world.call(client, m.Touch(m.Touches(rows, sequences)), m.Done)
    world.call(client, m.Lease(0, rows, sequences, 100), m.Leased)


def test_odd_numbers_elsewhere_are_harmless(world: MasterWorld) -> None:
    client = world.client()
    world.put(client, [b"a"])
    assert world.call(client, m.List(b"", 2**70, 2**70), m.Listed).cursor == -1
    assert len(world.call(client, m.List(b"", -5, -5), m.Listed).size) == 8
    assert world.call(client, m.EventsFrom(-1, -(2**70), -1), m.Events).rebase
    reserved = world.call(client, reserve_message([b"b"], prefer_segment=2**70), m.Reserved)
    assert list(reserved.status) == [S.GRANTED]


def test_messages_of_unknown_sessions_are_dropped(world: MasterWorld) -> None:
    assert world.master.handle(999, 1, m.Stat(), world.now, 0) == []
    assert world.master.disconnected(999, world.now) == []


def test_an_empty_batch(world: MasterWorld) -> None:
    client = world.client()
    assert world.reserve(client, []).status == b""
    assert (
        world.call(client, m.Commit(1, b"", b"", b"", m.ReplicaColumn()), m.Committed).status == b""
    )
    assert world.call(client, m.Lookup(m.KeyColumn()), m.Found).status == b""
    assert world.call(client, m.Remove(m.KeyColumn()), m.Removed).status == b""


def test_nothing_is_due_when_nothing_waits() -> None:
    world = MasterWorld(CONFIG)
    assert world.master.next_deadline() is None
    assert i32(b"").size == 0


def test_calls_answered_early_do_not_pile_up() -> None:
    world = MasterWorld(limits=MasterLimits(waiters_max=2))
    world.add_node()
    writer, reader = world.client(), world.client()
    for _ in range(9):
        reserved = world.reserve(writer, [b"a"])
        world.ask(reader, m.Await(pack_keys([b"a"]), 300_000))
        abort(world, writer, reserved)
        abort(world, reader, world.reserve(reader, [b"a"]))
    assert len(world.master._waiters._deadlines) <= 5


def test_number_0_asks_for_no_answer_soon_or_late(world: MasterWorld) -> None:
    client = world.client()
    world.reserve(client, [b"wanted"])
    asked: list[m.Message] = [
        m.Exists(pack_keys([b"a"])),
        m.Abort(b"odd", b""),  # malformed
        m.Await(pack_keys([b"wanted"]), 100),  # would be answered later
        m.EventsFrom(0, 0, 10, 100),
    ]
    for message in asked:
        effects = world.master.handle(client, 0, message, world.now, world.wall_ms)
        assert [one for one in effects if one.session == client] == []
    for _ in range(3):
        world.now += 1.0
        effects = world.master.tick(world.now, world.wall_ms)
        assert [one for one in effects if one.session == client] == []
    assert world.call(client, m.Exists(pack_keys([b"a"])), m.Existence).found == b"\0"
