"""Offload and promotion: the master has copies made on tiers below memory, and brought back.

    write   every put is copied down once it is committed
    evict   what a full segment would give up next is copied down ahead of that
A tier never makes a put wait: its orders are few, bounded, and counted apart from repairs. What
comes back evicts only what is read less and has a copy below itself.
"""

from __future__ import annotations

import numpy as np

from moonpool.core.sections import MasterConfig
from moonpool.pool.catalog.base import COMMITTED, I32, IN_FLIGHT, ORPHAN, U8, Bool, SegmentFacts
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.catalog.copying import COPIES_PER_ORDER, CopyOrder
from moonpool.pool.catalog.distinct import distinct
from moonpool.pool.catalog.needs import Need
from moonpool.pool.catalog.segments import Segment
from moonpool.pool.catalog.standing import IN_TURN
from moonpool.pool.master_copies import ORDER_BYTES_MAX, Copies
from moonpool.pool.master_removals import Removals
from moonpool.pool.messages import MEMORY
from moonpool.pool.tenancy.shares import Stage

STEP_S = 0.05
OFFLOADS_MAX = 2  # orders open at a time, for each tier
PROMOTIONS_MAX = 2  # in all
LOOK_MAX = 2048  # replicas looked at in one step and segment
AHEAD = 16  # so many parts of a segment are kept ready to go
SEGMENTS_A_STEP = 32
IDLE_S = 0.1
REST_S = 1.0  # a tier that could not keep what it was sent is left alone


class Tiering:
    """Says what lies on which tier; `Copies` has it done."""

    def __init__(
        self, config: MasterConfig, catalog: Catalog, copies: Copies, removals: Removals
    ) -> None:
        self._offload = config.offload
        self._watermark = config.offload_watermark
        self._catalog = catalog
        self._copies = copies
        self._removals = removals
        self._resting: dict[int, float] = {}  # tiers by segment, until when
        self._look_after: dict[int, float] = {}  # memory segments
        self._next_step = 0.0
        self.offloaded = 0
        self.offload_failed = 0
        self.promoted = 0
        self.promotions_refused = 0
        books = catalog.rows.tiers
        books.promote_reads, books.window_s = config.promote_reads, config.promote_window_s
        books.write_through = config.offload == "write"
        copies.ended.append(self.ended)

    def next_deadline(self) -> float | None:
        return self._next_step if self._catalog.segments.tiered else None

    def tick(self, now: float, wall_ms: int) -> None:
        if not self._catalog.segments.tiered or now < self._next_step:
            return
        self._next_step = now + STEP_S
        if self._offload != "off":
            self._from_queue(now, wall_ms)
            for segment in self._in_turn(now):
                self._ahead(segment, now, wall_ms)
        self._promote(now, wall_ms)

    # Down.

    def _from_queue(self, now: float, wall_ms: int) -> None:
        fresh = self._catalog.rows.tiers.fresh
        if not fresh or not self._ready(now):
            return
        table = self._catalog.table
        some = [fresh.popleft() for _ in range(min(len(fresh), COPIES_PER_ORDER))]
        rows = np.array([row for row, _ in some], np.int32)
        sequences = np.array([sequence for _, sequence in some], np.uint64)
        rows = rows[table.seq[rows] == sequences]
        later = set(self._lacking_busy(rows, now).tolist())
        left = set(self._down(rows, now, wall_ms).tolist())
        fresh.extendleft(reversed([one for one in some if one[0] in left]))
        # Behind all others: they wait for a slow tier, and nobody waits for them.
        self._catalog.rows.tiers.ask_again([one for one in some if one[0] in later - left])

    def _in_turn(self, now: float) -> list[Segment]:
        """Some memory segments; those with nothing to copy down are looked at less often."""
        memory = [
            one
            for one in self._catalog.segments
            if not one.below and one.alive and self._look_after.get(one.id, 0.0) <= now
        ]
        memory.sort(key=lambda one: self._look_after.get(one.id, 0.0))
        return memory[:SEGMENTS_A_STEP]

    def _ahead(self, segment: Segment, now: float, wall_ms: int) -> None:
        """The coldest part of a segment that is nearly full has copies below."""
        used = segment.capacity_bytes - segment.free_bytes
        if used < self._watermark * segment.capacity_bytes or not self._ready(now):
            return
        table = self._catalog.table
        margin, looked = segment.capacity_bytes // AHEAD, 0
        segments_max = self._catalog.config.segments_max
        coldest: list[I32] = []
        for kind in IN_TURN[1:]:  # orphans are worth nothing
            number, skip = kind * segments_max + segment.id, 0
            while margin > 0 and looked < LOOK_MAX:
                batch = table.list_tail(number, 256, skip)
                if not batch.size:
                    break
                rows = table.replica_object[batch]
                before = np.cumsum(table.size[rows]) - table.size[rows]
                coldest.append(rows[before < margin])
                margin -= int(table.size[rows].sum())
                skip += batch.size
                looked += batch.size
        orders = len(self._catalog.copying)
        if coldest:
            self._down(np.concatenate(coldest), now, wall_ms)
        if len(self._catalog.copying) == orders:
            self._look_after[segment.id] = now + IDLE_S

    def _ready(self, now: float) -> list[Segment]:
        """Tiers that take another order."""
        open_orders = [order.target.id for order in self._catalog.copying]
        return [
            one
            for one in self._there()
            if self._resting.get(one.id, 0.0) <= now and open_orders.count(one.id) < OFFLOADS_MAX
        ]

    def _there(self) -> list[Segment]:
        """Tiers that take orders, at present or when they are done with some and have rested."""
        return [
            one for one in self._catalog.segments if one.below and one.open and not one.draining
        ]

    def _lacking_busy(self, rows: I32, now: float) -> I32:
        """Those of which a tier is to have a copy that takes no further order at present, and none
        of its kind that may have them does."""
        table, books = self._catalog.table, self._catalog.rows.tiers
        rows = rows[table.state[rows] == COMMITTED]
        ready, there = self._ready(now), self._there()
        later = np.zeros(rows.size, np.bool_)
        for medium in {one.medium for one in there} if rows.size else ():
            takes = self._takes(rows, [one for one in ready if one.medium == medium])
            would = self._takes(rows, [one for one in there if one.medium == medium])
            later |= would & ~takes & ~books.on(rows, medium)
        return rows[later]

    def _takes(self, rows: I32, tiers: list[Segment]) -> Bool:
        """Which of these have a tenant that one of these tiers serves."""
        serves = [one.serves for one in tiers]
        if -1 in serves:
            return np.ones(rows.size, np.bool_)
        return np.isin(self._catalog.table.tenant[rows].astype(np.int64), serves)

    def _down(self, rows: I32, now: float, wall_ms: int) -> I32:
        """Orders for as many of these as may go now; those whose turn has not come."""
        table, catalog = self._catalog.table, self._catalog
        good = (table.state[rows] == COMMITTED) & ((table.flags[rows] & (IN_FLIGHT | ORPHAN)) == 0)
        rows = rows[good]
        if rows.size:
            books = catalog.rows.tiers
            rows = rows[books.in_memory(rows)]
        ready = self._ready(now)
        waiting = [rows[:0]]
        for medium in {one.medium for one in ready}:
            lacking = rows[~catalog.rows.tiers.on(rows, medium)] if rows.size else rows
            tiers = [one for one in ready if one.medium == medium]
            waiting.append(self._down_to(tiers, lacking, now, wall_ms))
        return distinct(np.concatenate(waiting))

    def _down_to(self, tiers: list[Segment], rows: I32, now: float, wall_ms: int) -> I32:
        catalog, table = self._catalog, self._catalog.table
        groups: dict[tuple[int, int], list[int]] = {}
        sizes: dict[tuple[int, int], int] = {}
        waiting = []
        for row in rows.tolist():
            source = catalog.copying.source_of(row)
            if source is None or source.below:
                continue
            allowed = (-1, int(table.tenant[row]))
            mine = [one for one in tiers if one.serves in allowed]
            if not mine:
                continue
            tier = min(mine, key=lambda one: _distance(one, source))
            size = int(table.size[row])
            version = int(table.term[row]), int(table.seq[row])
            if size > tier.capacity_bytes or catalog.copying.expects(tier.id, version):
                continue
            pair = (source.id, tier.id)
            full = pair in groups and (
                sizes[pair] + size > ORDER_BYTES_MAX or len(groups[pair]) >= COPIES_PER_ORDER
            )
            if full:
                waiting.append(row)
                continue
            groups.setdefault(pair, []).append(row)
            sizes[pair] = sizes.get(pair, 0) + size
        for (number, tier_id), some in groups.items():
            tier = catalog.segments[tier_id]
            fit = self._make_room(tier, np.array(some, np.int32), now, wall_ms)
            if fit.size:
                self._copies.order(number, tier_id, fit, False, now)
        return np.array(waiting, np.int32)

    def _make_room(self, tier: Segment, rows: I32, now: float, wall_ms: int) -> I32:
        """The leading ones of these that the tier takes, after its coldest have gone."""
        table = self._catalog.table
        if table.replica_count + rows.size >= table.replicas_max:
            return rows[:0]
        size = int(table.size[rows].sum())
        need = Need(tier, size - tier.free_bytes, int(rows.size) - tier.free_slots)
        if not need.met:
            plan = self._catalog.rows.evictor.plan(need)
            self._evict(plan.chosen(), now, wall_ms, tier.medium)
        fits = np.cumsum(table.size[rows]) <= tier.free_bytes
        fits &= np.arange(1, rows.size + 1) <= tier.free_slots
        still = fits & (table.state[rows] == COMMITTED)
        kept: I32 = rows[still]
        return kept

    def _evict(self, rows: I32, now: float, wall_ms: int, medium: str) -> None:
        before = self._catalog.events.next_sequence
        retirements = self._catalog.room.evict(rows, wall_ms, now, medium=medium)
        self._removals.follow(retirements, self._catalog.events.keys_since(before))

    # Back.

    def _promote(self, now: float, wall_ms: int) -> None:
        catalog = self._catalog
        books = catalog.rows.tiers
        opened = sum(one.source.below and not one.target.below for one in catalog.copying)
        if not books.wanted or opened >= PROMOTIONS_MAX:
            return
        rows = books.take_wanted()
        rows = rows[~books.in_memory(rows) & books.below(rows)]
        rows = rows[~catalog.copying.open(rows)] if rows.size else rows
        groups: dict[tuple[int, int, int], list[int]] = {}  # source, target, tenant
        homes: dict[int, list[SegmentFacts]] = {}
        for row in rows.tolist():
            source, tenant = catalog.copying.source_of(row), int(catalog.table.tenant[row])
            assert source is not None, row
            if tenant not in homes:
                homes[tenant] = catalog.facts(tenant)
            target = self._home(homes[tenant], source, int(catalog.table.size[row]))
            if target is not None:
                groups.setdefault((source.id, target.id, tenant), []).append(row)
        for (number, target_id, tenant), mine in groups.items():
            opened += 1
            if opened > PROMOTIONS_MAX:
                books.wanted.update((row, int(catalog.table.seq[row])) for row in mine)
                continue
            fit = self._cooler_than(catalog.segments[target_id], mine, tenant, now, wall_ms)
            if fit.size:
                self._copies.order(number, target_id, fit, False, now)

    def _home(self, homes: list[SegmentFacts], source: Segment, size: int) -> Segment | None:
        """Memory of the same node, or that with most room."""
        facts = [one for one in homes if one.capacity_bytes >= size]
        best = max(facts, key=lambda one: (one.node == source.node, one.free_bytes), default=None)
        return None if best is None else self._catalog.segments[best.segment]

    def _cooler_than(
        self, target: Segment, mine: list[int], tenant: int, now: float, wall_ms: int
    ) -> I32:
        """The hottest of these, all of one tenant, for which there is room, or that of others read
        less which may go for this tenant."""
        books, table = self._catalog.rows.tiers, self._catalog.table
        rows = np.array(mine, np.int32)
        rows = rows[np.argsort(-books.heat(rows), kind="stable")][:COPIES_PER_ORDER]
        rows = rows[np.cumsum(table.size[rows]) <= ORDER_BYTES_MAX] if rows.size > 1 else rows
        coldest = int(books.heat(rows[-1:])[0])
        size = int(table.size[rows].sum())
        need = self._need(target, size, int(rows.size), tenant)
        if not need.met:
            evictor = self._catalog.rows.evictor
            plan = evictor.plan(need)
            chosen = plan.chosen()
            cooler = plan.size >= need.size and plan.objects >= need.objects
            cooler = cooler and bool((books.heat(chosen) < coldest).all())
            cooler = cooler and not np.isin(rows, chosen).any()
            cooler = cooler and books.split(chosen, MEMORY)[1].size == 0
            if not cooler:
                evictor.put_back(target.id, plan, chosen[:0])
                self.promotions_refused += rows.size
                return rows[:0]
            self._evict(chosen, now, wall_ms, MEMORY)
        return rows

    def _need(self, target: Segment, size: int, objects: int, tenant: int) -> Need:
        """What has to go for them: as a put of this tenant would have it."""
        room, shares = self._catalog.room, self._catalog.rows.shares
        need = Need(target, size - target.free_bytes, objects - target.free_slots)
        if shares is None:
            return need
        need.stages = room.stages(tenant, size, objects, (need.size, need.objects))
        beyond = size + self._coming(tenant) - shares.left(tenant).nbytes
        if beyond > 0:  # it may not borrow: its own make room, also where memory is idle
            need.size, need.stages = max(need.size, beyond), (Stage(tenant),)
        return need

    def _coming(self, tenant: int) -> int:
        """Bytes of this tenant's that are on their way back: nobody counts them as its yet."""
        owners = self._catalog.table.tenant
        back = (one for one in self._catalog.copying if one.source.below and not one.target.below)
        return sum(one.size for one in back if int(owners[one.rows[0]]) == tenant)

    # What became of it.

    def ended(self, order: CopyOrder, status: U8, kept: I32, now: float, wall_ms: int) -> None:
        """An order is over: `kept` rows have the copy now."""
        source, target = order.source, order.target
        if target.below:
            self.offloaded += kept.size
            self.offload_failed += int((status != 0).sum())
            if (status != 0).any():
                self._resting[target.id] = now + REST_S
            self._catalog.rows.record("offload", kept, wall_ms, target.medium)
        elif source.below:
            self.promoted += kept.size
            self._catalog.rows.record("promote", kept, wall_ms)
        self._next_step = min(self._next_step, now)

    def stat(self) -> dict[str, object]:
        """The counters of `stat`, explained in docs/tiers.md."""
        room, books = self._catalog.room, self._catalog.rows.tiers
        mine = [one for one in self._catalog.segments if one.below and one.alive]
        return {
            "tier_capacity_bytes": sum(one.capacity_bytes for one in mine),
            "tier_committed_bytes": sum(one.committed_bytes for one in mine),
            "tier_objects": sum(one.objects for one in mine),
            "tier_reads": books.reads_below,
            "tier_reads_on": dict(books.reads_on),
            "offload_queue": len(books.fresh),
            "offloaded": self.offloaded,
            "offload_failed": self.offload_failed,
            "offload_skipped": books.fresh_skipped,
            "demoted": room.demoted_objects,
            "forgotten": room.forgotten_objects,
            "promoted": self.promoted,
            "promotions_refused": self.promotions_refused,
        }


def _distance(tier: Segment, source: Segment) -> tuple[bool, int]:
    """The node's own tier, else that with most room."""
    return tier.node != source.node, -tier.free_bytes
