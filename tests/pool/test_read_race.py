"""Reads begun on other copies: who wins, whose memory is written, when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, cast

import numpy as np
import pytest

from moonpool.pool.client_state import ClientState, Placement, Replica
from moonpool.pool.hedging import CREDIT_MAX
from moonpool.pool.ports import Outcome, Port, ReadCall, Status
from moonpool.pool.protocol import CallAgents, CallMaster, Context, Protocol, RaceAgents
from moonpool.pool.protocol_get import fetch
from moonpool.pool.read_costs import FIRST_READS
from moonpool.pool.read_race import run_race
from moonpool.pool.results import Hit, Miss, MissReason

AFTER_MS = 50
T = TypeVar("T")


class Clock:
    """Time that passes while somebody waits."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


class TimedCall:
    """Writes its block's slot number, `takes_s` after it was begun; cancelled before, never."""

    def __init__(self, port: TimedPort, call: ReadCall) -> None:
        self.port, self.call = port, call
        self.due = port.clock() + port.takes_s
        self.outcome: Outcome | None = None

    def wait(self, seconds: float) -> bool:
        until = self.port.clock.s + seconds
        self.port.clock.s = max(self.port.clock.s, min(until, self.due))
        return self.port.clock.s >= self.due

    def cancel(self) -> None:
        self.port.cancelled += 1
        self.outcome = self._all(Status.CANCELLED)

    def __call__(self) -> Outcome:
        if self.outcome is None:
            self.port.clock.s = max(self.port.clock.s, self.due)
            if self.port.status == Status.OK:
                for slot, buffer in zip(self.call.slots.tolist(), self.call.buffers, strict=True):
                    memoryview(buffer).cast("B")[:8] = bytes([slot + self.port.mark]) * 8
            self.outcome = self._all(self.port.status)
        return self.outcome

    def _all(self, status: Status) -> Outcome:
        count = len(self.call.slots)
        return Outcome(np.full(count, status, np.uint8), sizes=np.full(count, 8, np.uint64))


class TimedPort:
    kind, local = "tcp", False

    def __init__(
        self, clock: Clock, node: str, takes_s: float, status: Status = Status.OK, mark: int = 0
    ) -> None:
        self.clock, self.node, self.takes_s, self.status, self.mark = (
            *(clock, node, takes_s, status),
            mark,
        )
        self.incarnation = node.encode()
        self.begun: list[float] = []
        self.cancelled = 0

    def start(self, call: ReadCall, timeout_s: float) -> TimedCall:
        self.begun.append(self.clock())
        return TimedCall(self, call)


class World:
    """Objects 0..n of 8 bytes, each on the first of its ports and then on the next."""

    def __init__(self, *copies: tuple[TimedPort, ...], hedge_ms: int = AFTER_MS) -> None:
        self.clock = copies[0][0].clock
        self.state = ClientState("here", lambda endpoint: cast(Port, None), hedge_ms=hedge_ms)
        self.keys = [b"key%d" % i for i in range(len(copies))]
        for i, (key, ports) in enumerate(zip(self.keys, copies, strict=True)):
            replicas = tuple(Replica(cast(Port, port), i, 7) for port in ports)
            self.state.remember(key, Placement(8, i, i, replicas))
        self.raced = 0

    def fetch(self, buffers: list[Any] | None = None, timeout_s: float = 10.0) -> list[Hit | Miss]:
        context = Context(self.state, self.clock, self.clock() + timeout_s)
        return self.run(fetch(context, self.keys, buffers))

    def run(self, reading: Protocol[T]) -> T:
        answer: Any = None
        while True:
            try:
                effect = reading.send(answer)
            except StopIteration as stop:
                return cast(T, stop.value)
            answer = self.perform(effect)

    def perform(self, effect: object) -> Any:
        if isinstance(effect, RaceAgents):
            self.raced += 1
            run_race(effect.race, self.clock)
            return None
        if isinstance(effect, CallAgents):
            return [port.start(call, effect.timeout_s)() for port, call in effect.calls]
        assert isinstance(effect, CallMaster)
        raise AssertionError("nothing is asked of the master here")


@pytest.fixture
def clock() -> Iterator[Clock]:
    yield Clock()


def test_a_silent_copys_object_comes_from_the_next_one(clock: Clock) -> None:
    silent, other = TimedPort(clock, "a", 9.0, mark=100), TimedPort(clock, "b", 0.01)
    world, buffer = World((silent, other)), bytearray(8)
    assert world.fetch([buffer]) == [Hit(8, "b")]
    assert buffer == bytes(8), "slot 0 as the other copy has it"
    assert clock.s < 0.1
    assert silent.cancelled == 1 and other.begun == [pytest.approx(AFTER_MS / 1000, abs=0.002)]


def test_the_caller_s_memory_is_not_written_by_who_lost(clock: Clock) -> None:
    silent, other = TimedPort(clock, "a", 9.0, mark=100), TimedPort(clock, "b", 0.01, mark=3)
    world, buffer = World((silent, other)), bytearray(8)
    writes: list[bytes] = []

    class Watched(TimedPort):
        def start(self, call: ReadCall, timeout_s: float) -> TimedCall:
            assert call.buffers[0] is not buffer, "two reads into one buffer"
            writes.append(bytes(buffer))
            return super().start(call, timeout_s)

    other.__class__ = Watched
    assert world.fetch([buffer]) == [Hit(8, "b")]
    assert writes == [bytes(8)] and bytes(buffer) == bytes([3]) * 8


def test_who_answers_in_time_is_asked_alone(clock: Clock) -> None:
    quick, other = TimedPort(clock, "a", 0.02), TimedPort(clock, "b", 0.0)
    world = World((quick, other))
    assert world.fetch([bytearray(8)]) == [Hit(8, "a")]
    assert world.raced == 1 and other.begun == []
    assert not world.state.hedging.slow(cast(Port, quick), clock.s)


def test_the_first_copy_may_still_win(clock: Clock) -> None:
    late, other = TimedPort(clock, "a", 0.06), TimedPort(clock, "b", 9.0)
    world, buffer = World((late, other)), bytearray(8)
    assert world.fetch([buffer]) == [Hit(8, "a")]
    assert other.cancelled == 1 and len(other.begun) == 1


def test_only_the_silent_ones_objects_are_read_again(clock: Clock) -> None:
    a, b, c = (TimedPort(clock, name, 0.01) for name in "abc")
    a.takes_s = 9.0
    world = World((a, b), (a, c), (b, a), (c,))
    assert world.fetch() == [
        Hit(8, "b", bytes([0] * 8)),
        Hit(8, "c", bytes([1] * 8)),
        Hit(8, "b", bytes([2] * 8)),
        Hit(8, "c", bytes([3] * 8)),
    ]
    assert [len(port.begun) for port in (a, b, c)] == [1, 2, 2]


def test_an_object_without_another_copy_is_waited_for(clock: Clock) -> None:
    slow, other = TimedPort(clock, "a", 1.0), TimedPort(clock, "b", 0.01)
    world = World((slow, other), (slow,))
    assert world.fetch() == [Hit(8, "b", bytes([0] * 8)), Hit(8, "a", bytes([1] * 8))]
    assert slow.cancelled == 0


def test_a_bad_other_copy_is_no_answer(clock: Clock) -> None:
    slow, bad = TimedPort(clock, "a", 1.0, mark=5), TimedPort(clock, "b", 0.01, Status.UNREACHABLE)
    world, buffer = World((slow, bad)), bytearray(8)
    assert world.fetch([buffer]) == [Hit(8, "a")]
    assert bytes(buffer) == bytes([5]) * 8


def test_a_buffer_that_is_too_small_is_said_by_the_other_copy_too(clock: Clock) -> None:
    silent, other = TimedPort(clock, "a", 9.0), TimedPort(clock, "b", 0.01)
    (answer,) = World((silent, other)).fetch([bytearray(4)])
    assert answer == Miss(MissReason.BUFFER_TOO_SMALL)


def test_who_lost_is_passed_over_for_a_moment(clock: Clock) -> None:
    silent, other = TimedPort(clock, "a", 9.0), TimedPort(clock, "b", 0.01)
    world = World((silent, other))
    for _ in range(20):
        assert world.fetch([bytearray(8)]) == [Hit(8, "b")]
    assert len(silent.begun) == 1 and world.state.hedging.begun == 1


def test_without_credit_nothing_is_begun_twice(clock: Clock) -> None:
    slow, other = TimedPort(clock, "a", 0.5), TimedPort(clock, "b", 0.01)
    world = World((slow, other))
    for _ in range(int(CREDIT_MAX)):
        assert world.state.hedging.allow()
    assert world.fetch([bytearray(8)]) == [Hit(8, "a")]
    assert other.begun == []


def test_switched_off_nothing_is_begun_twice(clock: Clock) -> None:
    slow, other = TimedPort(clock, "a", 0.5), TimedPort(clock, "b", 0.01)
    world = World((slow, other), hedge_ms=-1)
    assert world.fetch([bytearray(8)]) == [Hit(8, "a")]
    assert other.begun == [] and world.raced == 0


def test_reads_go_to_the_copy_that_was_faster(clock: Clock) -> None:
    slow, fast = TimedPort(clock, "slow", 0.040), TimedPort(clock, "fast", 0.002)
    world = World((slow, fast), (slow, fast), hedge_ms=-1)
    for _ in range(2 * FIRST_READS):
        world.fetch()
    assert [len(one.begun) for one in (slow, fast)] == [FIRST_READS] * 2, "each was tried"
    for _ in range(5):
        assert {hit.node for hit in world.fetch() if isinstance(hit, Hit)} == {"fast"}
    fast.takes_s = 0.400
    for _ in range(10):
        world.fetch()
    assert {hit.node for hit in world.fetch() if isinstance(hit, Hit)} == {"slow"}


def test_a_node_that_cannot_be_reached_is_not_tried_first_for_ever(clock: Clock) -> None:
    away, well = TimedPort(clock, "away", 0.001, Status.UNREACHABLE), TimedPort(clock, "well", 0.04)
    world = World((away, well), hedge_ms=-1)
    for _ in range(20):
        for key in world.keys:  # as the master names them, while it believes that the node lives
            replicas = tuple(Replica(cast(Port, port), 0, 7) for port in (away, well))
            world.state.remember(key, Placement(8, 0, 0, replicas))
        assert isinstance(world.fetch()[0], Hit)
    assert len(away.begun) == FIRST_READS
