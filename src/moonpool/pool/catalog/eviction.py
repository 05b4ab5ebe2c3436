"""Which objects go when a segment needs room: an order offers, the evictor decides.

A victim takes its descendants along, on whatever segment, children first. A pinned, leased or
in-flight member keeps the whole closure. Nothing is chosen beyond what is needed.
"""

from __future__ import annotations

import numpy as np

from moonpool._core import Table
from moonpool.core.errors import BadConfig, did_you_mean
from moonpool.pool.catalog.base import CHOSEN, I32, KEPT, RESERVED
from moonpool.pool.catalog.leases import Leases
from moonpool.pool.catalog.needs import Need, Victims
from moonpool.pool.catalog.orders import EvictionOrder, Lru
from moonpool.pool.catalog.policy_order import PolicyOrder
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

    def __init__(self, table: Table, order: EvictionOrder, leases: Leases) -> None:
        self._table = table
        self._order = order
        self._leases = leases
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
            rows, ends, freed_bytes, freed_objects, stay = table.collect_victims(
                batch,
                segment=need.segment.id,
                bytes=max(min(need.size, most_bytes) - found.size, 0),
                objects=max(min(need.objects, most_objects) - found.objects, 0),
                kept_flags=KEPT,
                kept_state=RESERVED,
                chosen_flag=CHOSEN,
            )
            found.extend(rows, ends, freed_bytes, freed_objects)
            if stay.size:
                spared.append(stay)
                if sum(one.size for one in spared) >= SPARED_MAX:
                    whole = False
                    break
        candidates.close()
        return whole

    def put_back(self, segment: int, plan: Victims, used: I32) -> None:
        """Only these rows of the plan go."""
        chosen = plan.chosen()
        if used.size < chosen.size:
            _, replicas = self._table.replicas_of(chosen[used.size :])
            mine = replicas[self._table.replica_segment[replicas] == segment]
            self._order.put_back(segment, mine)
