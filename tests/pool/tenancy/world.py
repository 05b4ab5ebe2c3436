"""A master with tenants over real agents; what clients write lies under their tenant's scope, as
the nodes' endpoints make it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from moonpool.core.sections import MasterConfig
from moonpool.core.tenants import Tenant, Tenants
from moonpool.pool import messages as m
from moonpool.pool.columns import unpack_keys
from moonpool.pool.ports import CLAIM_DTYPE
from tests.pool.master_world import CONFIG, MasterWorld, stamp


def tenant(name: str, **how: Any) -> Tenant:
    return Tenant(name=name, token=f"the token of {name}, long", **how)


class TenantWorld(MasterWorld):
    tenants: Tenants

    def __init__(self, *tenants: Tenant, config: MasterConfig = CONFIG, **how: Any) -> None:
        self.tenants = Tenants(tenants)
        self._writer = ""
        self._names: dict[int, str] = {}
        super().__init__(config, **how)

    def visitor(self, name: str = "", host: str = "h") -> int:
        """A client with this tenant's token; the operator without a name."""
        self._session += 1
        self._names[self._session] = name
        self.perform(
            self.master.connected(self._session, "client", "c", host, self.now, tenant=name)
        )
        return self._session

    def put(
        self, session: int, keys: Sequence[bytes], size: int = 64, **how: Any
    ) -> list[m.PutStatus]:
        self._writer = self._names.get(session, "")
        return super().put(session, keys, size, **how)

    def claim(
        self, segment: int, key: bytes, sequence: int, size: int, term: int
    ) -> tuple[int, int]:
        owner = self.tenants.named(self._writer or "default")
        assert owner is not None
        key = owner.scope + key
        records = np.zeros(1, CLAIM_DTYPE)
        records[0] = (size, term, sequence, 0, owner.number, len(key), 0, 1, 0, 0, 0)
        agent = self.agent(segment)
        status, slots, generations = agent.claim(records, key, term)
        assert status.tolist() == [0], status
        agent.write(int(slots[0]), int(generations[0]), 0, stamp(key, size))
        sealed = agent.seal(slots, generations, np.zeros(1, np.uint32), 1, term)
        assert sealed.tolist() == [0], sealed
        return int(slots[0]), int(generations[0])

    def keys(self, session: int, prefix: bytes = b"") -> set[bytes]:
        found: set[bytes] = set()
        cursor = 0
        while cursor >= 0:
            listed = self.call(session, m.List(prefix, cursor), m.Listed)
            found |= set(unpack_keys(listed.keys))
            cursor = listed.cursor
        return found

    def held(self, name: str) -> dict[str, Any]:
        shares = self.master.shares
        assert shares is not None
        return dict(shares.stat()[name])


def recounted(world: TenantWorld) -> dict[int, tuple[int, int]]:
    """(bytes of copies, objects) of each tenant by the rows themselves."""
    table = world.master.catalog.table
    counted: dict[int, tuple[int, int]] = {}
    cursor = 0
    while cursor >= 0:
        rows, cursor = world.master.catalog.scan(cursor, 65_536, b"")
        counts, _ = table.replicas_of(rows)
        for row, copies in zip(rows.tolist(), counts.tolist(), strict=True):
            number = int(table.tenant[row])
            size, objects = counted.get(number, (0, 0))
            counted[number] = size + int(table.size[row]) * copies, objects + 1
    return counted
