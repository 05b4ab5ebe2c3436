"""What one eviction is for, and what it has found so far. Nothing here decides."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from moonpool.pool.catalog.base import I32, U32, U64
from moonpool.pool.catalog.segments import Segment
from moonpool.pool.tenancy.shares import Stage

NO_ROWS: I32 = np.zeros(0, np.int32)
NO_SIZES: U64 = np.zeros(0, np.uint64)


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
        return np.concatenate([NO_ROWS, *(part[0] for part in self._parts)])

    def rows(self, size: int, objects: int) -> I32:
        """The rows of the leading closures that together free `size` bytes and `objects` slots."""
        taken = [NO_ROWS]
        need = (np.uint64(max(size, 0)), np.uint64(max(objects, 0)))
        if size > 0 or objects > 0:
            for rows, ends, freed_bytes, freed_objects in self._parts:
                enough = np.flatnonzero((freed_bytes >= need[0]) & (freed_objects >= need[1]))
                taken.append(rows[: int(ends[enough[0]])] if enough.size else rows)
                if enough.size:
                    break
        return np.concatenate(taken)


@dataclass(slots=True)
class Need:
    """Room for `size` bytes and `objects` slots on `segment`, less what is found so far.

    `stages`: whose objects may go, in turn (empty: anybody's); `only` is the tenant whose turn it
    is, -1 for all. `coming`: the objects that the room is for, last of a chain first, with their
    `sizes` (empty: not known); orders that remember what left look them up there.
    """

    segment: Segment
    size: int
    objects: int
    coming: I32 = field(default_factory=lambda: NO_ROWS)
    sizes: U64 = field(default_factory=lambda: NO_SIZES)
    stages: tuple[Stage, ...] = ()
    only: int = -1
    found: Victims = field(default_factory=Victims)
    staying: set[tuple[int, int]] = field(default_factory=set)  # group and whose turn it was

    @property
    def met(self) -> bool:
        return self.found.size >= self.size and self.found.objects >= self.objects
