"""What became of a reserve call: key by key, or all at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moonpool.pool.catalog.base import I32, U8, U16, U64, Retirement


class Admitted(NamedTuple):
    """`segments` u16[n, replicas], NO_SEGMENT where there is none; `retirements` of what went."""

    status: U8
    rows: I32
    attempts: U64
    segments: U16
    retirements: list[Retirement]


class Whole(NamedTuple):
    """The usual batch: every key was granted, one copy each, on one segment. Attempts count up from
    `first`."""

    rows: I32
    first: int
    segment: int

    @property
    def attempts(self) -> U64:
        return np.arange(self.first, self.first + self.rows.size, dtype=np.uint64)

    def admitted(self, retirements: list[Retirement]) -> Admitted:
        """The same key by key."""
        n = self.rows.size
        segments = np.full((n, 1), self.segment, np.uint16)
        return Admitted(np.zeros(n, np.uint8), self.rows, self.attempts, segments, retirements)
