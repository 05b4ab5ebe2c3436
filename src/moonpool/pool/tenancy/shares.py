"""Who may have how much, and who makes room for whom.

A quota is what a tenant has for certain. Beyond it it borrows what others leave idle, and gives it
back: whoever is within its quota takes room from those who are beyond theirs. Among borrowers the
one with the most borrowed for its weight gives, until both have as much for theirs; nobody within
its quota gives to anybody. Its own objects are the last that a tenant loses to itself.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from moonpool.core.tenants import Tenant, Tenants
from moonpool.pool.tenancy.usage import Held, Usage

ALL: Final = 1 << 62


class Stage(NamedTuple):
    """Objects of one tenant may go until as much of it is freed (the last one may free more)."""

    tenant: int
    most_bytes: int = ALL
    most_objects: int = ALL


class Left(NamedTuple):
    """What a tenant may still be promised."""

    nbytes: int
    objects: int


class Shares:
    """Pure: `capacity_bytes` of the living segments is told, and the usage looked at."""

    def __init__(self, tenants: Tenants, usage: Usage | None = None) -> None:
        self.tenants = tenants
        self.usage = usage or Usage()
        self._capacity_bytes = -1
        self._scale = 1.0

    def capacity_is(self, capacity_bytes: int) -> None:
        """Quotas that together are more than there is shrink alike."""
        if capacity_bytes != self._capacity_bytes:
            self._capacity_bytes = capacity_bytes
            asked = sum(one.quota_bytes for one in self.tenants)
            self._scale = min(1.0, capacity_bytes / asked) if asked else 1.0

    def quota_bytes(self, tenant: Tenant) -> int:
        return int(tenant.quota_bytes * self._scale)

    def left(self, number: int, *, pinned: bool = False) -> Left:
        """Without limit for who may borrow; nothing that cannot be evicted is ever borrowed."""
        tenant, held = self.tenants.get(number), self.usage.of(number)
        if tenant.borrow and not pinned:
            return Left(ALL, ALL)
        objects = tenant.quota_objects or (ALL if tenant.quota_bytes else 0)
        return Left(self.quota_bytes(tenant) - held.used_bytes, objects - held.used_objects)

    def stages(
        self, number: int, size: int, objects: int, *, by_objects: bool
    ) -> tuple[Stage, ...]:
        """Whose objects go, in turn, for `size` bytes (`objects` objects) that the tenant wants.
        `by_objects`: it is places for objects that are short."""
        mine = self.tenants.get(number)
        more = objects if by_objects else size
        level = max(0.0, self._level(mine, self.usage.of(number), more, by_objects))
        stages: list[tuple[float, Stage]] = []
        for other, held in self.usage.by_tenant.items():
            if other == number:
                continue
            tenant = self.tenants.get(other)
            above = self._level(tenant, held, 0, by_objects) - level
            most = round(above * tenant.weight)
            if most > 0:
                stage = Stage(other, most_objects=most) if by_objects else Stage(other, most)
                stages.append((-above, stage))
        stages.sort()
        return (*(stage for _, stage in stages), Stage(number))

    def relief(self) -> tuple[Stage, ...]:
        """When room is made for nobody in particular: from who has most beyond its quota."""
        stages = []
        for number, held in self.usage.by_tenant.items():
            tenant = self.tenants.get(number)
            level = self._level(tenant, held, 0, False)
            stages.append((-level, Stage(number, max(1, round(max(level, 0.0) * tenant.weight)))))
        stages.sort()
        return tuple(stage for _, stage in stages)

    def _level(self, tenant: Tenant, held: Held, more: int, by_objects: bool) -> float:
        """What is borrowed for each unit of weight; below 0: within the quota."""
        if by_objects:
            return (held.used_objects + more - tenant.quota_objects) / tenant.weight
        return (held.used_bytes + more - self.quota_bytes(tenant)) / tenant.weight

    def stat(self) -> dict[str, dict[str, object]]:
        """By name, as `stat` shows it."""
        numbers = {one.number for one in self.tenants} | set(self.usage.by_tenant)
        return {
            tenant.name: self.stat_of(number)
            for number in sorted(numbers)
            if (tenant := self.tenants.get(number))
        }

    def stat_of(self, number: int) -> dict[str, object]:
        tenant, held = self.tenants.get(number), self.usage.of(number)
        quota = self.quota_bytes(tenant)
        return {
            "quota_bytes": quota,
            "quota_objects": tenant.quota_objects,
            "weight": tenant.weight,
            "committed_bytes": held.committed_bytes,
            "objects": held.objects,
            "promised_bytes": held.promised_bytes,
            "borrowed_bytes": max(0, held.used_bytes - quota),
            "admitted_bytes": held.admitted_bytes,
            "admitted_objects": held.admitted_objects,
            "evicted_bytes": held.evicted_bytes,
            "evicted_objects": held.evicted_objects,
            "refused": held.refused,
            "throttled": held.throttled,
        }
