"""Placement is pure: the same facts and the same draw give the same segments."""

from __future__ import annotations

from collections import Counter

from moonpool.pool.catalog.base import SegmentFacts
from moonpool.pool.catalog.placement import LocalFirst


def fact(
    segment: int, free: int, host: str = "h", node: str = "", capacity: int = 100
) -> SegmentFacts:
    return SegmentFacts(segment, node or f"n{segment}", host, capacity, free, 10)


def place(
    facts: list[SegmentFacts],
    size: int = 10,
    replicas: int = 1,
    prefer: int = -1,
    draw: float = 0.0,
    evicting: bool = False,
) -> list[int]:
    return LocalFirst().targets(facts, size, replicas, "h", prefer, draw, evicting)


def test_the_own_host_comes_first() -> None:
    assert place([fact(0, 90, "far"), fact(1, 20)]) == [1]


def test_another_host_with_room_comes_before_eviction() -> None:
    assert place([fact(0, 90, "far"), fact(1, 5)]) == [0]


def test_the_preferred_segment_comes_before_all() -> None:
    assert place([fact(0, 90, "far"), fact(1, 90)], prefer=0) == [0]
    assert place([fact(0, 5, "far"), fact(1, 90)], prefer=0) == [1]


def test_a_draw_follows_the_free_bytes() -> None:
    facts = [fact(0, 30), fact(1, 90)]
    counts = Counter(place(facts, draw=i / 120)[0] for i in range(120))
    assert counts == {0: 30, 1: 90}


def test_with_eviction_it_follows_the_capacity() -> None:
    facts = [fact(0, 0, capacity=100), fact(1, 0, capacity=300)]
    counts = Counter(place(facts, draw=i / 400, evicting=True)[0] for i in range(400))
    assert counts == {0: 100, 1: 300}


def test_a_draw_at_the_very_end_is_still_a_segment() -> None:
    assert place([fact(0, 0, capacity=0), fact(1, 0, capacity=0)], 0, draw=0.5, evicting=True) == [
        1
    ]


def test_copies_lie_on_distinct_nodes_and_hosts_where_possible() -> None:
    facts = [fact(0, 90, node="n"), fact(1, 90, node="n"), fact(2, 90), fact(3, 20, "far")]
    for step in range(10):
        first, second = place(facts, replicas=2, draw=step / 10)
        assert first in (0, 1, 2)
        assert second == 3
        chosen = place(facts, replicas=4, draw=step / 10)
        assert len(chosen) == 3 and not {0, 1} <= set(chosen)


def test_full_slots_are_no_room() -> None:
    assert place([SegmentFacts(0, "n", "h", 100, 90, 0)]) == []


def test_too_big_for_every_capacity() -> None:
    assert place([fact(0, 90)], size=101, evicting=True) == []
