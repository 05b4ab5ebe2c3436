"""P8 at the master: what one tenant's session can name, see, list, remove and follow."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from moonpool.pool import messages as m
from moonpool.pool.columns import i32, pack_keys, u64
from tests.pool.master_world import reserve_message
from tests.pool.tenancy.world import TenantWorld, tenant
from tests.pool.test_master_standby import Standby

STORED, FOUND, ABSENT = m.PutStatus.COMMITTED, m.LookupStatus.FOUND, m.LookupStatus.ABSENT


@pytest.fixture
def world() -> TenantWorld:
    world = TenantWorld(tenant("a"), tenant("b"))
    world.add_node(capacity=1 << 16)
    return world


def test_one_key_three_objects(world: TenantWorld) -> None:
    sessions = [world.visitor(name) for name in ("a", "b", "")]
    sizes = [64, 128, 256]
    for session, size in zip(sessions, sizes, strict=True):
        assert world.put(session, [b"k"], size) == [STORED]
    for session, size in zip(sessions, sizes, strict=True):
        found = world.call(session, m.Lookup(pack_keys([b"k"])), m.Found)
        assert u64(found.size).tolist() == [size]
        assert world.keys(session) == {b"k"}


def test_nobody_sees_or_removes_anothers(world: TenantWorld) -> None:
    a, b, operator = world.visitor("a"), world.visitor("b"), world.visitor()
    assert world.put(a, [b"x", b"y"]) == [STORED] * 2
    for other in (b, operator):
        assert world.look(other, b"x", b"y") == [ABSENT] * 2
        assert world.call(other, m.Exists(pack_keys([b"x"])), m.Existence).found == b"\0"
        assert world.keys(other) == set()
        assert world.call(other, m.Remove(pack_keys([b"x"])), m.Removed).status == b"\1"
        assert world.call(other, m.RemovePrefix(b""), m.Done).count == 0
        assert world.call(other, m.RemoveWhere(), m.RemovedWhere).count == 0
    assert world.look(a, b"x", b"y") == [FOUND] * 2
    assert world.call(a, m.RemovePrefix(b"x"), m.Done).count == 1
    assert world.keys(a) == {b"y"}


def test_conditions_look_at_the_key_as_its_owner_knows_it(world: TenantWorld) -> None:
    a = world.visitor("a")
    world.put(a, [b"plain", b"with\0zero"])
    found = world.call(a, m.RemoveWhere(contains=b"\0", look=True), m.RemovedWhere)
    assert found.count == 1


def test_the_scope_of_another_cannot_be_written_out(world: TenantWorld) -> None:
    a, operator = world.visitor("a"), world.visitor()
    world.put(a, [b"k"])
    named = world.tenants.named("a")
    assert named is not None
    (failure,) = world.replies[world.ask(operator, m.Lookup(pack_keys([named.scope + b"k"])))]
    assert isinstance(failure, m.Failure) and failure.code == "bad_input"
    b = world.visitor("b")
    assert world.look(b, named.scope + b"k") == [ABSENT]


def test_the_tenant_that_a_request_names_is_not_believed(world: TenantWorld) -> None:
    a, b = world.visitor("a"), world.visitor("b")
    other = world.tenants.named("b")
    assert other is not None
    assert world.put(a, [b"k"], tenant=other.number) == [STORED]
    assert world.keys(b) == set()
    assert world.held("b")["objects"] == 0 and world.held("a")["objects"] == 1


def test_guessed_numbers_touch_nothing_of_others(world: TenantWorld) -> None:
    """Rows and attempts are small numbers: B knows A's and uses them."""
    a, b = world.visitor("a"), world.visitor("b")
    assert world.put(a, [b"k"]) == [STORED]
    ((segment, slot, generation),) = world.placed(a, b"k")
    found = world.call(a, m.Lookup(pack_keys([b"k"])), m.Found)
    bad = m.Report(
        found.row,
        found.sequence,
        np.array([segment], np.uint16).tobytes(),
        np.array([slot], np.uint32).tobytes(),
        np.array([generation], np.uint64).tobytes(),
    )
    assert world.call(b, bad, m.Done).count == 0
    lease = m.Lease(0, found.row, found.sequence, 1000)
    assert world.call(b, lease, m.Leased).granted == b"\0"
    touch = m.Touch(m.Touches(found.row, found.sequence))
    world.call(b, touch, m.Done)
    assert world.look(a, b"k") == [FOUND]
    assert world.call(a, lease, m.Leased).granted == b"\1"


def test_a_reservation_of_another_is_neither_committed_nor_aborted(world: TenantWorld) -> None:
    a, b = world.visitor("a"), world.visitor("b")
    world._writer = "a"
    reserved = world.reserve(a, [b"k"])
    commit = world.seal(reserved, [b"k"])
    assert world.call(b, m.Abort(reserved.row, reserved.attempt), m.Done).count == 0
    failed = np.array([0], np.uint16).tobytes()
    offer = world.call(b, m.Reoffer(reserved.row, reserved.attempt, failed), m.Reoffered)
    assert offer.segments == b"\xff\xff"
    assert world.call(b, commit, m.Committed).status == bytes([m.PutStatus.GONE])
    assert world.look(a, b"k") == [m.LookupStatus.IN_FLIGHT]
    assert world.call(a, commit, m.Committed).status == bytes([STORED])
    assert world.call(b, commit, m.Committed).status == bytes([m.PutStatus.GONE])
    assert world.call(a, commit, m.Committed).status == bytes([STORED])  # asked again


def test_waiting_for_a_key_of_ones_own(world: TenantWorld) -> None:
    """B's writer of the same name is nobody that A waits for."""
    a, b = world.visitor("a"), world.visitor("b")
    world.reserve(b, [b"k"])
    answer = world.call(a, m.Await(pack_keys([b"k"]), 1000), m.Awaited)
    assert answer.status == bytes([m.AwaitStatus.ABSENT])


def test_events_of_its_own_and_of_nodes(world: TenantWorld) -> None:
    a, b, operator = world.visitor("a"), world.visitor("b"), world.visitor()
    term = world.master.catalog.term
    start = world.master.catalog.events.next_sequence
    world.put(b, [b"theirs"])
    world.put(a, [b"p", b"k"], chain=True)
    heard = world.call(a, m.EventsFrom(term, start), m.Events)
    assert [(one.kind, one.key, one.parent) for one in heard.events] == [
        ("put", b"p", b""),
        ("put", b"k", b"p"),
    ]
    assert heard.next_sequence == world.master.catalog.events.next_sequence
    everything = world.call(operator, m.EventsFrom(term, start), m.Events)
    assert len(everything.events) == 3


def test_what_only_the_operator_does(world: TenantWorld) -> None:
    a = world.visitor("a")
    task = m.BeginTask("clear", bytes(16), pack_keys([b"k"]), "", "n0", 1000)
    for call in (m.Drain("n0"), task, m.AskTask("1-1"), m.ListTasks()):
        (failure,) = world.replies[world.ask(a, call)]
        assert isinstance(failure, m.Failure) and failure.code == "refused"
    world.call(world.visitor(), task, m.TaskIs)
    assert set(world.stat(a)) == {"recovering", "tenants"}
    assert set(world.stat(a)["tenants"]) == {"a"}
    assert {"a", "b", "default"} <= set(world.stat(world.visitor())["tenants"])


def test_files_of_shared_segments_are_told_to_the_operator_only(world: TenantWorld) -> None:
    (node,) = world.nodes
    node.machine.endpoint = msgspec.structs.replace(
        node.machine.endpoint, path="/shared", unix="/sock"
    )
    world.leave(node)
    world.join(node)
    told = world.call(world.visitor("a"), m.Topology(), m.TopologyIs).segments
    assert [(one.path, one.unix) for one in told] == [("", "")]
    told = world.call(world.visitor(), m.Topology(), m.TopologyIs).segments
    assert [(one.path, one.unix) for one in told] == [("/shared", "/sock")]


@pytest.mark.parametrize("followed", [False, True])
def test_what_an_inventory_brings_must_be_its_tenants(world: TenantWorld, followed: bool) -> None:
    """A writer that named another's key at an agent is found out by the next master, also by one
    that stood by and heard of it as it happened."""
    standby = Standby(world) if followed else None
    a = world.visitor("a")
    world.put(a, [b"good"])
    b = world.tenants.named("b")
    assert b is not None
    world._writer = "a"  # the claim says tenant a, the key begins with b's scope
    real, world.tenants = world.tenants, _Forged(world.tenants, b.scope)  # type: ignore[assignment]
    world.claim(0, b"forged", 10**6, 64, world.master.catalog.term)
    world.tenants = real
    if standby is not None:
        standby.hear()
        standby.lead()
    else:
        world.start(2, first_term=50)
        for node in world.nodes:
            world.join(node)
    session = world.visitor("b")
    assert world.keys(session) == set() and world.look(session, b"forged") == [ABSENT]
    assert world.keys(world.visitor("a")) == {b"good"}
    assert sum(node.agent.usage()["sealed"] for node in world.nodes) == 1
    assert world.put(session, [b"forged"]) == [m.PutStatus.COMMITTED]


class _Forged:
    """Tenant a's number with another's scope."""

    def __init__(self, real: object, scope: bytes) -> None:
        self.real, self.scope = real, scope

    def named(self, name: str) -> object:
        found = self.real.named(name)  # type: ignore[attr-defined]
        number, scope = found.number, self.scope

        class Forged:
            pass

        forged = Forged()
        forged.number, forged.scope = number, scope  # type: ignore[attr-defined]
        return forged


def test_rows_of_a_request_that_fit_nothing(world: TenantWorld) -> None:
    a = world.visitor("a")
    rows = np.array([-5, 2**31 - 1, 0], np.int32).tobytes()
    sequences = np.zeros(3, np.uint64).tobytes()
    assert world.call(a, m.Lease(0, rows, sequences, 1000), m.Leased).granted == bytes(3)
    assert world.call(a, m.Abort(rows, sequences), m.Done).count == 0
    (failure,) = world.replies[world.ask(a, m.Abort(rows, bytes(8)))]
    assert isinstance(failure, m.Failure)


def test_a_batch_with_a_key_too_long_for_its_scope_is_refused(world: TenantWorld) -> None:
    a = world.visitor("a")
    (failure,) = world.replies[world.ask(a, reserve_message([b"k" * 1020]))]
    assert isinstance(failure, m.Failure)
    assert world.put(a, [b"k" * 1019]) == [STORED]
    assert i32(world.call(a, m.Lookup(pack_keys([b"k" * 1019])), m.Found).row)[0] >= 0
