"""Leases: named, renewable holds on versions; they end by release, by time or with their holder.

A leased object is not evicted. Removing it never waits: the memory is held for what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moonpool._core import Table
from moonpool.pool.catalog.base import COMMITTED, LEASED, U8, U16, U64


@dataclass(slots=True)
class _Lease:
    owner: int
    until: float
    versions: dict[int, int]  # row -> sequence


class Leases:
    """`leases_max` bounds the leases and, eight to one, the objects under them."""

    def __init__(self, table: Table, leases_max: int, lease_ms_max: int) -> None:
        self._table = table
        self._max = leases_max
        self._ms_max = lease_ms_max
        self._leases: dict[int, _Lease] = {}
        self._next = 1
        self.ended = 0
        self._holds: U16 = np.zeros(table.rows_max, np.uint16)
        self._held = 0

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def objects(self) -> int:
        return self._held

    def take(
        self, owner: int, rows: list[int], sequences: U64, ttl_ms: int, now: float
    ) -> tuple[int, U8, int]:
        """A new lease on these versions: (its number, granted u8[n], ttl). 0: none was granted."""
        granted = np.zeros(len(rows), np.uint8)
        ttl_ms = min(ttl_ms, self._ms_max)
        if len(self._leases) >= self._max or self._held + len(rows) > 8 * self._max:
            return 0, granted, 0
        lease = _Lease(owner, now + ttl_ms / 1000, {})
        for i, row in enumerate(rows):
            if self._current(row, int(sequences[i])):
                granted[i] = 1
                if row not in lease.versions:
                    lease.versions[row] = int(sequences[i])
                    self._holds[row] += 1
                    self._table.flags[row] |= LEASED
        if not lease.versions:
            return 0, granted, 0
        number, self._next = self._next, self._next + 1
        self._leases[number] = lease
        self._held += len(lease.versions)
        return number, granted, ttl_ms

    def renew(
        self, owner: int, number: int, rows: list[int], sequences: U64, ttl_ms: int, now: float
    ) -> tuple[U8, int]:
        """Which of these versions the lease still holds, and its new ttl (0: the lease is gone)."""
        lease = self._leases.get(number)
        if lease is None or lease.owner != owner:
            return np.zeros(len(rows), np.uint8), 0
        ttl_ms = min(ttl_ms, self._ms_max)
        lease.until = now + ttl_ms / 1000
        held = [
            lease.versions.get(row) == int(sequences[i]) and self._current(row, int(sequences[i]))
            for i, row in enumerate(rows)
        ]
        return np.array(held, np.uint8), ttl_ms

    def release(self, owner: int, number: int) -> None:
        """Idempotent; somebody else's lease is left alone."""
        lease = self._leases.get(number)
        if lease is not None and lease.owner == owner:
            self._end(number)

    def end_owner(self, owner: int) -> None:
        for number in [n for n, lease in self._leases.items() if lease.owner == owner]:
            self._end(number)

    def expire(self, now: float) -> None:
        for number in [n for n, lease in self._leases.items() if lease.until <= now]:
            self._end(number)

    @property
    def next_deadline(self) -> float | None:
        return min((lease.until for lease in self._leases.values()), default=None)

    def hold_ms(self, row: int, now: float) -> int:
        """How much longer the longest lease on this row's current version lasts."""
        sequence = int(self._table.seq[row])
        ends = [
            lease.until for lease in self._leases.values() if lease.versions.get(row) == sequence
        ]
        return max(0, int((max(ends, default=now) - now) * 1000) + 1) if ends else 0

    def forget(self, row: int) -> None:
        """The version in this row is gone: leases on it hold memory only, at the agent."""
        self._holds[row] = 0
        self._table.flags[row] &= 0xFF ^ LEASED

    def _current(self, row: int, sequence: int) -> bool:
        return (
            0 <= row < self._table.rows_max
            and self._table.state[row] == COMMITTED
            and int(self._table.seq[row]) == sequence
        )

    def _end(self, number: int) -> None:
        lease = self._leases.pop(number)
        self.ended += 1
        self._held -= len(lease.versions)
        for row, sequence in lease.versions.items():
            if self._current(row, sequence):
                self._holds[row] -= 1
                if self._holds[row] == 0:
                    self._table.flags[row] &= 0xFF ^ LEASED
