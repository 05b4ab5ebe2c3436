"""Which objects go when a segment needs room: policies give an order, `Evictor` a decision.

A victim takes its descendants along, on whatever segment, children first. A pinned, leased or
in-flight member keeps the whole closure. Nothing is chosen beyond what is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from moonpool._core import Table
from moonpool.core.errors import BadConfig
from moonpool.pool.catalog.base import (
    CHOSEN,
    I32,
    KEPT,
    RESERVED,
    U32,
    U64,
    EvictionPolicy,
)

CANDIDATES = 64
SPARED_MAX = 8192  # candidates that may not go, passed over in one decision


class Lru:
    """Least recently used first, orphans before all; the order is the table's recency lists.

    Lists: number s holds segment s's replicas, number `orphans_from` + s its orphans.
    A read of a child counts for its ancestors, so in one segment the first choice is a leaf.
    """

    touches_ancestors = True

    def __init__(self, table: Table, orphans_from: int) -> None:
        self._table = table
        self._orphans_from = orphans_from

    def candidates(self, segment: int) -> Iterator[I32]:
        for number in (self._orphans_from + segment, segment):
            skip = 0
            while (batch := self._table.list_tail(number, CANDIDATES, skip)).size:
                yield batch
                skip += batch.size

    def touched(self, rows: I32, sequences: U64) -> int:
        return self._table.touch_objects(rows, sequences)

    def spared(self, replicas: I32) -> None:
        self._table.list_touch(replicas)


POLICIES: dict[str, Callable[[Table, int], EvictionPolicy]] = {"lru": Lru}


def policy_named(name: str, table: Table, orphans_from: int) -> EvictionPolicy:
    if name not in POLICIES:
        raise BadConfig(f"eviction policy {name!r} is not known; there are {', '.join(POLICIES)}")
    return POLICIES[name](table, orphans_from)


class Victims:
    """Closures in the order they go, and what each frees on the segment that needs room."""

    def __init__(self) -> None:
        self.size = 0
        self.objects = 0
        # Per batch of candidates: rows, ends of closures, bytes and objects freed up to each.
        self._parts: list[tuple[I32, U32, U64, U64]] = []

    def extend(self, rows: I32, ends: U32, freed_bytes: U64, freed_objects: U64) -> None:
        if rows.size:
            base_bytes, base_objects = np.uint64(self.size), np.uint64(self.objects)
            part = (rows, ends, freed_bytes + base_bytes, freed_objects + base_objects)
            self._parts.append(part)
            self.size, self.objects = int(part[2][-1]), int(part[3][-1])

    def chosen(self) -> I32:
        return np.concatenate([np.zeros(0, np.int32), *(part[0] for part in self._parts)])

    def rows(self, size: int, objects: int) -> I32:
        """The rows of the leading closures that together free `size` bytes and `objects` slots."""
        taken = [np.zeros(0, np.int32)]
        need = (np.uint64(max(size, 0)), np.uint64(max(objects, 0)))
        if size > 0 or objects > 0:
            for rows, ends, freed_bytes, freed_objects in self._parts:
                enough = np.flatnonzero((freed_bytes >= need[0]) & (freed_objects >= need[1]))
                taken.append(rows[: int(ends[enough[0]])] if enough.size else rows)
                if enough.size:
                    break
        return np.concatenate(taken)


class Evictor:
    """Plans evictions in one segment; the plan changes nothing but the order of what was spared."""

    def __init__(self, table: Table, policy: EvictionPolicy) -> None:
        self._table = table
        self._policy = policy

    def plan(self, segment: int, size: int, objects: int) -> Victims:
        """Closures that free `size` bytes and `objects` slots on `segment`, or all that may go."""
        victims = Victims()
        spared: list[I32] = []
        for batch in self._policy.candidates(segment):
            if victims.size >= size and victims.objects >= objects:
                break
            rows, ends, freed_bytes, freed_objects, stay = self._table.collect_victims(
                batch,
                segment=segment,
                bytes=max(size - victims.size, 0),
                objects=max(objects - victims.objects, 0),
                kept_flags=KEPT,
                kept_state=RESERVED,
                chosen_flag=CHOSEN,
            )
            victims.extend(rows, ends, freed_bytes, freed_objects)
            if stay.size:
                spared.append(stay)
                if sum(one.size for one in spared) >= SPARED_MAX:
                    break
        self._table.flags[victims.chosen()] &= 0xFF ^ CHOSEN
        if spared:
            self._policy.spared(np.concatenate(spared))
        return victims
