"""Which objects go when a segment needs room: policies give an order, `Evictor` a decision.

A victim takes its descendants along, on whatever segment, children first. A pinned, leased or
in-flight member keeps the whole closure. Nothing is chosen beyond what is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from moonpool._core import Table
from moonpool.core.errors import BadConfig
from moonpool.pool.catalog.base import (
    CHOSEN,
    I32,
    KEPT,
    RESERVED,
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


@dataclass(slots=True)
class Victims:
    """Closures in the order they go. `freed_*` count, on the segment, up to each closure's end."""

    closures: list[I32] = field(default_factory=list)
    freed_bytes: list[int] = field(default_factory=list)
    freed_objects: list[int] = field(default_factory=list)

    def rows(self, size: int, objects: int) -> I32:
        """The rows of the leading closures that together free `size` bytes and `objects` slots."""
        if size <= 0 and objects <= 0:
            return np.zeros(0, np.int32)
        for i, (freed, slots) in enumerate(zip(self.freed_bytes, self.freed_objects, strict=True)):
            if freed >= size and slots >= objects:
                return np.concatenate(self.closures[: i + 1])
        raise AssertionError(f"{size} bytes and {objects} objects asked of {self}")

    @property
    def size(self) -> int:
        return self.freed_bytes[-1] if self.freed_bytes else 0

    @property
    def objects(self) -> int:
        return self.freed_objects[-1] if self.freed_objects else 0


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
            done = self._collect(batch, segment, size, objects, victims, spared)
            if done or len(spared) > SPARED_MAX:
                break
        for closure in victims.closures:
            self._table.flags[closure] &= 0xFF ^ CHOSEN
        if spared:
            self._policy.spared(np.concatenate(spared))
        return victims

    def _collect(
        self,
        batch: I32,
        segment: int,
        size: int,
        objects: int,
        victims: Victims,
        spared: list[I32],
    ) -> bool:
        table = self._table
        for replica in batch:
            if victims.size >= size and victims.objects >= objects:
                return True
            row = table.replica_object[replica]
            if table.flags[row] & CHOSEN:
                continue
            closure = table.descendants(np.array([row], np.int32))
            flags = table.flags[closure]
            if (flags & KEPT).any() or (table.state[closure] == RESERVED).any():
                spared.append(np.array([replica], np.int32))
                continue
            closure = closure[(flags & CHOSEN) == 0]
            table.flags[closure] |= CHOSEN
            counts, replicas = table.replicas_of(closure)
            here = table.replica_segment[replicas] == segment
            freed = np.repeat(table.size[closure], counts)[here]
            victims.closures.append(closure)
            victims.freed_bytes.append(victims.size + int(freed.sum()))
            victims.freed_objects.append(victims.objects + int(here.sum()))
        return victims.size >= size and victims.objects >= objects
