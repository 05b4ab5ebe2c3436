"""What each tenant has: bytes of all its copies and objects, and what it was promised.

Told by whoever changes the catalog's rows, so that nobody has to count them again. It decides
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]


@dataclass(slots=True)
class Held:
    """Of one tenant. `admitted_*` and `evicted_*` are sums since the master began."""

    committed_bytes: int = 0
    objects: int = 0
    promised_bytes: int = 0
    promised_objects: int = 0
    admitted_bytes: int = 0
    admitted_objects: int = 0
    evicted_objects: int = 0
    evicted_bytes: int = 0
    refused: int = 0  # keys that its quota did not take
    throttled: int = 0  # puts whose turn did not come in time

    @property
    def used_bytes(self) -> int:
        return self.committed_bytes + self.promised_bytes

    @property
    def used_objects(self) -> int:
        return self.objects + self.promised_objects


@dataclass(slots=True)
class Usage:
    """By tenant number; a tenant that never had anything is not there."""

    by_tenant: dict[int, Held] = field(default_factory=dict)
    promised_bytes: int = 0  # of all

    def of(self, tenant: int) -> Held:
        held = self.by_tenant.get(tenant)
        if held is None:
            held = self.by_tenant[tenant] = Held()
        return held

    def copies_came(self, tenants: U32, sizes: U64) -> None:
        for tenant, size, _ in _sums(tenants, sizes):
            self.of(tenant).committed_bytes += size

    def copies_left(self, tenants: U32, sizes: U64) -> None:
        for tenant, size, _ in _sums(tenants, sizes):
            held = self.of(tenant)
            held.committed_bytes -= size
            assert held.committed_bytes >= 0, (tenant, held)

    def objects_came(self, tenants: U32) -> None:
        for tenant, _, count in _sums(tenants, None):
            self.of(tenant).objects += count

    def objects_left(self, tenants: U32) -> None:
        for tenant, _, count in _sums(tenants, None):
            held = self.of(tenant)
            held.objects -= count
            assert held.objects >= 0, (tenant, held)

    def evicted(self, tenants: U32, sizes: U64) -> None:
        for tenant, size, count in _sums(tenants, sizes):
            held = self.of(tenant)
            held.evicted_objects += count
            held.evicted_bytes += size

    def promise(self, tenant: int, size: int, objects: int) -> None:
        held = self.of(tenant)
        held.promised_bytes += size
        held.promised_objects += objects
        self.promised_bytes += size

    def release(self, tenant: int, size: int, objects: int) -> None:
        held = self.of(tenant)
        held.promised_bytes -= size
        held.promised_objects -= objects
        self.promised_bytes -= size
        assert held.promised_bytes >= 0 and held.promised_objects >= 0, (tenant, held)


def _sums(tenants: U32, sizes: U64 | None) -> list[tuple[int, int, int]]:
    """(tenant, bytes, count) of each; mostly all are of one."""
    if tenants.size == 0:
        return []
    first = int(tenants[0])
    if (tenants == first).all():
        return [(first, 0 if sizes is None else int(sizes.sum()), tenants.size)]
    sums = []
    for tenant in np.unique(tenants):
        mine = tenants == tenant
        size = 0 if sizes is None else int(sizes[mine].sum())
        sums.append((int(tenant), size, int(mine.sum())))
    return sums
