"""Where a new object goes: near its writer first, then by room. Pure; the draw is an argument.

Room anywhere comes before eviction anywhere. Segments are drawn with a chance that follows their
free bytes (their capacity once nothing is free): alternating blindly between a small and a large
segment would halve the hits.
"""

from __future__ import annotations

from collections.abc import Sequence

from moonpool.pool.catalog.base import SegmentFacts


class LocalFirst:
    """Preferred segment, then segments of the writer's host, then the others, drawn by room."""

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
        if len(left) == 1:
            return [left[0].segment]
        chosen: list[SegmentFacts] = []
        while left and len(chosen) < replicas:
            one, draw = self._next(left, chosen, host_id, prefer, draw, evicting)
            chosen.append(one)
            left = [other for other in left if other.node != one.node]
        return [one.segment for one in chosen]

    def _next(
        self,
        left: list[SegmentFacts],
        chosen: list[SegmentFacts],
        host_id: str,
        prefer: int,
        draw: float,
        evicting: bool,
    ) -> tuple[SegmentFacts, float]:
        hosts = {one.host_id for one in chosen}
        # Another host is another failure domain: worth more than being near.
        pool = [one for one in left if one.host_id not in hosts] or left
        preferred = [one for one in pool if one.segment == prefer]
        if preferred:
            return preferred[0], draw
        pool = [one for one in pool if one.host_id == host_id] or pool
        return _drawn(pool, draw, evicting)


def _drawn(pool: list[SegmentFacts], draw: float, evicting: bool) -> tuple[SegmentFacts, float]:
    """One of the pool by weight, and what is left of the draw (again uniform in [0, 1))."""
    if len(pool) == 1:
        return pool[0], draw
    weights = [one.capacity_bytes if evicting else one.free_bytes for one in pool]
    point = draw * sum(weights)
    for one, weight in zip(pool, weights, strict=True):
        if point < weight:
            return one, point / weight
        point -= weight
    return pool[-1], 0.0
