"""Numbers of a publisher's messages: gaps, replays, repeats and new lives."""

from __future__ import annotations

import random

import pytest

from moonpool.router.service.event_stream import EventStream, Step


def test_in_order() -> None:
    stream = EventStream()
    for number in range(5):
        assert stream.live(number) is Step.APPLY
        stream.applied(number)
    assert stream.next == 5 and stream.lost == 0


def test_a_gap_is_filled_by_a_replay() -> None:
    stream = EventStream()
    stream.live(0)
    stream.applied(0)
    assert stream.live(4) is Step.FILL
    assert [stream.replayed(number) for number in (0, 1, 2, 3, 4)] == [
        False,
        True,
        True,
        True,
        True,
    ]
    assert stream.again(4) is Step.SKIP, "the replay brought it, too"
    assert stream.live(5) is Step.APPLY and stream.lost == 0


def test_a_gap_that_nobody_can_fill_is_counted() -> None:
    stream = EventStream()
    assert stream.live(7) is Step.FILL
    stream.applied(7)
    assert stream.lost == 7 and stream.live(8) is Step.APPLY


def test_a_replay_that_begins_late() -> None:
    stream = EventStream()
    stream.live(9)
    assert stream.replayed(6) and stream.lost == 6


def test_what_waited_during_a_replay_is_known_already() -> None:
    stream = EventStream()
    for number in range(4):
        stream.replayed(number)
    assert stream.live(2) is Step.SKIP and stream.live(3) is Step.SKIP
    assert stream.live(4) is Step.APPLY


@pytest.mark.parametrize("first", [0, 3])
def test_a_publisher_that_begins_anew(first: int) -> None:
    stream = EventStream()
    for number in range(9):
        stream.live(number)
        stream.applied(number)
    assert stream.live(first) is Step.RESTART
    assert stream.next == 0
    assert stream.again(first) is (Step.APPLY if first == 0 else Step.FILL)


def test_every_message_once_whatever_is_lost_on_the_way() -> None:
    """Live messages get lost at random; the replay keeps the last 20."""
    draw = random.Random(5)
    stream, applied = EventStream(), list[int]()
    for number in range(3000):
        if draw.random() < 0.3:
            continue
        step = stream.live(number)
        if step is Step.FILL:
            for old in range(max(0, number - 20), number + 1):
                if old >= stream.next and stream.replayed(old):
                    applied.append(old)
            step = stream.again(number)
        if step is Step.APPLY:
            stream.applied(number)
            applied.append(number)
    assert applied == sorted(set(applied))
    assert stream.lost + len(applied) == stream.next
