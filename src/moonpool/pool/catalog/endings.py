"""How a reservation ends: kept by its commit, or without a value by abort and expiry.

Whatever ends without a value is expired at the agents, so that nothing sealed stays behind.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moonpool.pool.catalog.base import (
    COMMITTED,
    GHOST,
    I32,
    IN_FLIGHT,
    NO_SEGMENT,
    U64,
    Expiry,
    Index,
)
from moonpool.pool.catalog.reservations import Batch, Reservations
from moonpool.pool.catalog.rows import Rows
from moonpool.pool.catalog.segments import Late


class Ended(NamedTuple):
    """Keys whose reservation ended without a value, and what their agents must expire."""

    keys: list[bytes]
    expiries: list[Expiry]


class Endings:
    """Closes reservations and returns the room that was promised to them."""

    def __init__(self, rows: Rows, reservations: Reservations) -> None:
        self._rows = rows
        self._reservations = reservations

    def keep(self, batch: Batch, indexes: Index) -> None:
        """The promise is kept: what was promised is now counted as committed."""
        self._give_back(batch, indexes, None)
        self._reservations.close(batch, indexes)

    def _give_back(self, batch: Batch, indexes: Index, late: tuple[float, float] | None) -> None:
        """Return promised room: at once, or at `until` or the next report after `since`."""
        if self._rows.shares is not None:
            copies = (batch.segments[indexes] != NO_SEGMENT).sum(axis=1).astype(np.uint64)
            size = int((batch.sizes[indexes] * copies).sum())
            self._rows.shares.usage.release(batch.tenant, size, len(indexes))
        for column in range(batch.segments.shape[1]):
            numbers = batch.segments[indexes, column]
            for segment, at in self._rows.segments.groups(numbers[numbers != NO_SEGMENT]):
                sizes = batch.sizes[indexes[numbers != NO_SEGMENT]][at]
                if late is None:
                    segment.release(int(sizes.sum()), sizes.size)
                else:
                    until, since = late
                    segment.release_late(Late(until, since, int(sizes.sum()), sizes.size))

    def end(self, rows: I32, attempts: U64, now: float, late_until: float | None = None) -> Ended:
        """End these reservations where they are open. With `late_until` their writer may still
        hold memory: the room stays promised until the agent's next report or that moment."""
        keys: list[bytes] = []
        expiries: list[Expiry] = []
        by_batch: dict[int, list[int]] = {}
        for attempt in attempts.tolist():
            batch = self._reservations.find(attempt)
            if batch is not None and batch.open[attempt - batch.first]:
                by_batch.setdefault(batch.first, []).append(attempt - batch.first)
        given = dict(zip(attempts.tolist(), rows.tolist(), strict=True))
        for first, indexes in by_batch.items():
            batch = self._reservations.get(first)
            assert batch is not None, first
            same = [i for i in indexes if given[first + i] == int(batch.rows[i])]
            some, expired = self._end(batch, np.array(sorted(set(same)), np.int32), now, late_until)
            keys += some
            expiries += expired
        return Ended(keys, expiries)

    def end_batch(self, batch: Batch, now: float, late_until: float | None) -> Ended:
        return Ended(*self._end(batch, np.flatnonzero(batch.open), now, late_until))

    def _end(
        self, batch: Batch, indexes: Index, now: float, late_until: float | None
    ) -> tuple[list[bytes], list[Expiry]]:
        if indexes.size == 0:
            return [], []
        rows, table = self._rows, self._rows.table
        mine = batch.rows[indexes]
        keys = [table.key(int(row)) for row in mine]
        expiries = []
        owners = np.repeat(np.arange(indexes.size), batch.segments.shape[1])
        numbers = batch.segments[indexes].ravel()
        named = numbers != NO_SEGMENT
        owners, numbers = owners[named], numbers[named]
        attempts = (indexes + np.int64(batch.first)).astype(np.uint64)
        for segment, at in rows.segments.groups(numbers):
            expiries.append(Expiry(segment.id, rows.term, attempts[owners[at]]))
        self._give_back(batch, indexes, None if late_until is None else (late_until, now))
        if rows.order.keeps_books:
            rows.order.given_up(mine)
        valued = table.state[mine] == COMMITTED
        table.flags[mine[valued]] &= 0xFF ^ IN_FLIGHT
        table.state[mine[~valued]] = GHOST
        self._reservations.close(batch, indexes)
        rows.prune(mine[~valued])
        return keys, expiries
