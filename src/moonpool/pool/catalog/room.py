"""Room by eviction: in a segment, or in the tables whose rows all segments share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from moonpool.pool.catalog.base import (
    COMMITTED,
    I32,
    PIN_HARD,
    PIN_KIND,
    SHELTERED,
    Retirement,
)
from moonpool.pool.catalog.distinct import distinct
from moonpool.pool.catalog.needs import Need
from moonpool.pool.catalog.reservations import PutRequest
from moonpool.pool.catalog.rows import Rows
from moonpool.pool.messages import MEMORY
from moonpool.pool.tenancy.shares import Stage


class Room:
    """Evicts for those who are admitted, and counts what went."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.evictions = 0
        self.evicted_objects = 0
        self.demoted_objects = 0  # lost their copy in memory, and have one below
        self.forgotten_objects = 0  # lost one below, and have another

    @contextmanager
    def sheltering(self, rows: I32, parents: I32) -> Iterator[None]:
        """Meanwhile a batch's own values and the ancestors of its keys are not its victims."""
        table = self._rows.table
        family = table.ancestors_order(np.concatenate([rows, parents[parents >= 0]]))
        table.flags[family] |= SHELTERED
        self._rows.evictor.sheltered = hash(family.tobytes())
        try:
            yield
        finally:
            table.flags[family] &= 0xFF ^ SHELTERED
            self._rows.evictor.sheltered = 0

    def evict(
        self, rows: I32, wall_ms: int, now: float, *, medium: str = MEMORY, whole: bool = False
    ) -> list[Retirement]:
        """Whole closures, children first, leave a medium. What has a copy on another one stays
        there, unless its parent goes, or `whole` is asked."""
        if rows.size == 0:
            return []
        self.evictions += 1
        retirements: list[Retirement] = []
        if self._rows.segments.tiered and not whole:
            stay, rows = self._rows.tiers.split(rows, medium)
            retirements = self._leave(stay, medium, wall_ms)
        self.evicted_objects += int((self._rows.table.state[rows] == COMMITTED).sum())
        return retirements + self._rows.drop(rows, "evict", wall_ms, now, closed=True)

    def _leave(self, rows: I32, medium: str, wall_ms: int) -> list[Retirement]:
        """These lose their copies on one medium only."""
        replicas = self._rows.tiers.copies(rows, medium)
        moved = distinct(self._rows.table.replica_object[replicas])
        if medium == MEMORY:
            self.demoted_objects += moved.size
        else:
            self.forgotten_objects += moved.size
        kind = "demote" if medium == MEMORY else "forget"
        self._rows.record(kind, moved, wall_ms, medium)
        return self._rows.take_replicas(replicas)

    def relieve(self, wall_ms: int, now: float) -> list[Retirement]:
        """Empty segments beyond the high watermark to the low one."""
        config = self._rows.config
        retirements: list[Retirement] = []
        for segment in self._rows.segments:
            used = segment.capacity_bytes - segment.free_bytes
            if (
                segment.open
                and not segment.below
                and used > config.high_watermark * segment.capacity_bytes
            ):
                size = used - int(config.low_watermark * segment.capacity_bytes)
                stages = self._rows.shares.relief() if self._rows.shares is not None else ()
                plan = self._rows.evictor.plan(Need(segment, size, 0, stages=stages))
                retirements += self.evict(plan.chosen(), wall_ms, now)
        return retirements

    def stages(
        self, tenant: int, size: int, objects: int, lacking: tuple[int, int]
    ) -> tuple[Stage, ...]:
        """Whose objects may go for so much of this tenant's; empty: anybody's."""
        shares = self._rows.shares
        if shares is None:
            return ()
        shares.capacity_is(self._rows.segments.capacity_bytes)
        return shares.stages(tenant, size, objects, by_objects=lacking[0] <= 0 < lacking[1])

    def make_own(self, put: PutRequest, wall_ms: int, now: float) -> list[Retirement]:
        """A tenant that may not borrow makes room among its own objects, on all segments. Bytes are
        those in memory; an object counts wherever it lies, so for its place it goes everywhere."""
        shares, table = self._rows.shares, self._rows.table
        assert shares is not None
        shares.capacity_is(self._rows.segments.capacity_bytes)
        left = shares.left(put.tenant, pinned=put.pin & PIN_KIND == PIN_HARD)
        rows = table.find(put.blob, put.ends)
        fresh = (rows < 0) | (table.state[rows] != COMMITTED)
        wanted = int(put.sizes[fresh].sum()) * put.replicas if not put.replace else 0
        if put.replace:
            fresh, wanted = np.ones(rows.size, np.bool_), int(put.sizes.sum()) * put.replicas
        short, places = wanted - left.nbytes, int(fresh.sum()) - left.objects
        retirements: list[Retirement] = []
        if max(short, places) <= 0 or left.nbytes + shares.usage.of(put.tenant).used_bytes < wanted:
            return retirements  # there is room, or there never will be
        parents = table.find(put.outside_blob, put.outside_ends)
        whole = places > 0
        tiers_first = sorted(self._rows.segments, key=lambda one: not one.below)
        with self.sheltering(rows[rows >= 0], parents):
            for segment in tiers_first:
                if max(short, places) <= 0:
                    break
                if segment.below and places <= 0:
                    continue
                size = 0 if segment.below else short
                need = Need(segment, size, places, stages=(Stage(put.tenant),))
                plan = self._rows.evictor.plan(need)
                short, places = short - (plan.size if size else 0), places - plan.objects
                retirements += self.evict(plan.chosen(), wall_ms, now, whole=whole)
        self._rows.prune(distinct(rows[rows >= 0]))
        return retirements

    def short_of_rows(self, put: PutRequest) -> int:
        """How many objects of this kind find no rows, of objects or replicas, were all new."""
        table, n = self._rows.table, put.ends.size
        promised = self._rows.segments.changes.promised_objects
        replicas = table.replica_count + promised + n * put.replicas
        lacking = -((table.replicas_max - replicas) // put.replicas)
        return max(len(table) + n - table.rows_max, lacking)

    def make_rows(self, put: PutRequest, wall_ms: int, now: float) -> list[Retirement]:
        """A full table is a full pool: the fullest segment's first choices make room."""
        table = self._rows.table
        known = table.find(put.blob, put.ends)
        parents = table.find(put.outside_blob, put.outside_ends)
        retirements: list[Retirement] = []
        with self.sheltering(known[known >= 0], parents):
            while (short := self.short_of_rows(put)) > 0:
                fullest = max(self._rows.segments, key=lambda one: one.objects, default=None)
                if fullest is None:
                    break
                stages = self.stages(put.tenant, 0, short, (0, short))
                plan = self._rows.evictor.plan(Need(fullest, 0, short, stages=stages))
                if plan.objects == 0:
                    break
                victims = plan.rows(0, min(short, plan.objects))
                retirements += self.evict(victims, wall_ms, now, whole=True)
        # Sheltered rows that lost their last child have waited for this.
        self._rows.prune(distinct(known[known >= 0]))
        return retirements
