"""Which objects go when a segment needs room: an order offers, the evictor decides.

A victim takes its descendants along, on whatever segment, children first, and a member of a group
all of the group. A pinned, leased or in-flight member keeps the whole closure. Nothing is chosen
beyond what is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from moonpool._core import Table
from moonpool.core.errors import BadConfig, did_you_mean
from moonpool.pool.catalog.base import CHOSEN, I32, KEPT, RESERVED
from moonpool.pool.catalog.groups import Groups
from moonpool.pool.catalog.leases import Leases
from moonpool.pool.catalog.needs import Need, Victims
from moonpool.pool.catalog.orders import EvictionOrder, Lru
from moonpool.pool.catalog.policy_order import PolicyOrder
from moonpool.pool.catalog.segments import total
from moonpool.pool.catalog.standing import Standing
from moonpool.pool.eviction import POLICIES
from moonpool.pool.tenancy.shares import Stage

ANYBODY = Stage(-1)
SPARED_MAX = 8192  # candidates that may not go, passed over in one decision


def order_named(name: str, table: Table, segments_max: int, standing: Standing) -> EvictionOrder:
    """Least recently used is the table's own; the others are the shared policies."""
    if name == "lru":
        return Lru(table, segments_max)
    if name not in POLICIES:
        raise BadConfig(
            f"eviction policy {name!r} is not known; there are {', '.join(POLICIES)}."
            f"{did_you_mean(name, POLICIES)}"
        )
    return PolicyOrder(table, segments_max, standing, POLICIES[name])


class Evictor:
    """Plans evictions in one segment. A plan changes nothing but the order's books: what is not
    used of it goes back by `put_back`."""

    def __init__(
        self,
        table: Table,
        order: EvictionOrder,
        leases: Leases,
        standing: Standing,
        groups: Groups,
    ) -> None:
        self._table = table
        self._order = order
        self._leases = leases
        self._standing = standing
        self._groups = groups
        self.sheltered = 0  # whose kin may not go in this decision
        self.futile = 0  # searches through everything that found nothing
        self.futile_skipped = 0

    def plan(self, need: Need) -> Victims:
        """Closures that meet the need, or all that may go."""
        found = need.found
        whose = hash(frozenset(stage.tenant for stage in need.stages))
        now = (need.segment.changes.count, self._leases.ended, self.sheltered, whose)
        if need.segment.barren == now and not need.met:
            self.futile_skipped += 1
            return found
        spared: list[I32] = []
        whole = True
        for stage in need.stages or (ANYBODY,):
            whole = self._search(need, stage, spared) and whole
            if need.met:
                break
        self._table.flags[found.chosen()] &= 0xFF ^ CHOSEN
        if spared:
            self._order.spared(need.segment.id, np.concatenate(spared))
        if whole and not found.objects and not need.met:
            self.futile += 1
            need.segment.barren = now
        return found

    def _search(self, need: Need, stage: Stage, spared: list[I32]) -> bool:
        """What this stage gives; False: it broke off, the next search begins behind."""
        found, table = need.found, self._table
        most_bytes, most_objects = found.size + stage.most_bytes, found.objects + stage.most_objects
        need.only = stage.tenant
        candidates = self._order.candidates(need)
        whole = True
        while not need.met and found.size < most_bytes and found.objects < most_objects:
            batch = next(candidates, None)
            if batch is None:
                break
            if stage.tenant >= 0:
                owners = table.replica_object[batch]
                batch = batch[table.tenant[owners] == stage.tenant]
            stays = [one for one in self._take(need, batch, most_bytes, most_objects) if one.size]
            if stays:
                spared.append(np.concatenate(stays))
                if sum(one.size for one in spared) >= SPARED_MAX:
                    whole = False
                    break
        candidates.close()
        return whole

    def _take(self, need: Need, batch: I32, most_bytes: int, most_objects: int) -> Iterator[I32]:
        """Takes closures of these candidates until that is enough; those that may not go."""
        found = need.found
        for some, group in self._groups.apart(batch) if len(self._groups) else [(batch, 0)]:
            size = min(need.size, most_bytes) - found.size
            objects = min(need.objects, most_objects) - found.objects
            if size <= 0 and objects <= 0:
                return
            if group:
                yield some[: not self._take_group(need, some, group)]
                continue
            rows, ends, freed_bytes, freed_objects, stay = self._table.collect_victims(
                some,
                segment=need.segment.id,
                bytes=max(size, 0),
                objects=max(objects, 0),
                kept_flags=KEPT,
                kept_state=RESERVED,
                chosen_flag=CHOSEN,
            )
            found.extend(rows, ends, freed_bytes, freed_objects)
            yield stay

    def _take_group(self, need: Need, candidate: I32, group: int) -> bool:
        """False: one of the group, or of what hangs below, has to stay."""
        table = self._table
        row = table.replica_object[candidate]
        if table.flags[row[0]] & CHOSEN:
            return True
        turn = int(self._standing.turns(row)[0])
        if (group, turn) in need.staying:
            return False
        rows = self._groups.family(group)
        rows = rows[(table.flags[rows] & CHOSEN) == 0]
        stays = (table.flags[rows] & KEPT) | (table.state[rows] == RESERVED)
        if stays.any() or (self._standing.turns(rows) > turn).any():
            need.staying.add((group, turn))
            return False
        _, replicas = table.replicas_of(rows)
        here = replicas[table.replica_segment[replicas] == need.segment.id]
        table.flags[rows] |= CHOSEN
        need.found.extend(
            rows,
            np.array([rows.size], np.uint32),
            np.array([total(table.size[table.replica_object[here]])], np.uint64),
            np.array([here.size], np.uint64),
        )
        return True

    def put_back(self, segment: int, plan: Victims, used: I32) -> None:
        """Only these rows of the plan go."""
        chosen = plan.chosen()
        if used.size < chosen.size:
            _, replicas = self._table.replicas_of(chosen[used.size :])
            mine = replicas[self._table.replica_segment[replicas] == segment]
            self._order.put_back(segment, mine)
