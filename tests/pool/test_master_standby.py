"""A master that stands by beside the one that leads, and takes the lead."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from moonpool.core.sections import MasterConfig
from moonpool.pool import messages as m
from moonpool.pool.columns import i32, pack_keys, u64
from moonpool.pool.master_machine import MasterMachine
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.messages import PutStatus as S
from moonpool.pool.messages import RemoveStatus as R
from moonpool.pool.node_shadow import Shadow
from tests.pool.master_world import CONFIG, MasterWorld, Node, reserve_message

HA = msgspec.structs.replace(CONFIG, grace_ms=3200)


class Standby:
    """A second master of a world; `lead` makes it the world's."""

    def __init__(self, world: MasterWorld, config: MasterConfig = HA) -> None:
        self.world = world
        self.machine = MasterMachine(config, bytes([9] * 16), stand_by=True, tenants=world.tenants)
        self.shadows: dict[int, tuple[Node, Shadow]] = {}
        for node in world.nodes:
            self.join(node)

    def join(self, node: Node) -> None:
        session = 1000 + len(self.shadows)
        shadow = Shadow(node.agent)
        self.shadows[session] = (node, shadow)
        self.machine.connected(session, "node", node.name, "h", self.world.now)
        for effect in self.say(session, node.machine.join()):
            assert isinstance(effect, m.Follow)
            shadow.follow(effect)
        self.hear()

    def say(self, session: int, message: m.Message) -> list[m.Message]:
        effects = self.machine.handle(session, 0, message, self.world.now, self.world.wall_ms)
        return [effect.message for effect in effects]

    def hear(self) -> None:
        """It is told all that happened."""
        for session, (_, shadow) in self.shadows.items():
            while shadow.pending:
                assert self.say(session, shadow.chunk()) == []
            for message in shadow.tick(math.inf):
                assert self.say(session, message) == []

    def lead(self, nodes: set[str] | None = None) -> int:
        """Take the lead; a client of it."""
        world = self.world
        term = world.master.catalog.term + 7
        world.master = self.machine
        for session, (node, _) in self.shadows.items():
            node.session = session
            node.inbox.clear()
        named = {node.name for node in world.nodes} if nodes is None else nodes
        world.perform(self.machine.lead(term, named, world.now, world.wall_ms))
        assert self.machine.catalog.term == term
        return world.client()

    def keys(self) -> set[bytes]:
        rows, _ = self.machine.catalog.scan(0, 4096, b"")
        return {self.machine.catalog.table.key(int(row)) for row in rows}


def world_of(nodes: int = 2) -> tuple[MasterWorld, int, Standby]:
    world = MasterWorld()
    for _ in range(nodes):
        world.add_node()
    return world, world.client(), Standby(world)


def test_a_segment_that_was_given_back_is_not_waited_for() -> None:
    world, client, standby = world_of(3)
    world.put(client, [b"a", b"b"], prefer_segment=0)
    standby.hear()
    session, (node, shadow) = next(iter(standby.shadows.items()))
    gone = shadow.gone()
    assert gone is not None
    elected = msgspec.structs.replace(gone, term=gone.term + 5)  # who stands by was told of none
    assert standby.say(session, elected) == []
    standby.machine.disconnected(session, world.now)
    del standby.shadows[session]
    world.nodes.remove(node)
    client = standby.lead()
    world.pass_time(1.0)
    stat = world.stat(client)
    assert sorted(stat["segments"]) == ["1", "2"] and not stat["recovering"]
    topology = world.call(client, m.Topology(), m.TopologyIs)
    assert [one.segment for one in topology.segments] == [1, 2]


def test_a_segment_given_back_unheard_is_gone_once_its_node_is_heard() -> None:
    """The way from the node to this master was cut while the segment went."""
    world = MasterWorld()
    for name in ("n0", "n0", "n1"):
        world.add_node(name)
    client, standby = world.client(), Standby(world)
    world.put(client, [b"a"], prefer_segment=1)
    standby.hear()
    (first, kept), (second, _), _ = [(s, node) for s, (node, _) in standby.shadows.items()]
    gone = standby.shadows[second][0].agent.incarnation
    for session in (first, second):
        standby.machine.disconnected(session, world.now)
        del standby.shadows[session]
    kept.machine.given_back.append(gone)
    standby.join(kept)
    assert standby.keys() == set()
    world.nodes.remove(next(node for node in world.nodes if node.agent.incarnation == gone))
    client = standby.lead()
    world.pass_time(1.0)
    assert sorted(world.stat(client)["segments"]) == ["0", "2"]


def test_it_follows_puts_and_removals() -> None:
    world, client, standby = world_of()
    world.put(client, [b"a", b"b", b"c"], replicas=2)
    standby.hear()
    assert standby.keys() == {b"a", b"b", b"c"}
    assert standby.machine.catalog.table.replica_count == 6
    world.call(client, m.Remove(pack_keys([b"b"]), 1000), m.Removed)
    standby.hear()
    assert standby.keys() == {b"a", b"c"}


def test_a_node_that_joins_later_tells_all_it_has() -> None:
    world, client, standby = world_of(1)
    world.put(client, [b"a"])
    standby.hear()
    node = world.add_node()
    standby.join(node)
    world.put(client, [b"b"], replicas=2)
    standby.hear()
    assert standby.keys() == {b"a", b"b"}


def test_it_answers_nobody() -> None:
    world, _, standby = world_of(1)
    standby.machine.standby.leader = "a:1"
    standby.machine.connected(1, "client", "c", "h", world.now)
    (effect,) = standby.machine.handle(1, 5, m.Exists(pack_keys([b"a"])), world.now, world.wall_ms)
    assert effect.message == m.Failure("not_leader", "this master stands by; the leader is a:1")


def test_it_leads_at_once_without_an_inventory() -> None:
    world, client, standby = world_of()
    world.put(client, [b"a", b"b"], replicas=2)
    standby.hear()
    client = standby.lead()
    assert not world.master.recovering
    assert world.look(client, b"a", b"b", b"x") == [L.FOUND, L.FOUND, L.ABSENT]
    assert world.put(client, [b"x"]) == [S.COMMITTED]
    assert world.put(client, [b"a"]) == [S.EXISTS]
    removed = world.call(client, m.Remove(pack_keys([b"a"]), 1000), m.Removed)
    assert list(removed.status) == [R.REMOVED]


def test_it_knows_where_an_idle_segment_stands() -> None:
    """Nothing changes after the inventory, and none is asked for when it leads."""
    world, client, _ = world_of(1)
    for number in range(20):
        world.put(client, [b"%d" % number])
    standby = Standby(world)
    standby.hear()
    link = standby.machine.nodes.links[0]
    agent = world.nodes[0].agent
    assert standby.machine.standby.whole(link) == agent.sequence > 0


def test_what_it_had_not_heard_is_told_when_it_leads() -> None:
    world, client, standby = world_of()
    world.put(client, [b"a", b"b"], replicas=2)
    standby.hear()
    world.put(client, [b"late"])
    world.call(client, m.Remove(pack_keys([b"a"]), 1000), m.Removed)
    client = standby.lead()
    assert not world.master.recovering
    assert world.look(client, b"a", b"b", b"late") == [L.ABSENT, L.FOUND, L.FOUND]
    sealed = sum(node.agent.usage()["sealed"] for node in world.nodes)
    assert world.stat(client)["replicas"] == sealed == 3


def replace_half_way(world: MasterWorld, client: int, key: bytes) -> m.Reserved:
    """Sealed and not committed."""
    reserved = world.call(client, reserve_message([key], 80, replace=True), m.Reserved)
    world.seal(reserved, [key], 80)
    return reserved


def test_a_replacement_that_comes_to_nothing_costs_it_nothing() -> None:
    world, client, standby = world_of()
    world.put(client, [b"a"])
    standby.hear()
    reserved = replace_half_way(world, client, b"a")
    standby.hear()
    assert standby.machine.standby.waiting == 1
    world.call(client, m.Abort(reserved.row, reserved.attempt), m.Done)
    standby.hear()
    assert standby.machine.standby.waiting == 0
    client = standby.lead()
    found = world.call(client, m.Lookup(pack_keys([b"a"])), m.Found)
    assert u64(found.size).tolist() == [64]


def test_a_replacement_is_followed_when_the_old_value_goes() -> None:
    world, client, standby = world_of()
    world.put(client, [b"a"])
    standby.hear()
    reserved = world.call(client, reserve_message([b"a"], 80, replace=True), m.Reserved)
    commit = world.seal(reserved, [b"a"], 80)
    standby.hear()
    world.ask(client, commit)
    standby.hear()
    assert standby.machine.standby.waiting == 0
    row = i32(world.call(standby.lead(), m.Lookup(pack_keys([b"a"])), m.Found).row)
    assert int(world.master.catalog.table.size[row[0]]) == 80


def test_of_a_replacement_half_way_the_newer_value_stays() -> None:
    """Whether it was acknowledged nobody knows any more: what is sealed may be found committed."""
    world, client, standby = world_of()
    world.put(client, [b"a", b"b"])
    standby.hear()
    replace_half_way(world, client, b"a")
    standby.hear()
    client = standby.lead()
    assert not world.master.recovering
    found = world.call(client, m.Lookup(pack_keys([b"a", b"b"])), m.Found)
    assert u64(found.size).tolist() == [80, 64]
    assert sum(node.agent.usage()["sealed"] for node in world.nodes) == 2


def test_after_a_gap_all_is_told_anew() -> None:
    world, client, standby = world_of(1)
    world.put(client, [b"a"])
    standby.hear()
    ((session, (node, shadow)),) = standby.shadows.items()
    world.put(client, [b"b"])
    world.call(client, m.Remove(pack_keys([b"a"]), 1000), m.Removed)
    empty = shadow_chunk(node)
    assert standby.say(session, m.Changed(0, 1, 9, b"", empty, False, gap=True)) == []
    shadow.follow(m.Follow(0))
    standby.hear()
    assert standby.keys() == {b"b"}
    client = standby.lead()
    assert world.look(client, b"a", b"b") == [L.ABSENT, L.FOUND]


def shadow_chunk(node: Node) -> m.InventoryChunk:
    shadow = Shadow(node.agent)
    shadow.follow(m.Follow(0))
    chunk = shadow.chunk()
    none = m.KeyColumn()
    columns = {name: b"" for name in chunk.__struct_fields__ if name not in _PLAIN}
    return msgspec.structs.replace(chunk, **columns, keys=none, parents=none)


_PLAIN = ("segment", "term", "keys", "parents", "last")


def test_changes_that_break_a_bound_change_nothing() -> None:
    world, client, standby = world_of(1)
    world.put(client, [b"a"])
    standby.hear()
    ((session, (node, _)),) = standby.shadows.items()
    slots = np.array([4096], np.uint32).tobytes()
    answers = standby.say(session, m.Changed(0, 1, 9, slots, shadow_chunk(node), True))
    assert isinstance(answers[0], m.Failure)
    assert standby.keys() == {b"a"}


def test_puts_wait_for_a_node_of_the_last_leader_that_is_not_here() -> None:
    world, client, standby = world_of(1)
    world.put(client, [b"a"])
    standby.hear()
    client = standby.lead({"n0", "elsewhere"})
    assert world.look(client, b"a", b"x") == [L.FOUND, L.RECOVERING]
    request = world.ask(client, reserve_message([b"x"]))
    assert world.replies[request] == []
    assert "elsewhere" in world.master.known_nodes
    world.pass_time(3.5)
    assert list(world.answer(request, m.Reserved).status) == [S.GRANTED]
    assert world.master.known_nodes == ["n0"]


def test_a_leader_that_is_not_sure_keeps_its_word_to_what_agents_prove() -> None:
    world, client, standby = world_of()
    world.put(client, [b"a"], replicas=2)
    standby.hear()
    client = standby.lead()
    world.master.leads_until = world.now  # it could not renew
    found = world.call(client, m.Lookup(pack_keys([b"a"])), m.Found)
    lease = world.call(client, m.Lease(0, found.row, found.sequence, 1000), m.Failure)
    assert lease.code == "not_leader"
    assert world.put(client, [b"b"]) == [S.COMMITTED]
    # A node that is away: its lease runs out, but another master may be renewing it.
    world.leave(world.nodes[1])
    request = world.ask(client, m.Remove(pack_keys([b"a"]), 10_000))
    world.pass_time(5)
    assert world.replies[request] == []
    world.master.leads_until = math.inf
    world.perform(world.master.tick(world.now))
    assert list(world.answer(request, m.Removed).status) == [R.REMOVED]


def test_a_removal_that_an_agent_refused_is_not_done() -> None:
    """It obeys a later master, and this one has not heard of that."""
    world, client, _ = world_of(1)
    world.put(client, [b"a"])
    node = world.nodes[0]
    node.agent.raise_term(world.master.catalog.term + 1, bytes(16))
    request = world.ask(client, m.Remove(pack_keys([b"a"]), 1000))
    assert world.replies[request] == []
    assert node.agent.usage()["sealed"] == 1
    world.leave(node)
    world.now += 1.1
    world.perform(world.master.tick(world.now))
    assert list(world.answer(request, m.Removed).status) == [R.PENDING]


def test_a_segment_of_a_higher_term_waits_for_one_above_it() -> None:
    world, _, standby = world_of(1)
    standby.lead()
    node = world.nodes[0]
    high = world.master.catalog.term + 100
    world.leave(node)
    node.agent.raise_term(high, bytes(16))
    world.join(node)
    assert node.agent.term == high  # not adopted
    assert world.master.nodes.joins.term_wanted == high + 1
    world.perform(world.master.raise_term(high + 1, world.now, world.wall_ms))
    assert node.machine.adopted
    assert node.agent.term == high + 1
