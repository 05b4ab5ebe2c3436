"""Clocks move as told; deadlines end."""

import math

import pytest

from moonpool.core.clock import DEADLINE_LEFT_MAX_S, Clock, Deadline, ManualClock, SystemClock
from moonpool.core.errors import BadDuration, DeadlineExceeded


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()])
def test_time_does_not_go_back(clock: Clock) -> None:
    monotonic, boottime = clock.monotonic(), clock.boottime_ns()
    assert clock.monotonic() >= monotonic
    assert clock.boottime_ns() >= boottime
    assert clock.wall_ms() > 1_600_000_000_000


def test_advance_moves_all_three() -> None:
    clock = ManualClock(start_s=10.0, wall_ms=5_000)
    clock.advance(1.5)
    assert (clock.monotonic(), clock.boottime_ns(), clock.wall_ms()) == (
        11.5,
        11_500_000_000,
        6_500,
    )


def test_small_steps_do_not_drift() -> None:
    clock = ManualClock()
    for _ in range(1000):
        clock.advance(0.001)
    assert clock.monotonic() == 1.0


def test_suspend_stops_only_the_monotonic_clock() -> None:
    clock = ManualClock(wall_ms=0)
    clock.suspend(2.0)
    assert (clock.monotonic(), clock.boottime_ns(), clock.wall_ms()) == (0.0, 2_000_000_000, 2000)


def test_a_wall_jump_moves_nothing_else() -> None:
    clock = ManualClock(wall_ms=10_000)
    clock.jump_wall(-4_000)
    assert (clock.monotonic(), clock.boottime_ns(), clock.wall_ms()) == (0.0, 0, 6_000)


@pytest.mark.parametrize("step", [-0.1, math.inf, math.nan])
def test_a_clock_refuses_to_go_back(step: float) -> None:
    with pytest.raises(BadDuration):
        ManualClock().advance(step)


def test_left_counts_down_to_zero() -> None:
    deadline = Deadline.after(100.0, 5.0)
    assert deadline.left(101.0) == 4.0
    assert deadline.left(106.0) == 0.0
    assert not deadline.expired(104.9)
    assert deadline.expired(105.0)


def test_the_wire_carries_the_time_left_rounded_down() -> None:
    deadline = Deadline.after(0.0, 1.9999)
    assert deadline.left_ms(0.0) == 1999
    assert Deadline.from_left_ms(50.0, 1999).at_s == pytest.approx(51.999)


def test_a_peer_cannot_ask_for_more_than_a_day() -> None:
    assert Deadline.from_left_ms(0.0, 2**32 - 1).at_s == DEADLINE_LEFT_MAX_S


@pytest.mark.parametrize("timeout", [-1.0, math.inf, math.nan, DEADLINE_LEFT_MAX_S + 1])
def test_no_deadline_is_infinite(timeout: float) -> None:
    with pytest.raises(BadDuration, match="every wait has an end"):
        Deadline.after(0.0, timeout)


def test_a_deadline_itself_is_finite() -> None:
    with pytest.raises(BadDuration):
        Deadline(math.inf)


def test_check_names_the_call() -> None:
    deadline = Deadline.after(0.0, 1.0)
    assert deadline.check(0.25, "get") == 0.75
    with pytest.raises(DeadlineExceeded, match="get: deadline passed 500 ms ago"):
        deadline.check(1.5, "get")


def test_the_earlier_deadline_is_the_smaller() -> None:
    assert min(Deadline(3.0), Deadline(2.0)) == Deadline(2.0)
