"""Copies below memory as the master sees them: when they are made, what stays, what comes back."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys, u64
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.messages import PutStatus as S
from moonpool.pool.messages import RemoveStatus as R
from tests.pool.master_world import CONFIG, MasterWorld, Node

MEMORY, DISK = 1 << 16, 1 << 18
SIZE = 8000
IN_MEMORY = MEMORY // SIZE
KEYS = [b"k%02d" % i for i in range(30)]
SETTINGS = msgspec.structs.replace(
    CONFIG, slow_start_s=0.0, repair_delay_s=1.0, offload="write", promote_window_s=10.0
)


class World(MasterWorld):
    """Segment 0 is node a's memory, segment 1 its disk."""

    def __init__(self, *, disk: int = DISK, **settings: object) -> None:
        super().__init__(msgspec.structs.replace(SETTINGS, **settings))
        self.memory = self.add_node("a", MEMORY)
        self.tier = self.add_node("a", disk, medium="disk")
        self.me = self.client()

    def put_all(self, *keys: bytes, **how: object) -> None:
        """One put each, with time for what follows from it."""
        for key in keys:
            assert self.put(self.me, [key], SIZE, **how) == [S.COMMITTED]
            self.pass_time(0.2, 0.1)

    def where(self, key: bytes) -> list[int]:
        return sorted(segment for segment, _, _ in self.placed(self.me, key))

    def read(self, *keys: bytes) -> None:
        found = self.call(self.me, m.Lookup(pack_keys(list(keys))), m.Found)
        self.call(self.me, m.Touch(m.Touches(found.row, found.sequence)), m.Done)

    def where_or_none(self, key: bytes) -> list[int]:
        return self.where(key) if self.look(self.me, key) == [L.FOUND] else []

    def versions(self, node: Node) -> list[int]:
        """Sequences of what a node's agent holds."""
        held: list[int] = node.agent.inventory(0, 256)["seq"].tolist()
        return held

    def events(self) -> list[tuple[str, bytes, str]]:
        log = self.master.catalog.events
        found, _ = log.read(log.term, 1, 10_000)
        return [(one.kind, one.key, one.medium) for one in found]


@pytest.fixture
def world() -> World:
    return World()


def test_every_put_is_copied_down_with_write_through(world: World) -> None:
    world.put_all(*KEYS[:3])
    assert [world.where(key) for key in KEYS[:3]] == [[0, 1]] * 3
    assert world.events() == [
        event for key in KEYS[:3] for event in (("put", key, ""), ("offload", key, "disk"))
    ]


def test_nothing_is_ever_put_on_a_tier(world: World) -> None:
    world.master.catalog.segments[0].open = False
    assert world.put(world.me, [b"x"], SIZE) == [S.NO_NODE]


def test_what_a_full_memory_gives_up_stays_on_disk(world: World) -> None:
    world.put_all(*KEYS[: IN_MEMORY + 2])
    assert world.where(KEYS[0]) == [1] == world.where(KEYS[1])
    assert world.where(KEYS[2]) == [0, 1]
    assert world.stat(world.me)["demoted"] == 2
    assert world.stat(world.me)["evicted_objects"] == 0
    assert ("demote", KEYS[0], "memory") in world.events()


def test_offload_ahead_of_eviction_begins_at_the_watermark() -> None:
    world = World(offload="evict", offload_watermark=0.7)
    world.put_all(*KEYS[:5])
    assert [world.where(key) for key in KEYS[:5]] == [[0]] * 5
    world.put_all(*KEYS[5:20])
    assert world.stat(world.me)["evicted_objects"] == 0
    assert all(world.where(key) for key in KEYS[:20])
    assert world.where(KEYS[19]) == [0]  # the hottest were left alone


def test_without_offload_a_tier_gets_nothing() -> None:
    world = World(offload="off")
    world.put_all(*KEYS[: IN_MEMORY + 2])
    assert world.where(KEYS[IN_MEMORY]) == [0]
    assert world.look(world.me, KEYS[0]) == [L.EVICTED]


def test_the_second_read_in_a_window_brings_an_object_back(world: World) -> None:
    world.put_all(*KEYS[: IN_MEMORY + 1])
    assert world.where(KEYS[0]) == [1]
    world.read(KEYS[0])
    world.pass_time(1.0, 0.1)
    assert world.where(KEYS[0]) == [1]
    world.read(KEYS[0])
    world.pass_time(1.0, 0.1)
    assert world.where(KEYS[0]) == [0, 1]
    assert ("promote", KEYS[0], "") in world.events()
    assert world.stat(world.me)["promoted"] == 1
    assert world.stat(world.me)["tier_reads"] == 2


def test_two_reads_far_apart_bring_nothing_back(world: World) -> None:
    world.put_all(*KEYS[: IN_MEMORY + 1])
    world.read(KEYS[0])
    world.pass_time(25.0)
    world.read(KEYS[0])
    world.pass_time(1.0, 0.1)
    assert world.where(KEYS[0]) == [1]


def test_what_comes_back_never_evicts_something_hotter(world: World) -> None:
    world.put_all(*KEYS[: IN_MEMORY + 1])
    for _ in range(3):
        world.read(*KEYS[1 : IN_MEMORY + 1])
    world.read(KEYS[0])
    world.read(KEYS[0])
    world.pass_time(1.0, 0.1)
    assert world.where(KEYS[0]) == [1]
    assert world.stat(world.me)["promotions_refused"] == 1
    assert all(world.where(key) == [0, 1] for key in KEYS[1 : IN_MEMORY + 1])


def test_what_comes_back_never_evicts_the_only_copy_of_something(world: World) -> None:
    world.put_all(*KEYS[: IN_MEMORY + 1])
    world.tier.deaf = True
    world.put_all(*KEYS[10 : 10 + IN_MEMORY])  # these have no copy below
    world.read(KEYS[0])
    world.read(KEYS[0])
    world.pass_time(1.0, 0.1)
    assert world.where(KEYS[0]) == [1]
    assert all(world.where(key) == [0] for key in KEYS[10 : 10 + IN_MEMORY])


def test_a_chain_is_kept_whole_over_two_media(world: World) -> None:
    chain = KEYS[:4]
    assert world.put(world.me, chain, SIZE, chain=True) == [S.COMMITTED] * 4
    world.pass_time(1.0, 0.1)
    world.put_all(*KEYS[10 : 10 + IN_MEMORY - 2])
    places = [world.where(key) for key in chain]
    assert [1] in places and [0, 1] in places  # the end of it went, the head did not
    found = world.call(world.me, m.Lookup(pack_keys(list(chain)), True), m.Found)
    assert found.status == bytes(4)


def test_nothing_stays_below_whose_parent_goes() -> None:
    world = World(offload="off")
    chain = KEYS[:2]
    world.put(world.me, chain, SIZE, chain=True)
    catalog = world.master.catalog
    rows = catalog.table.find(b"".join(chain), np.array([3, 6], np.uint32))
    parent, child = rows[:1], rows[1:]
    family = np.concatenate([child, parent])  # children first
    segment = catalog.segments[1]
    one = np.zeros(1, np.uint32), np.ones(1, np.uint64)
    catalog.rows.add_replicas(segment, child, *one)
    stay, go = catalog.rows.tiers.split(family, "memory")
    assert (stay.tolist(), go.tolist()) == ([], family.tolist())
    catalog.rows.add_replicas(segment, parent, one[0] + 1, one[1])
    stay, go = catalog.rows.tiers.split(family, "memory")
    assert (stay.tolist(), go.tolist()) == (family.tolist(), [])


def test_a_full_disk_gives_up_what_was_read_least_lately() -> None:
    world = World(disk=12 * SIZE + 4000)
    world.put_all(*KEYS[:20])
    held = [key for key in KEYS[:20] if 1 in world.where_or_none(key)]
    assert len(held) == 12
    assert world.look(world.me, KEYS[0]) == [L.EVICTED]
    assert [world.where(key) for key in KEYS[8:12]] == [[1]] * 4
    assert [world.where(key) for key in KEYS[12:20]] == [[0, 1]] * 8


def test_what_leaves_a_full_disk_and_is_in_memory_stays_there() -> None:
    world = World(disk=4 * SIZE + 4000)
    world.put_all(*KEYS[:6])
    assert [world.where(key) for key in KEYS[:6]] == [[0]] * 2 + [[0, 1]] * 4
    assert world.stat(world.me)["forgotten"] == 2
    assert ("forget", KEYS[0], "disk") in world.events()


def test_a_removed_object_stays_removed_when_master_and_tier_return(world: World) -> None:
    world.put_all(*KEYS[: IN_MEMORY + 1])
    assert world.where(KEYS[0]) == [1]
    assert world.call(world.me, m.Remove(pack_keys([KEYS[0]])), m.Removed).status == bytes(
        [R.REMOVED]
    )
    world.start(2, first_term=50)
    for node in world.nodes:
        world.join(node)
    world.pass_time(1.0)
    me = world.client()
    assert world.look(me, KEYS[0]) == [L.ABSENT]
    assert world.look(me, KEYS[1]) == [L.FOUND]
    assert sorted(segment for segment, _, _ in world.placed(me, KEYS[1])) == [0, 1]


def test_a_removal_that_a_tier_missed_catches_up_with_it(world: World) -> None:
    world.put_all(*KEYS[: IN_MEMORY + 1])
    world.leave(world.tier)
    world.ask(world.me, m.Remove(pack_keys([KEYS[1]]), wait_ms=0))
    world.pass_time(5.0)
    world.start(2, first_term=50)
    for node in world.nodes:
        world.join(node)
    world.pass_time(1.0)
    assert world.look(world.client(), KEYS[1]) == [L.ABSENT]


def test_a_newer_value_is_never_shadowed_by_an_older_copy_below(world: World) -> None:
    world.put_all(KEYS[0])
    world.leave(world.tier)
    world.pass_time(5.0)
    world.put_all(KEYS[0], replace=True)
    newest = world.placed(world.me, KEYS[0])
    assert [segment for segment, _, _ in newest] == [0]
    world.start(2, first_term=50)
    world.join(world.tier)  # the old copy is reported first
    world.join(world.memory)
    world.pass_time(2.0, 0.1)
    me = world.client()
    found = world.call(me, m.Lookup(pack_keys([KEYS[0]])), m.Found)
    (newest_sequence,) = world.versions(world.memory)
    assert u64(found.sequence).tolist() == [newest_sequence]
    assert set(world.versions(world.tier)) <= {newest_sequence}


def test_an_object_that_was_demoted_is_not_repaired() -> None:
    world = World()
    world.add_node("b", MEMORY)
    world.put_all(*KEYS[:IN_MEMORY], replicas=2)
    world.put_all(*KEYS[10 : 10 + IN_MEMORY], replicas=2)
    world.pass_time(5.0, 0.1)
    assert world.where(KEYS[10]) == [0, 1, 2]  # nor is the copy below one too many
    gone = pack_keys(KEYS[11 : 10 + IN_MEMORY])
    assert set(world.call(world.me, m.Remove(gone), m.Removed).status) == {R.REMOVED}
    world.pass_time(5.0, 0.1)
    assert world.where(KEYS[0]) == [1]


def test_a_tier_that_hangs_holds_nobody_up(world: World) -> None:
    world.put_all(*KEYS[:2])
    world.tier.deaf = True
    world.put_all(*KEYS[2:20])
    assert all(world.where(key) == [0] for key in KEYS[20 - IN_MEMORY : 20])
    world.tier.deaf = False
    world.pass_time(15.0)
    assert world.where(KEYS[19]) == [0, 1]


def test_what_one_tier_has_no_turn_for_is_not_forgotten_when_another_takes_it(world: World) -> None:
    far = world.add_node("far", DISK, medium="remote")
    far.deaf = True
    world.put_all(*KEYS[:6])
    assert [world.where(key) for key in KEYS[:6]] == [[0, 1]] * 6
    far.deaf = False
    world.pass_time(15.0)
    assert [world.where(key) for key in KEYS[:6]] == [[0, 1, 2]] * 6


def test_a_tier_that_refuses_is_left_alone_for_a_while(world: World) -> None:
    world.copying = False
    world.put_all(KEYS[0])
    (order,) = world.tier.machine.copies
    world.tier.machine.copies.clear()
    refused = m.Copied(order.id, 1, b"\4", bytes(4), bytes(8))
    world.from_node(world.tier, refused)
    assert world.stat(world.me)["offload_failed"] == 1
    world.put_all(KEYS[1])
    assert not world.tier.machine.copies
    world.pass_time(2.0)
    assert world.tier.machine.copies


def test_copies_that_a_node_lost_are_said_medium_by_medium(world: World) -> None:
    world.put_all(KEYS[0])
    for segment, slot, generation in world.placed(world.me, KEYS[0]):
        found = world.call(world.me, m.Lookup(pack_keys([KEYS[0]])), m.Found)
        bad = m.Report(
            found.row,
            found.sequence,
            np.array([segment], np.uint16).tobytes(),
            np.array([slot], np.uint32).tobytes(),
            np.array([generation], np.uint64).tobytes(),
        )
        assert world.call(world.me, bad, m.Done).count == 1
    kinds = [(kind, medium) for kind, _, medium in world.events()]
    assert kinds[-2:] in (
        [("demote", "memory"), ("lose", "")],
        [("forget", "disk"), ("lose", "")],
    )


def test_a_lost_tier_is_not_a_lost_node(world: World) -> None:
    world.put_all(KEYS[0])
    world.leave(world.tier)
    world.pass_time(5.0)
    assert ("tier_lost", b"", "disk") in world.events()
    assert not [event for event in world.events() if event[0] == "node_lost"]
    assert world.where(KEYS[0]) == [0]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_what_is_said_to_be_there_is_there(seed: int) -> None:
    """R58: puts, reads, removals and time over two small media; every copy that the master names
    is sealed at its agent, and what has no copy is not said to be found."""
    draw = np.random.default_rng(seed)
    world = World(disk=MEMORY + 3 * SIZE, offload="write" if seed % 2 else "evict")
    agents = {0: world.memory, 1: world.tier}
    for _ in range(150):
        key = KEYS[int(draw.integers(len(KEYS)))]
        act = draw.random()
        if act < 0.5:
            world.put(world.me, [key], SIZE, replace=bool(draw.integers(2)))
        elif act < 0.75:
            world.read(key)
        elif act < 0.85:
            world.call(world.me, m.Remove(pack_keys([key])), m.Removed)
        world.pass_time(float(draw.choice([0.1, 0.3, 2.0])), 0.1)
        for one, status in zip(KEYS, world.look(world.me, *KEYS), strict=True):
            if status is not L.FOUND:
                continue
            places = world.placed(world.me, one)
            assert places, one
            for segment, slot, generation in places:
                data = world.bytes_of(agents[segment].agent, slot, generation)
                assert data[: len(one)] == one and len(data) == SIZE


def test_a_drained_node_gives_up_its_disk_too() -> None:
    """What lay there only comes to memory of another node; what cannot yet stays and is counted."""
    world = World()
    world.put_all(*KEYS[: IN_MEMORY + 3])
    assert [world.where(key) for key in KEYS[:3]] == [[1]] * 3
    room = world.add_node("b", 2 * MEMORY)
    world.call(world.me, m.Drain("a"), m.Done)
    world.pass_time(8.0, 0.1)
    assert world.call(world.me, m.Drain("a"), m.Done).count == 0
    assert all(world.where(key) == [2] for key in KEYS[: IN_MEMORY + 3])
    assert room.agent.usage()["sealed"] == IN_MEMORY + 3
    assert world.stat(world.me)["evicted_objects"] == 0
