"""The rows of the catalog and what must hold between table, segments and lists.

Every path by which a value leaves goes through `drop`, every path by which a row leaves through
`prune`; so capacity, lists, orphans and events agree.
"""

from __future__ import annotations

import numpy as np

from moonpool._core import Table
from moonpool.pool.catalog.base import (
    COMMITTED,
    GHOST,
    I32,
    IN_FLIGHT,
    LEASED,
    ORPHAN,
    RESERVED,
    SHELTERED,
    U8,
    U32,
    U64,
    Bool,
    CatalogConfig,
    Retirement,
)
from moonpool.pool.catalog.distinct import distinct
from moonpool.pool.catalog.events import EventLog
from moonpool.pool.catalog.evicted import Evicted
from moonpool.pool.catalog.eviction import Evictor, order_named
from moonpool.pool.catalog.groups import Groups
from moonpool.pool.catalog.heat import Heat
from moonpool.pool.catalog.leases import Leases
from moonpool.pool.catalog.segments import Segment, Segments, total
from moonpool.pool.catalog.standing import Standing
from moonpool.pool.catalog.tiers import TierBooks
from moonpool.pool.messages import MEMORY
from moonpool.pool.tenancy.shares import Shares

NO_ROWS: I32 = np.zeros(0, np.int32)


class Rows:
    """Shared by reserve, commit, eviction, inventory and lookups."""

    def __init__(
        self, config: CatalogConfig, table: Table, term: int, shares: Shares | None = None
    ) -> None:
        self.config = config
        self.shares = shares  # None: there is one tenant, and nobody counts
        self.table = table
        self.term = term
        self.segments = Segments(config.segments_max)
        self.evicted = Evicted()
        self.standing = Standing(table)
        self.groups = Groups(table)
        self.heat = Heat(table, config.hot_reads_per_s, config.hot_hosts, config.cold_after_s)
        self.order = order_named(config.eviction, table, config.segments_max, self.standing)
        self.events = EventLog(config.events_max, term)
        self.leases = Leases(table, config.leases_max, config.lease_ms_max)
        self.tiers = TierBooks(table, self.segments)
        self.evictor = Evictor(table, self.order, self.leases, self.standing, self.groups)
        self.rebuilding = False  # during a rebuild nobody is an orphan
        self.may_expire = False  # some object has a TTL
        self.several = False  # some object wants several copies
        self.objects = 0
        self._mark: Bool = np.zeros(config.rows_max, np.bool_)

    def in_flight(self, rows: I32) -> Bool:
        table = self.table
        pending: Bool = table.state[rows] == RESERVED
        pending |= (table.flags[rows] & IN_FLIGHT) != 0
        return pending

    def expired(self, rows: I32, wall_ms: int) -> Bool:
        expiry = self.table.expiry_ms[rows]
        gone: Bool = (expiry > 0) & (expiry <= wall_ms)
        return gone

    def reachable(self, rows: I32) -> Bool:
        """Which of these committed rows have a replica on a segment whose node is heard."""
        if self.segments.all_alive:
            return np.ones(rows.size, np.bool_)
        counts, replicas = self.table.replicas_of(rows)
        return self.live_counts(counts, replicas)[0] > 0

    def live_counts(self, counts: U8, replicas: I32) -> tuple[U8, I32]:
        """The same, without replicas whose node is not heard."""
        alive = self.segments.alive[self.table.replica_segment[replicas]]
        owner = np.repeat(np.arange(counts.size), counts)
        left = np.bincount(owner[alive], minlength=counts.size).astype(np.uint8)
        return left, replicas[alive]

    def record(self, kind: str, rows: I32, wall_ms: int, medium: str = "") -> None:
        """One event per row, with its key, its parent's key and its size."""
        if rows.size == 0:
            return
        table = self.table
        self.events.add_keys(
            kind,
            wall_ms,
            *table.keys(rows),
            *table.parent_keys(rows),
            table.size[rows],
            medium=medium,
        )

    def drop(
        self, rows: I32, kind: str, wall_ms: int, now: float, closed: bool = False
    ) -> list[Retirement]:
        """The values of these rows (each once) are gone. `closed`: the rows are whole subtrees,
        children first, with nothing in flight in them."""
        table = self.table
        valued = rows[table.state[rows] == COMMITTED]
        self.record(kind, valued, wall_ms)
        if kind == "evict":
            self.evicted.add(*table.keys(valued))
        elif len(self.evicted):
            self.evicted.forget(*table.keys(valued))
        if self.shares is not None:
            usage, tenants = self.shares.usage, table.tenant[valued]
            usage.objects_left(tenants)
            if kind == "evict":
                usage.evicted(tenants, table.size[valued])
        retirements = self.detach(valued, now)
        replaced = (table.flags[valued] & IN_FLIGHT) != 0
        table.state[valued] = np.where(replaced, RESERVED, GHOST)
        table.flags[valued] = 0
        self.objects -= valued.size
        if closed:
            tops = table.parent[rows]
            self._erase(rows)
            self.prune(distinct(tops[tops >= 0]))
        else:
            self._orphan(valued[table.children[valued] > 0])
            self.prune(valued)
        return retirements

    def detach(self, rows: I32, now: float) -> list[Retirement]:
        """Take all replicas from committed rows."""
        table = self.table
        self.groups.left(rows)
        leased = rows[(table.flags[rows] & LEASED) != 0]
        retirements = []
        for row in leased:
            hold_ms = self.leases.hold_ms(int(row), now)
            self.leases.forget(int(row))
            _, replicas = table.replicas_of(np.array([row], np.int32))
            retirements += [one._replace(hold_ms=hold_ms) for one in self.take_replicas(replicas)]
        _, replicas = table.replicas_of(rows)
        return retirements + self.take_replicas(replicas)

    def take_replicas(self, replicas: I32) -> list[Retirement]:
        """Take these replicas from their objects, and say what their agents must retire."""
        table = self.table
        numbers = table.replica_segment[replicas]
        slots, generations = table.replica_slot[replicas], table.replica_generation[replicas]
        sizes = table.size[table.replica_object[replicas]]
        retirements = []
        for segment, where in self.segments.groups(numbers):
            segment.remove(replicas[where], slots[where], total(sizes[where]))
            if self.order.keeps_books:
                self.order.left(segment.id, replicas[where])
            retirements.append(Retirement(segment.id, slots[where], generations[where]))
        if self.shares is not None:
            memory = self.segments.in_memory(numbers)
            owners = table.tenant[table.replica_object[replicas[memory]]]
            self.shares.usage.copies_left(owners, sizes[memory])
        if replicas.size:
            table.remove_replicas(replicas)
        return retirements

    def lose_replicas(self, replicas: I32, wall_ms: int, now: float) -> list[Retirement]:
        """These copies are worthless or do not exist any more; objects left without one are gone.
        Returns where they were."""
        rows = distinct(self.table.replica_object[replicas])
        numbers = distinct(self.table.replica_segment[replicas]).tolist()
        media = {self.segments[number].medium for number in numbers}
        retirements = self.take_replicas(replicas)
        gone = rows[self.table.replica[rows] < 0]
        if self.segments.tiered:
            self._left_media(rows[self.table.replica[rows] >= 0], media, wall_ms)
        return retirements + self.drop(gone, "lose", wall_ms, now)

    def _left_media(self, rows: I32, media: set[str], wall_ms: int) -> None:
        """These have copies left; where none of them is on a medium any more, that is said."""
        for medium in sorted(media):
            kind = "demote" if medium == MEMORY else "forget"
            _, left = self.table.replicas_of(rows)
            code = self.segments.media.index(medium)
            still = left[self.segments.medium[self.table.replica_segment[left]] == code]
            keep = np.isin(rows, self.table.replica_object[still])
            self.record(kind, rows[~keep], wall_ms, medium)

    def add_replicas(self, segment: Segment, rows: I32, slots: U32, generations: U64) -> I32:
        """Committed replicas on one segment, on no list yet."""
        numbers = np.full(rows.size, segment.id, np.uint16)
        replicas = self.table.add_replicas(rows, numbers, slots, generations)
        sizes = self.table.size[rows]
        segment.add(replicas, slots, total(sizes))
        if self.shares is not None and not segment.below:
            self.shares.usage.copies_came(self.table.tenant[rows], sizes)
        return replicas

    def link(self, rows: I32, parents: I32) -> I32:
        """Put rows under these parents (-1: none); the ghosts (each once) that have lost their
        last child by it, to be pruned."""
        table = self.table
        before = table.parent[rows]
        table.set_parent(rows, parents)
        left = distinct(before[(before >= 0) & (before != parents)])
        childless: I32 = left[(table.state[left] == GHOST) & (table.children[left] == 0)]
        return childless

    def prune(self, rows: I32) -> None:
        """Erase those of these rows (each once) that hold nothing: and then their parents. Rows
        of the batch being admitted stay."""
        table = self.table
        while rows.size:
            idle = (table.state[rows] == GHOST) & (table.children[rows] == 0)
            idle &= (table.flags[rows] & SHELTERED) == 0
            rows = rows[idle]
            parents = table.parent[rows]
            self._erase(rows)
            rows = distinct(parents[parents >= 0])

    def _erase(self, rows: I32) -> None:
        if rows.size == 0:
            return
        table = self.table
        parents = table.parent[rows] if self.order.keeps_books else rows[:0]
        table.state[rows] = 0
        table.flags[rows] = 0
        table.erase(rows)
        if parents.size:
            bare = (parents >= 0) & (table.state[parents] == COMMITTED)
            bare &= table.children[parents] == 0
            self.order.childless(distinct(parents[bare]))

    # Orphans.

    def _below(self, rows: I32) -> I32:
        """Committed descendants of these rows, without them, children first."""
        table = self.table
        family = table.descendants(rows)
        self._mark[rows] = True
        below: I32 = family[~self._mark[family] & (table.state[family] == COMMITTED)]
        self._mark[rows] = False
        return below

    def _orphan(self, rows: I32) -> None:
        """These rows lost their value: what hangs below is no prefix any more."""
        if rows.size == 0 or self.rebuilding:
            return
        below = self._below(rows)
        below = below[(self.table.flags[below] & ORPHAN) == 0]
        self.table.flags[below] |= ORPHAN
        self.relist(below)

    def place_family(self, rows: I32) -> None:
        """Rows just committed: orphans if their parent is one, else their children rejoin."""
        table = self.table
        parents = table.parent[rows]
        lost = parents >= 0
        lost &= (table.state[parents] != COMMITTED) | ((table.flags[parents] & ORPHAN) != 0)
        if lost.any() and not self.rebuilding:
            orphans = np.concatenate([self._below(rows[lost]), rows[lost]])
            orphans = orphans[(table.flags[orphans] & ORPHAN) == 0]
            table.flags[orphans] |= ORPHAN
            self.relist(orphans)
            rows = rows[(table.flags[rows] & ORPHAN) == 0]
        tops = rows[table.children[rows] > 0]
        if tops.size:
            below = self._below(tops)
            below = below[(table.flags[below] & ORPHAN) != 0]
            if below.size:
                self._rejoin(below)

    def _rejoin(self, below: I32) -> None:
        """Parents first: a row rejoins when its parent has a value and is no orphan."""
        table = self.table
        back = []
        for row in below[::-1]:
            parent = table.parent[row]
            if table.state[parent] == COMMITTED and not table.flags[parent] & ORPHAN:
                table.flags[row] &= 0xFF ^ ORPHAN
                back.append(row)
        self.relist(np.array(back[::-1], np.int32))

    def orphan_all(self) -> None:
        """A rebuild is over: what still lacks its parent is an orphan now."""
        self.rebuilding = False
        start = 0
        while start >= 0:
            rows, start = self.table.scan(start, 65_536)
            self._orphan(rows[self.table.state[rows] == GHOST])

    def relist(self, rows: I32) -> None:
        """Put the listed replicas of these rows on the lists that their standing asks for."""
        table = self.table
        counts, replicas = table.replicas_of(rows)
        lists = np.repeat(self.standing.list_of(rows), counts)
        numbers = table.replica_segment[replicas] + lists * self.config.segments_max
        listed = table.replica_list[replicas] >= 0
        table.list_remove(replicas[listed])
        for number in distinct(numbers[listed]):
            table.list_push(int(number), replicas[listed & (numbers == number)])
