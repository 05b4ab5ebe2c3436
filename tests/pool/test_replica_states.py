"""The table "Where a copy stands" of docs/store.md, cell by cell: readable, evictable, counts as a
copy, counted in the segment's bytes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from moonpool.core.sections import MasterConfig
from moonpool.pool import messages as m
from moonpool.pool.columns import pack_keys, u32, u64
from moonpool.pool.messages import LookupStatus as L
from moonpool.pool.messages import PutStatus as S
from moonpool.pool.ports import CLAIM_DTYPE
from tests.pool.master_world import CONFIG, MasterWorld

CAPACITY = 1 << 16
SIZE = 40_000
KEY = b"a"
SETTINGS = msgspec.structs.replace(CONFIG, slow_start_s=0.0, repair_delay_s=600.0)


class State:
    """One copy of KEY on segment 0, in some state."""

    def __init__(self, nodes: int = 1, settings: MasterConfig = SETTINGS) -> None:
        self.world = MasterWorld(settings)
        for _ in range(nodes):
            self.world.add_node(capacity=CAPACITY)
        self.client = self.world.client()
        self.segment = 0

    def put(self, **how: object) -> None:
        assert self.world.put(self.client, [KEY], SIZE, **how) == [S.COMMITTED]

    def readable(self) -> bool:
        if self.world.look(self.client, KEY) != [L.FOUND]:
            return False
        return self.segment in [place[0] for place in self.world.placed(self.client, KEY)]

    def evictable(self) -> bool:
        """Whether it goes for an object that needs its room there."""
        self.world.reserve(self.client, [b"x"], SIZE, prefer_segment=self.segment)
        segment = self.world.master.catalog.segments[self.segment]
        return bool(self.before) and segment.committed_bytes == 0

    def is_copy(self) -> bool:
        """Whether repair takes it for one of the copies wanted."""
        master = self.world.master
        keys = pack_keys([KEY])
        rows = master.catalog.table.find(keys.blob, u32(keys.ends))
        if rows[0] < 0:
            return False
        present = master._copies._present(self.world.now)
        present &= np.arange(present.size) == self.segment
        return bool(master.catalog.copying.present_copies(rows, present)[0])

    def counted(self) -> str:
        segment = self.world.master.catalog.segments[self.segment]
        self.before = segment.committed_bytes
        if segment.committed_bytes:
            return "committed"
        return "promised" if segment.promised_bytes else ""


class OnDisk(State):
    """On segment 1, the disk of a node whose memory, segment 0, has given it up."""

    def __init__(self) -> None:
        super().__init__(settings=msgspec.structs.replace(SETTINGS, offload="write"))
        self.world.add_node("n0", CAPACITY - 10_000, medium="disk")
        self.put()
        self.world.pass_time(1.0)
        self.world.reserve(self.client, [b"x"], SIZE)
        self.segment = 1

    def evictable(self) -> bool:
        assert self.world.put(self.client, [b"y"], SIZE // 2) == [S.COMMITTED]
        self.world.pass_time(1.0)
        return self.world.look(self.client, KEY) == [L.EVICTED]


def reserved() -> State:
    state = State()
    state.world.reserve(state.client, [KEY], SIZE)
    return state


def writing() -> State:
    """Claimed at its agent, some bytes are there."""
    state = State()
    promise = state.world.reserve(state.client, [KEY], SIZE)
    claims = np.zeros(1, CLAIM_DTYPE)
    claims[0] = (SIZE, promise.term, u64(promise.attempt)[0], 0, 0, len(KEY), 0, 1, 0, 0, 0)
    agent = state.world.agent(0)
    status, slots, generations = agent.claim(claims, KEY, promise.term)
    assert status.tolist() == [0]
    agent.write(int(slots[0]), int(generations[0]), 0, b"some")
    state.world.pass_time(1.0)
    assert agent.usage()["writing"] == 1
    return state


def committed() -> State:
    state = State()
    state.put()
    return state


def pinned() -> State:
    state = State()
    state.put(pin=2)
    return state


def copying() -> State:
    state = State(nodes=2)
    state.put(prefer_segment=0)
    state.world.copying = False
    state.world.call(state.client, m.Drain("n0"), m.Done)
    state.world.pass_time(0.5)
    assert len(state.world.master.catalog.copying) == 1
    state.segment = 1
    return state


def aborted() -> State:
    """Its writer said so."""
    state = State()
    reserved = state.world.reserve(state.client, [KEY], SIZE)
    state.world.call(state.client, m.Abort(reserved.row, reserved.attempt), m.Done)
    return state


def expired() -> State:
    """Its writer was not heard any more, and may hold the memory yet."""
    state = reserved()
    state.world.master.catalog.expire(state.world.now + 11.0)
    return state


def failed_copy() -> State:
    """The order for it was given up, as at a new term."""
    state = copying()
    state.world.call(state.client, m.Drain("n0", True), m.Done)
    state.world.master._copies.cancel_all()
    assert len(state.world.master.catalog.copying) == 0
    return state


def away() -> State:
    state = State(nodes=2)
    state.put(prefer_segment=0)
    state.world.leave(state.world.nodes[0])
    return state


def draining() -> State:
    state = State(nodes=2)
    state.put(prefer_segment=0)
    assert state.world.put(state.client, [b"p"], SIZE, pin=2, prefer_segment=1) == [S.COMMITTED]
    state.world.call(state.client, m.Drain("n0"), m.Done)
    state.world.pass_time(1.0)
    return state


def quarantined() -> State:
    """A reader found its bytes changed."""
    state = State()
    state.put()
    found = state.world.call(state.client, m.Lookup(pack_keys([KEY])), m.Found)
    replica = found.replicas
    report = m.Report(found.row, found.sequence, replica.segment, replica.slot, replica.generation)
    assert state.world.call(state.client, report, m.Done).count == 1
    return state


def retired() -> State:
    """Removed, and its agent still drains those who read it."""
    state = State()
    state.put()
    node = state.world.nodes[0]
    node.deaf = True
    state.world.ask(state.client, m.Remove(pack_keys([KEY]), 60_000))
    assert node.agent.usage()["sealed"] == 1, "its memory is not back yet"
    return state


TABLE: list[tuple[Callable[[], State], bool, bool, bool, str]] = [
    # state, readable, evictable, counts as a copy, counted in bytes
    (reserved, False, False, False, "promised"),
    (writing, False, False, False, "promised"),
    (committed, True, True, True, "committed"),
    (pinned, True, False, True, "committed"),
    (copying, False, False, False, "promised"),
    (aborted, False, False, False, ""),
    (expired, False, False, False, "promised"),
    (failed_copy, False, False, False, ""),
    (away, False, False, True, "committed"),
    (draining, True, False, False, "committed"),
    (quarantined, False, False, False, ""),
    (retired, False, False, False, ""),
    (OnDisk, True, True, False, "committed"),
]
IDS = [row[0].__name__ for row in TABLE]


@pytest.mark.parametrize(("make", "readable"), [row[:2] for row in TABLE], ids=IDS)
def test_readable(make: Callable[[], State], readable: bool) -> None:
    assert make().readable() == readable


@pytest.mark.parametrize(("make", "evictable"), [(row[0], row[2]) for row in TABLE], ids=IDS)
def test_evictable(make: Callable[[], State], evictable: bool) -> None:
    state = make()
    state.counted()
    assert state.evictable() == evictable


@pytest.mark.parametrize(("make", "copy"), [(row[0], row[3]) for row in TABLE], ids=IDS)
def test_is_a_copy(make: Callable[[], State], copy: bool) -> None:
    assert make().is_copy() == copy


def test_a_copy_on_its_way_is_not_ordered_twice() -> None:
    state = copying()
    state.world.pass_time(2.0)
    assert len(state.world.master.catalog.copying) == 1
    assert len(state.world.nodes[1].machine.copies) == 1


def test_away_for_longer_than_the_delay_is_no_copy() -> None:
    state = away()
    state.world.pass_time(SETTINGS.repair_delay_s + 1, step=50.0)
    assert not state.is_copy()


@pytest.mark.parametrize(("make", "counted"), [(row[0], row[4]) for row in TABLE], ids=IDS)
def test_counted(make: Callable[[], State], counted: str) -> None:
    assert make().counted() == counted
