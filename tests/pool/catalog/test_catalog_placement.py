"""Placement is pure: the same facts and the same draw give the same segments."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import numpy as np
import pytest

from moonpool.core.errors import BadConfig
from moonpool.core.master_section import PlacementName
from moonpool.pool.catalog.base import SegmentFacts
from moonpool.pool.catalog.placement import PLACEMENTS, placement_named
from tests.pool.catalog.harness import Pool


def fact(
    segment: int,
    free: int,
    host: str = "h",
    node: str = "",
    capacity: int = 100,
    domain: str = "",
    warmth: float = 1.0,
) -> SegmentFacts:
    return SegmentFacts(
        segment, node or f"n{segment}", host, capacity, free, 10, domain or host, warmth
    )


def place(
    facts: list[SegmentFacts],
    size: int = 10,
    replicas: int = 1,
    prefer: int = -1,
    draw: float = 0.0,
    evicting: bool = False,
    strategy: str = "local",
) -> list[int]:
    return placement_named(strategy).targets(facts, size, replicas, "h", prefer, draw, evicting)


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
    assert place([SegmentFacts(0, "n", "h", 100, 90, 0, "h")]) == []


def test_too_big_for_every_capacity() -> None:
    assert place([fact(0, 90)], size=101, evicting=True) == []


def test_the_strategies_are_those_of_the_configuration() -> None:
    assert get_args(PlacementName) == tuple(PLACEMENTS)
    with pytest.raises(BadConfig, match="free-ratio"):
        placement_named("free")


def test_preferred_looks_at_no_host() -> None:
    facts = [fact(0, 60, "far"), fact(1, 40)]
    assert place(facts, prefer=1, strategy="preferred") == [1]
    counts = Counter(place(facts, draw=i / 100, strategy="preferred")[0] for i in range(100))
    assert counts == {0: 60, 1: 40}


def test_free_ratio_fills_small_and_large_segments_at_one_pace() -> None:
    facts = [fact(0, 100, "far", capacity=200), fact(1, 750, capacity=1000)]
    counts = Counter(place(facts, draw=i / 100, strategy="free-ratio")[0] for i in range(100))
    assert counts == {0: 40, 1: 60}
    counts = Counter(
        place(facts, draw=i / 120, strategy="free-ratio", evicting=True)[0] for i in range(120)
    )
    assert counts == {0: 20, 1: 100}


def test_random_gives_each_the_same_chance() -> None:
    facts = [fact(0, 20, "far"), fact(1, 90)]
    counts = Counter(place(facts, draw=i / 100, strategy="random")[0] for i in range(100))
    assert counts == {0: 50, 1: 50}


@pytest.mark.parametrize("strategy", PLACEMENTS)
def test_copies_lie_in_distinct_failure_domains_where_there_are_enough(strategy: str) -> None:
    racks = [fact(i, 90, f"h{i}", domain="a" if i < 3 else "b") for i in range(4)]
    for draw in (0.0, 0.3, 0.6, 0.9):
        chosen = place(racks, replicas=2, draw=draw, strategy=strategy)
        assert len(chosen) == 2 and 3 in chosen
        assert len(place(racks, replicas=3, draw=draw, strategy=strategy)) == 3


def test_a_fresh_segment_beside_full_ones_is_filled_slowly() -> None:
    facts = [fact(0, 0), fact(1, 0), fact(2, 0), fact(3, 100, warmth=0.1)]
    got = []
    for draw in (i / 1000 for i in range(1000)):
        got += place(facts, draw=draw) or place(facts, draw=draw, evicting=True)
    assert Counter(got)[3] < 2 * 250
    warm = [*facts[:3], fact(3, 100)]
    assert place(warm, draw=0.5) == [3]


def test_where_all_are_fresh_nobody_waits() -> None:
    assert place([fact(0, 90, warmth=0.1), fact(1, 90, warmth=0.1)], draw=0.6) == [1]


def test_a_segment_warms_up_in_its_time() -> None:
    pool = Pool()
    segment = pool.add_segment(100)
    segment.fresh_since = 10.0
    seen = []
    for now in (10.0, 15.0, 20.0):
        segment.warm(now, 10.0)
        seen.append(segment.facts().warmth)
    assert seen == [0.1, 0.5, 1.0] and segment.fresh_since is None


@pytest.mark.parametrize("strategy", get_args(PlacementName))
def test_of_many_segments_all_are_chosen_and_rooms_count(strategy: str) -> None:
    """Only some are weighed for one decision; over many each gets what it would get."""
    facts = [fact(n, 100 if n % 2 else 50, host="other") for n in range(200)]
    draws = [(n + 0.5) / 6_000 for n in range(6_000)]
    chosen = Counter(place(facts, draw=draw, strategy=strategy)[0] for draw in draws)
    assert set(chosen) == set(range(200))
    large = sum(count for number, count in chosen.items() if number % 2) / len(draws)
    assert large == pytest.approx(0.5 if strategy == "random" else 2 / 3, abs=0.02)


def test_of_many_segments_the_preferred_one_and_those_near_come_first() -> None:
    facts = [fact(n, 50, host="h" if n == 321 else "other") for n in range(500)]
    assert {place(facts, prefer=77, draw=n / 50)[0] for n in range(50)} == {77}
    assert {place(facts, draw=n / 50)[0] for n in range(50)} == {321}


def test_of_many_segments_the_only_one_with_room_is_found() -> None:
    facts = [fact(n, 50 if n == 321 else 0, host="other") for n in range(500)]
    assert {place(facts, draw=n / 50)[0] for n in range(50)} == {321}


def test_another_offer_lies_apart_from_the_copy_that_is_there() -> None:
    pool, hosts = Pool(), "xxxyy"
    for host in hosts:
        pool.add_segment(1000, host=host)
    for i in range(20):
        admitted = pool.reserve([b"k%d" % i], 1, replicas=2)
        kept, failed = admitted.segments[0].tolist()
        assert hosts[kept] != hosts[failed]
        offers, _ = pool.catalog.reoffer(
            admitted.rows, admitted.attempts, np.array([failed], np.uint16), "far", 100.0 * i
        )
        assert hosts[int(offers[0])] == hosts[failed]
