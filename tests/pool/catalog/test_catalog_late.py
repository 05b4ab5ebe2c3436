"""Room of promises whose writer may still hold the memory."""

from __future__ import annotations

import math

import pytest

from moonpool.pool.catalog.segments import LATE_MAX, Late, Segment
from tests.pool.catalog.harness import Pool


@pytest.fixture
def segment() -> Segment:
    return Pool().add_segment(10 * LATE_MAX)


def late_at(segment: Segment, moment: float) -> None:
    segment.promise(1, 1)
    segment.release_late(Late(moment + 10, moment, 1, 1))


def test_late_promises_are_bounded_and_lose_no_room(segment: Segment) -> None:
    for moment in range(LATE_MAX + 5):
        late_at(segment, moment)
    assert len(segment.late) == LATE_MAX
    assert segment.promised_bytes == LATE_MAX + 5
    segment.settle(math.inf, 0.0)
    assert segment.promised_bytes == segment.promised_objects == 0


def test_room_taken_in_by_a_newer_promise_returns_with_it(segment: Segment) -> None:
    for moment in range(LATE_MAX + 1):
        late_at(segment, moment)
    segment.settle(0.0, heard=LATE_MAX)
    assert segment.promised_bytes == 2
    segment.settle(0.0, heard=LATE_MAX + 1)
    assert segment.promised_bytes == 0
