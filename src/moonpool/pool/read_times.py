"""What a client's reads took, on its way to the master: counted by transport where they are made.

Each port has a `ReadTimes` of the core: mapped memory is timed there, around the copy, at a cost
of two looks at the clock a call; what is awaited is timed by its port, until the answer was taken.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

from moonpool.core.exposition import Histogram
from moonpool.pool import messages as m
from moonpool.pool.columns import u64

if TYPE_CHECKING:
    from moonpool.pool.ports import U64, Port

BUCKETS: Final = 27
BOUNDS_S: Final = tuple(2.0 ** (8 + bucket) / 1e9 for bucket in range(BUCKETS - 1))
"""Below which the buckets but the last count, as native/read_times.hpp has them."""
TRANSPORTS: Final = ("shm", "local", "tcp", "vram", "disk", "remote")
_REPORT_MAX: Final = 1 << 40  # reads, or seconds, of one report: more is no client's
_SUM_MAX: Final = 1 << 62  # the answer to `stat` carries no larger number


class Untold:
    """Counts that the master has not heard of, by transport. Any threads may use it."""

    def __init__(self) -> None:
        self.told_at = 0.0
        self._sums: dict[str, tuple[U64, int]] = {}
        self._adding = threading.Lock()

    def take(self, ports: Iterable[Port], now: float) -> list[m.ReadTimes]:
        """Everything that came since the last time; empty when there was no read."""
        self.told_at = now
        for port in ports:
            counts, nanoseconds = port.read_times.take()
            if counts.any():
                self._add(port.kind, counts, nanoseconds)
        with self._adding:
            sums, self._sums = self._sums, {}
        return [
            m.ReadTimes(kind, total, counts.tobytes()) for kind, (counts, total) in sums.items()
        ]

    def give_back(self, untold: Iterable[m.ReadTimes]) -> None:
        """Nobody answered: they are told with the next. If only the answer was lost they count
        twice."""
        for one in untold:
            self._add(one.transport, u64(one.counts), one.nanoseconds)

    def _add(self, kind: str, counts: U64, nanoseconds: int) -> None:
        with self._adding:
            before, total = self._sums.get(kind, (np.zeros(BUCKETS, np.uint64), 0))
            self._sums[kind] = (before + counts, total + nanoseconds)


class Told:
    """What all clients said since the master started, by transport. Transports and buckets that
    are not known here are passed over: a later release may have others, and labels are few."""

    def __init__(self) -> None:
        self._seconds = {transport: Histogram(BOUNDS_S) for transport in TRANSPORTS}

    def hear(self, times: Iterable[m.ReadTimes]) -> None:
        for one in times:
            seconds = self._seconds.get(one.transport)
            if seconds is None or len(one.counts) != BUCKETS * 8 or seconds.count > _SUM_MAX:
                continue
            counts = u64(one.counts).tolist()
            total_s = one.nanoseconds / 1e9
            if sum(counts) <= _REPORT_MAX and 0 <= total_s <= _REPORT_MAX:
                seconds.merge(counts, total_s)

    def stat(self) -> dict[str, object]:
        return {
            transport: seconds.as_dict()
            for transport, seconds in self._seconds.items()
            if seconds.count
        }
