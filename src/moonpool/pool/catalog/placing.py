"""Where the keys of one admitted batch go: first where there is room, then by eviction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from moonpool.pool.catalog.base import I32, U16, Placement, Retirement, SegmentFacts
from moonpool.pool.catalog.needs import NO_ROWS, Need
from moonpool.pool.catalog.reservations import PutRequest
from moonpool.pool.catalog.room import Room
from moonpool.pool.catalog.rows import Rows
from moonpool.pool.catalog.segments import Segment


class Placing:
    """One batch on its way to its segments: first where there is room, then by eviction."""

    def __init__(
        self,
        rows: Rows,
        placement: Placement,
        room: Room,
        put: PutRequest,
        facts: Sequence[SegmentFacts],
        targets: U16,
        batch: I32,
        wanted: I32,
        draw: Callable[[], float],
    ) -> None:
        self._rows = rows
        self._placement = placement
        self._room = room
        self._put = put
        self._facts = list(facts)
        self._targets = targets
        self._batch = batch  # rows of all its keys
        self._wanted = wanted  # places in the batch, in order
        self._sizes = put.sizes[wanted]
        self._next = 0
        self._failed: list[int] = []  # places given up
        self._draw = draw
        self.held = False  # there was no room, and nothing could go

    def left(self) -> bool:
        return self._next < self._wanted.size

    def unplaced(self) -> list[int]:
        rest: list[int] = self._wanted[self._next :].tolist()
        return self._failed + rest

    def _choose(self, size: int, evicting: bool) -> list[int]:
        put = self._put
        return self._placement.targets(
            self._facts,
            size,
            put.replicas,
            put.host_id,
            put.prefer_segment,
            self._draw(),
            evicting,
        )

    def _fitting(self, chosen: list[int], extra: dict[int, tuple[int, int]]) -> int:
        """How many of the keys left, in order, all of the chosen segments take."""
        run = np.cumsum(self._sizes[self._next :])
        count = run.size
        for number in chosen:
            segment = self._rows.segments[number]
            more_bytes, more_slots = extra.get(number, (0, 0))
            room = max(segment.free_bytes + more_bytes, 0)
            fits = int(np.searchsorted(run, np.uint64(room), side="right"))
            count = min(count, fits, max(segment.free_slots + more_slots, 0))
        return count

    def _assign(self, chosen: list[int], count: int) -> None:
        places = self._wanted[self._next : self._next + count]
        size = int(self._sizes[self._next : self._next + count].sum())
        for column, number in enumerate(chosen):
            self._targets[places, column] = number
            self._rows.segments[number].promise(size, count)
        self._next += count
        if self.left():
            self._facts = self._rows.segments.facts(self._put.tenant)

    def with_room(self) -> None:
        """Assign leading keys while segments have room for them."""
        while self.left():
            chosen = self._choose(int(self._sizes[self._next]), evicting=False)
            if len(chosen) < self._put.min_replicas or len(chosen) < self._reachable_copies():
                return
            self._assign(chosen, max(self._fitting(chosen, {}), 1))

    def _reachable_copies(self) -> int:
        """Copies wanted, as far as there are nodes for them."""
        if self._put.replicas == 1:
            return min(1, len(self._facts))
        return min(self._put.replicas, len({one.node for one in self._facts}))

    def with_eviction(self, now: float, wall_ms: int) -> list[Retirement]:
        """Assign the rest where eviction makes room; keys that get none are passed over, in a
        chain with all after them."""
        retirements: list[Retirement] = []
        hopeless = False
        evictor = self._rows.evictor
        searches = evictor.futile + evictor.futile_skipped
        while self.left():
            before = self._next
            if not hopeless:
                retirements += self._evict_for_some(now, wall_ms)
            if self._next == before:
                self.with_room()
            if self._next == before and not self._fewer_copies():
                if self._put.chain or self._has_kin():
                    break
                # Nothing may go any more: smaller keys may still find room as it is.
                hopeless = True
                self._failed.append(int(self._wanted[self._next]))
                self._next += 1
        futile = evictor.futile + evictor.futile_skipped > searches
        self.held = futile and not retirements
        return retirements

    def _has_kin(self) -> bool:
        return bool((self._put.parent_of >= 0).any())

    def _fewer_copies(self) -> bool:
        """Room for min_replicas copies is enough when there is none for all."""
        chosen = self._choose(int(self._sizes[self._next]), evicting=False)
        if len(chosen) < self._put.min_replicas:
            return False
        self._assign(chosen, 1)
        return True

    def _evict_for_some(self, now: float, wall_ms: int) -> list[Retirement]:
        """Try segment sets until one takes at least the next key; evict just what that needs."""
        tried: set[int] = set()
        size = int(self._sizes[self._next])
        retirements: list[Retirement] | None = None
        while retirements is None:
            chosen = self._choose(size, evicting=True)
            if len(chosen) < self._put.min_replicas:
                break
            retirements = self._evict_in(chosen, now, wall_ms)
            tried.update(chosen)
            self._facts = [one for one in self._facts if one.segment not in tried]
        if self.left():
            self._facts = self._rows.segments.facts(self._put.tenant)
        return retirements or []

    def _evict_in(self, chosen: list[int], now: float, wall_ms: int) -> list[Retirement] | None:
        """Evict on each of the chosen for as many of the keys left as that makes room for."""
        segments = [self._rows.segments[number] for number in chosen]
        # At best all that is there goes.
        at_best = {one.id: (one.committed_bytes, one.objects) for one in segments}
        hoped = self._fitting(chosen, at_best)
        if hoped == 0:
            return None
        if len(chosen) == 1:
            return self._evict_in_one(segments[0], hoped, now, wall_ms)
        count = hoped
        if not self._rows.order.binding:
            rooms = {}
            for segment in segments:
                plan = self._rows.evictor.plan(self._need(segment, hoped))
                rooms[segment.id] = (plan.size, plan.objects)
            count = self._fitting(chosen, rooms)
            if count == 0:
                return None
        retirements: list[Retirement] = []
        for segment in segments:
            # What went for the segment before may have freed room here too.
            plan = self._rows.evictor.plan(self._need(segment, count))
            retirements += self._room.evict(plan.chosen(), wall_ms, now)
        wanted, count = count, min(count, self._fitting(chosen, {}))
        self._rows.order.given_up(self._coming(wanted)[: wanted - count])
        if count:
            self._assign(chosen, count)
        return retirements

    def _evict_in_one(
        self, segment: Segment, hoped: int, now: float, wall_ms: int
    ) -> list[Retirement] | None:
        evictor = self._rows.evictor
        plan = evictor.plan(self._need(segment, hoped))
        count = self._fitting([segment.id], {segment.id: (plan.size, plan.objects)})
        if count >= hoped:
            count, used = hoped, plan.chosen()
        else:
            need = self._need(segment, count)
            used = plan.rows(need.size, need.objects) if count else NO_ROWS
            evictor.put_back(segment.id, plan, used)
            self._rows.order.given_up(self._coming(hoped)[: hoped - count])
        if count == 0:
            return None
        retirements = self._room.evict(used, wall_ms, now)
        self._assign([segment.id], count)
        return retirements

    def _need(self, segment: Segment, count: int) -> Need:
        """Room for the next `count` keys on `segment`."""
        sizes = self._sizes[self._next : self._next + count]
        total = int(sizes.sum())
        lacking = (total - segment.free_bytes, count - segment.free_slots)
        stages = self._room.stages(self._put.tenant, total, count, lacking)
        return Need(segment, *lacking, self._coming(count), sizes[::-1], stages)

    def _coming(self, count: int) -> I32:
        """Rows of the next `count` keys, the last one first: as they will come."""
        return self._batch[self._wanted[self._next : self._next + count]][::-1]
