"""Where a new object goes: strategies behind one interface. Pure; the draw is an argument.

Room anywhere comes before eviction anywhere. Copies lie on distinct nodes, and in distinct failure
domains where there are enough. Segments are drawn with a chance that follows their room (their
capacity once nothing is free): alternating blindly between a small and a large segment would halve
the hits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from moonpool.core.errors import BadConfig, did_you_mean
from moonpool.pool.catalog.base import Placement, SegmentFacts

_STRIDE: Final = 7919.0  # makes another uniform number of a draw
SAMPLE: Final = 64  # of more segments than this so many are weighed
_PRIME: Final = 7919  # steps of it meet no place twice within fewer than all


class Strategy:
    """What all of them share; each narrows the choice and weighs what is left."""

    def targets(
        self,
        facts: Sequence[SegmentFacts],
        size: int,
        replicas: int,
        host_id: str,
        prefer: int,
        draw: float,
        evicting: bool,
    ) -> list[int]:
        if evicting:
            left = [one for one in facts if one.capacity_bytes >= size]
        else:
            left = [one for one in facts if one.free_bytes >= size and one.free_slots > 0]
            if len(left) == 1 and left[0].warmth >= 1.0:
                return [left[0].segment]
            if any(one.warmth < 1.0 for one in left):
                left = _without_cold(left, facts, draw)
        if len(left) == 1:
            return [left[0].segment]
        chosen: list[SegmentFacts] = []
        while left and len(chosen) < replicas:
            pool = left
            if chosen:  # another failure domain is worth more than being near
                domains = {one.domain for one in chosen}
                pool = [one for one in left if one.domain not in domains] or left
            pool = _sampled(self.narrow(pool, host_id, prefer), draw)
            one, draw = _drawn(pool, [self.weight(one, evicting) for one in pool], draw)
            chosen.append(one)
            if len(chosen) < replicas:
                left = [other for other in left if other.node != one.node]
        return [one.segment for one in chosen]

    def narrow(self, pool: list[SegmentFacts], host_id: str, prefer: int) -> list[SegmentFacts]:
        """Those that come first, at least one of `pool`."""
        return pool

    def weight(self, one: SegmentFacts, evicting: bool) -> float:
        """The chance of a segment among those that are left."""
        return one.capacity_bytes if evicting else one.free_bytes


class LocalFirst(Strategy):
    """The preferred segment, then segments of the writer's host, then the others, by room."""

    def narrow(self, pool: list[SegmentFacts], host_id: str, prefer: int) -> list[SegmentFacts]:
        preferred = [one for one in pool if one.segment == prefer]
        return preferred or [one for one in pool if one.host_id == host_id] or pool


class PreferredFirst(Strategy):
    """The preferred segment, then any, by room: the writer's host counts for nothing."""

    def narrow(self, pool: list[SegmentFacts], host_id: str, prefer: int) -> list[SegmentFacts]:
        return [one for one in pool if one.segment == prefer] or pool


class FreeRatio(Strategy):
    """By the share that is free, so that all segments fill at one pace, small or large."""

    def weight(self, one: SegmentFacts, evicting: bool) -> float:
        if evicting:
            return one.capacity_bytes
        return one.free_bytes / max(one.capacity_bytes, 1)


class Random(Strategy):
    """Any segment, each with the same chance."""

    def weight(self, one: SegmentFacts, evicting: bool) -> float:
        return 1.0


PLACEMENTS: Final[dict[str, Callable[[], Placement]]] = {
    "local": LocalFirst,
    "preferred": PreferredFirst,
    "free-ratio": FreeRatio,
    "random": Random,
}


def placement_named(name: str) -> Placement:
    """Raises BadConfig."""
    if name not in PLACEMENTS:
        raise BadConfig(
            f"placement {name!r} is not known; there are {', '.join(PLACEMENTS)}."
            f"{did_you_mean(name, PLACEMENTS)}"
        )
    return PLACEMENTS[name]()


def one_more(
    placement: Placement,
    facts: Sequence[SegmentFacts],
    domains: Collection[str],
    size: int,
    host_id: str,
    draw: float,
) -> int | None:
    """A segment with room for another copy: in none of these failure domains, if one is left."""
    apart = [one for one in facts if one.domain not in domains]
    for some in (apart, facts):
        chosen = placement.targets(some, size, 1, host_id, -1, draw, False)
        if chosen:
            return chosen[0]
    return None


def _without_cold(
    left: list[SegmentFacts], facts: Sequence[SegmentFacts], draw: float
) -> list[SegmentFacts]:
    """Slow start: a fresh segment is the one with the most room, and would take all that comes.
    Beside warm ones its room counts only as often as its share of the capacity says."""
    if not any(one.warmth >= 1.0 for one in facts):
        return left
    total = sum(one.capacity_bytes for one in facts)
    chance = draw * _STRIDE % 1.0
    return [
        one for one in left if one.warmth >= 1.0 or chance < one.warmth * one.capacity_bytes / total
    ]


def _sampled(pool: list[SegmentFacts], draw: float) -> list[SegmentFacts]:
    """Some of many, each with the same chance. Not every n-th: with segments large and small in
    turn all of them would be of one kind."""
    count = len(pool)
    if count <= SAMPLE:
        return pool
    first = int(draw * _STRIDE % 1.0 * count)
    return [pool[(first + number * _PRIME) % count] for number in range(SAMPLE)]


def _drawn(
    pool: list[SegmentFacts], weights: list[float], draw: float
) -> tuple[SegmentFacts, float]:
    """One of the pool by weight, and what is left of the draw (again uniform in [0, 1))."""
    if len(pool) == 1:
        return pool[0], draw
    point = draw * sum(weights)
    for one, weight in zip(pool, weights, strict=True):
        if point < weight:
            return one, point / weight
        point -= weight
    return pool[-1], 0.0
