"""Objects that many hosts read often: they get a copy more, as long as that lasts. Pure.

Reads are counted in windows of one second, from what clients report. A window is hot when enough
hosts read the object, together at least as often as the rate asks. After `cold_s` without a hot
window the additional copy is not wanted any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from moonpool._core import Table
from moonpool.pool.catalog.base import COMMITTED, I32, U64

WINDOW_S = 1.0
COUNTED_MAX = 65_536  # objects looked at in one window; others count as cold
HOT_MAX = 4_096
LINGER_S = 1.0


@dataclass(slots=True)
class _Count:
    sequence: int
    reads: int = 0
    hosts: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Hot:
    sequence: int
    until: float
    host: str  # one that reads it


class Heat:
    """`reads_per_s` 0: nothing is ever hot, and nothing is counted."""

    def __init__(self, table: Table, reads_per_s: float, hosts_min: int, cold_s: float) -> None:
        self._table = table
        self._rate = reads_per_s
        self._hosts_min = hosts_min
        self._cold_s = cold_s
        self._counts: dict[int, _Count] = {}
        self._window_end = 0.0
        self._hot: dict[int, _Hot] = {}

    def __len__(self) -> int:
        return len(self._hot)

    def read(self, rows: I32, sequences: U64, host: str, now: float) -> None:
        if self._rate <= 0:
            return
        if now >= self._window_end:
            self._counts.clear()
            self._window_end = now + WINDOW_S
        for row, sequence in zip(rows.tolist(), sequences.tolist(), strict=True):
            count = self._counts.get(row)
            if count is None or count.sequence != sequence:
                if len(self._counts) >= COUNTED_MAX or not self._current(row, sequence):
                    continue
                count = self._counts[row] = _Count(sequence)
            count.reads += 1
            count.hosts.add(host)
            if count.reads >= self._rate * WINDOW_S and len(count.hosts) >= self._hosts_min:
                if row in self._hot or len(self._hot) < HOT_MAX:
                    self._hot[row] = _Hot(sequence, now + self._cold_s, host)

    def _current(self, row: int, sequence: int) -> bool:
        table = self._table
        return (
            0 <= row < table.rows_max
            and table.state[row] == COMMITTED
            and int(table.seq[row]) == sequence
        )

    def hot(self) -> list[tuple[int, str]]:
        """Rows that want a copy more, and a host that reads each."""
        return [
            (row, one.host) for row, one in self._hot.items() if self._current(row, one.sequence)
        ]

    def more(self, rows: I32) -> I32:
        """How many copies more each of these rows is to have."""
        extra: I32 = np.array([row in self._hot for row in rows.tolist()], np.int32)
        return extra

    def cooled(self, now: float, busy: Callable[[int], bool]) -> I32:
        """Rows that are hot no longer; of those that are still what they were. A `busy` one stays
        hot a little longer."""
        over = []
        for row, one in self._hot.items():
            if one.until <= now and busy(row):
                one.until = now + LINGER_S
            elif one.until <= now:
                over.append(row)
        current = [row for row in over if self._current(row, self._hot[row].sequence)]
        for row in over:
            del self._hot[row]
        return np.array(current, np.int32)
