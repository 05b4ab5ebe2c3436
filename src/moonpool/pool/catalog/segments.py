"""The segments a master knows, and the sums that capacity is counted in.

    capacity_bytes >= committed_bytes + promised_bytes, at every moment

Retired bytes are not counted: their memory returns by the agent's drain, inside its headroom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from moonpool.pool.catalog.base import I32, U16, U32, U64, Bool, SegmentFacts
from moonpool.pool.catalog.distinct import distinct
from moonpool.pool.messages import MEMORY


@dataclass(slots=True)
class Changes:
    """How often something came, left or was given up, on all segments, and what is promised."""

    count: int = 0
    promised_objects: int = 0


BREAKER_FAILURES = 3  # calls of writers that failed at it
BREAKER_S = 10.0
BREAKER_REST_S = 5.0
LATE_MAX = 4096  # late promises told apart on one segment


class Late(NamedTuple):
    """Promises of reservations that ended while their writer may still hold the memory."""

    until: float  # monotonic; the agent's next report after `since` frees it earlier
    since: float
    size: int
    objects: int


@dataclass(slots=True)
class Breaker:
    """Writers who could not use a segment: with enough of them in a while it gets a rest."""

    failures: list[float] = field(default_factory=list)  # moments, of the last BREAKER_S
    until: float = 0.0

    @property
    def tripped(self) -> bool:
        return self.until > 0

    def failed(self, now: float) -> None:
        self.failures = [one for one in self.failures if one > now - BREAKER_S] + [now]
        if len(self.failures) >= BREAKER_FAILURES:
            self.failures = []
            self.until = now + BREAKER_REST_S

    def settle(self, now: float) -> None:
        if self.until and self.until <= now:
            self.until = 0.0


@dataclass(slots=True)
class Segment:
    """One segment. `alive`: its node is heard. `open`: it takes new objects."""

    id: int
    incarnation: bytes
    node: str
    host_id: str
    capacity_bytes: int
    slots: int
    by_slot: I32  # replica row in each slot, -1 none
    medium: str = MEMORY  # what lies below memory takes copies only, by the master's order
    serves: int = -1  # the one tenant that it serves, -1: all
    changes: Changes = field(default_factory=Changes)
    barren: tuple[int, ...] | None = None  # when a search for room found nothing here
    alive: bool = True
    gone: bool = False  # given back by its node: nothing lies there, and nothing will
    open: bool = False
    known: bool = False  # its inventory was read whole once
    label: str = ""  # of its failure domain; empty: the host is that
    draining: bool = False  # its objects go elsewhere, and no new ones come
    warmth: float = 1.0
    fresh_since: float | None = None  # it came empty, and is filled slowly
    breaker: Breaker = field(default_factory=Breaker)
    committed_bytes: int = 0
    promised_bytes: int = 0
    objects: int = 0
    promised_objects: int = 0
    late: deque[Late] = field(default_factory=deque)
    told: SegmentFacts | None = None  # what `facts` said, until something changes

    @property
    def below(self) -> bool:
        """A tier below memory."""
        return self.medium != MEMORY

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.committed_bytes - self.promised_bytes

    @property
    def free_slots(self) -> int:
        return self.slots - self.objects - self.promised_objects

    def facts(self) -> SegmentFacts:
        """Asked of every segment for every call of a writer: it is made once for a change."""
        if self.told is None:
            self.told = self._facts()
        return self.told

    def _facts(self) -> SegmentFacts:
        capacity = self.capacity_bytes
        return SegmentFacts(
            self.id,
            self.node,
            self.host_id,
            capacity,
            capacity - self.committed_bytes - self.promised_bytes,
            self.slots - self.objects - self.promised_objects,
            self.label or self.host_id,
            self.warmth,
        )

    @property
    def domain(self) -> str:
        """What fails together with it."""
        return self.label or self.host_id

    def lies_at(self, node: str, host_id: str, label: str, serves: int) -> None:
        self.told = None
        self.node, self.host_id, self.label, self.serves = node, host_id, label, serves

    def promise(self, size: int, objects: int) -> None:
        self.told = None
        self.promised_bytes += size
        self.promised_objects += objects
        self.changes.promised_objects += objects

    def release(self, size: int, objects: int) -> None:
        """A promise ends: kept, moved elsewhere or aborted by its writer."""
        self.told = None
        self.promised_bytes -= size
        self.promised_objects -= objects
        self.changes.promised_objects -= objects
        self.changes.count += 1
        assert self.promised_bytes >= 0 and self.promised_objects >= 0, self

    def release_late(self, late: Late) -> None:
        """A promise ended, but its room returns later. Beyond LATE_MAX the newest takes it in:
        their room returns together, never too early."""
        if len(self.late) >= LATE_MAX:
            last = self.late.pop()
            late = Late(
                max(last.until, late.until),
                max(last.since, late.since),
                last.size + late.size,
                last.objects + late.objects,
            )
        self.late.append(late)

    def start_slowly(self, now: float) -> None:
        self.told = None
        self.fresh_since, self.warmth = now, 0.1

    def warm(self, now: float, slow_start_s: float) -> None:
        """A fresh segment is as warm as the part of its slow start that is over."""
        if self.fresh_since is not None:
            self.told = None
            self.warmth = min(1.0, max(0.1, (now - self.fresh_since) / slow_start_s))
            if self.warmth >= 1.0:
                self.fresh_since = None

    def settle(self, now: float, heard: float) -> None:
        """Give late promises back: those older than the report of `heard`, or overdue at `now`."""
        while self.late and (self.late[0].since < heard or self.late[0].until <= now):
            gone = self.late.popleft()
            self.release(gone.size, gone.objects)

    def kept(self, size: int, objects: int) -> None:
        """A promise was kept to the byte; the slots are told already."""
        self.release(size, objects)
        self.committed_bytes += size
        self.objects += objects

    def add(self, replicas: I32, slots: U32, size: int) -> None:
        """Committed replicas of `size` bytes in all."""
        self.told = None
        self.changes.count += 1
        self.by_slot[slots] = replicas
        self.committed_bytes += size
        self.objects += len(replicas)

    def remove(self, replicas: I32, slots: U32, size: int) -> None:
        self.changes.count += 1
        self.told = None
        same = self.by_slot[slots] == replicas
        self.by_slot[slots[same]] = -1
        self.committed_bytes -= size
        self.objects -= len(replicas)
        assert self.committed_bytes >= 0 and self.objects >= 0, self


class Segments:
    """All segments by id and by incarnation; ids are never reused."""

    def __init__(self, segments_max: int) -> None:
        self._segments: list[Segment] = []
        self._by_incarnation: dict[bytes, Segment] = {}
        self._segments_max = segments_max
        self.changes = Changes()
        self.alive = np.zeros(segments_max, np.bool_)
        self.slots = np.zeros(segments_max, np.uint32)
        self.media = [MEMORY]  # by code
        self.medium = np.zeros(segments_max, np.uint8)  # code of each segment's, 0: memory
        self.tiered = False  # there is such a segment
        self.all_alive = True

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, segment: int) -> Segment:
        return self._segments[segment]

    def find(self, incarnation: bytes) -> Segment | None:
        return self._by_incarnation.get(incarnation)

    @property
    def full(self) -> bool:
        return len(self._segments) >= self._segments_max

    def add(
        self,
        incarnation: bytes,
        node: str,
        host_id: str,
        capacity_bytes: int,
        slots: int,
        medium: str = MEMORY,
    ) -> Segment:
        assert not self.full and incarnation not in self._by_incarnation, incarnation
        segment = Segment(
            id=len(self._segments),
            incarnation=incarnation,
            node=node,
            host_id=host_id,
            capacity_bytes=capacity_bytes,
            slots=slots,
            by_slot=np.full(slots, -1, np.int32),
            changes=self.changes,
            medium=medium,
        )
        self._segments.append(segment)
        self._by_incarnation[incarnation] = segment
        self.slots[segment.id] = slots
        if medium not in self.media:
            self.media.append(medium)
        self.medium[segment.id] = self.media.index(medium)
        self.tiered = self.tiered or segment.below
        self.set_alive(segment, True)
        return segment

    def in_memory(self, numbers: U16) -> Bool:
        """Which of these are memory, no tier below it."""
        below = [one.id for one in self._segments if one.below] if self.tiered else []
        memory: Bool = ~np.isin(numbers, below)
        return memory

    def set_alive(self, segment: Segment, alive: bool) -> None:
        segment.alive = alive
        segment.open = segment.open and alive
        here = alive or segment.gone  # nothing lies there that could be out of reach
        self.alive[segment.id] = here
        self.all_alive = here and bool(self.alive[: len(self._segments)].all())

    def facts(self, tenant: int = 0) -> list[SegmentFacts]:
        """Of the segments that take new objects of this tenant; of those at rest only if there are
        no others."""
        # In one go, without a call for each: of a thousand segments this is what a call costs.
        well = [
            one.told or one.facts()
            for one in self._segments
            if one.open
            and not one.draining
            and one.medium == MEMORY
            and (one.serves == -1 or one.serves == tenant)
            and not one.breaker.until
        ]
        return well or [
            one.facts()
            for one in self._segments
            if one.open and not one.draining and not one.below and one.serves in (-1, tenant)
        ]

    @property
    def capacity_bytes(self) -> int:
        """Of memory whose node is heard."""
        return sum(one.capacity_bytes for one in self._segments if one.alive and not one.below)

    def groups(self, segments: U16) -> Iterator[tuple[Segment, slice | np.ndarray]]:
        """Each segment named, with where it is named."""
        if segments.size == 0:
            return
        first = int(segments[0])
        if (segments == first).all():
            yield self._segments[first], slice(None)
            return
        for number in distinct(segments):
            yield self._segments[int(number)], np.flatnonzero(segments == number)


def total(sizes: U64) -> int:
    return int(sizes.sum())
