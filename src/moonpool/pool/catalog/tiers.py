"""Which objects have copies below memory, and which of those are read often enough to come back.

Pure. Reads are counted in windows: an object is as hot as it was read often in this window and the
one before. Counters belong to rows; one that is used anew inherits at most a window's reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from moonpool._core import Table
from moonpool.pool.catalog.base import COMMITTED, I32, U8, U64, Bool
from moonpool.pool.catalog.distinct import distinct
from moonpool.pool.catalog.segments import Segments

FASTEST_FIRST = ("vram", "disk", "remote")  # a reader takes the first of these that has it
READS_MAX = 255
WANTED_MAX = 4096
FRESH_MAX = 65_536


class TierBooks:
    """`promote_reads` 0: nothing is counted, nothing comes back."""

    def __init__(self, table: Table, segments: Segments) -> None:
        self._table = table
        self._segments = segments
        self.promote_reads = 2
        self.window_s = 60.0
        self.reads_below = 0  # of what had no copy in memory
        self.reads_on: dict[str, int] = {}  # the same by the fastest medium that had one
        self.write_through = False
        self.fresh: deque[tuple[int, int]] = deque()  # values that are to have a copy below
        self.fresh_skipped = 0
        self.wanted: dict[int, int] = {}  # row and sequence of what should come back
        self._reads: list[U8] = []  # in this window and in the last one, by row
        self._window_end = 0.0

    def in_memory(self, rows: I32) -> Bool:
        """Which of these have a readable copy in memory."""
        return self._held(rows, lambda media: media == 0)

    def below(self, rows: I32) -> Bool:
        """Which have a readable copy below it."""
        return self._held(rows, lambda media: media > 0)

    def on(self, rows: I32, medium: str) -> Bool:
        code = self._segments.media.index(medium)
        return self._held(rows, lambda media: media == code)

    def _held(self, rows: I32, which: Callable[[U8], Bool]) -> Bool:
        counts, replicas = self._table.replicas_of(rows)
        numbers = self._table.replica_segment[replicas]
        good = self._segments.alive[numbers] & which(self._segments.medium[numbers])
        owner = np.repeat(np.arange(rows.size), counts)
        held: Bool = np.bincount(owner[good], minlength=rows.size) > 0
        return held

    def copies(self, rows: I32, medium: str) -> I32:
        """All replicas of these rows on one medium."""
        code = self._segments.media.index(medium)
        _, replicas = self._table.replicas_of(rows)
        some: I32 = replicas[self._segments.medium[self._table.replica_segment[replicas]] == code]
        return some

    def split(self, rows: I32, medium: str) -> tuple[I32, I32]:
        """Of closures (children first) that leave one medium: those whose value stays on another,
        and those that go. Nothing stays whose parent goes."""
        table = self._table
        code = self._segments.media.index(medium)
        stays = self._held(rows, lambda media: media != code) & (table.state[rows] == COMMITTED)
        if stays.any() and not stays.all():
            gone: set[int] = set()
            parents = table.parent[rows].tolist()
            for i in range(rows.size - 1, -1, -1):
                if not stays[i] or parents[i] in gone:
                    stays[i] = False
                    gone.add(int(rows[i]))
        return rows[stays], rows[~stays]

    def committed(self, rows: I32) -> None:
        """These have a new value."""
        if not (self.write_through and self._segments.tiered):
            return
        sequences = self._table.seq[rows].tolist()
        self.ask_again(list(zip(rows.tolist(), sequences, strict=True)))

    def ask_again(self, values: list[tuple[int, int]]) -> None:
        """They are to have copies below, and come after all that wait already."""
        room = max(0, FRESH_MAX - len(self.fresh))
        self.fresh.extend(values[:room])
        self.fresh_skipped += len(values[room:])

    def without_offloaded(self, rows: I32, counts: U8) -> tuple[I32, U8]:
        if not self._segments.tiered:
            return rows, counts
        kept = (counts > 0) | ~self.below(rows)
        return rows[kept], counts[kept]

    # Reads.

    def read(self, rows: I32, sequences: U64, now: float) -> None:
        """Reads of these versions, as clients report them."""
        if not self._segments.tiered or rows.size == 0:
            return
        if now >= self._window_end:
            self._turn(now)
        table = self._table
        rows_of = rows[(rows >= 0) & (rows < table.rows_max)]
        if rows_of.size != rows.size:
            return
        current = (table.state[rows] == COMMITTED) & (table.seq[rows] == sequences)
        rows = rows[current]
        this = self._reads[0]
        np.add.at(this, rows, (this[rows] < READS_MAX).astype(np.uint8))
        only_below = distinct(rows[~self.in_memory(rows)])
        self._count_below(rows[np.isin(rows, only_below)])
        if self.promote_reads:
            hot = only_below[self.heat(only_below) >= self.promote_reads]
            for row, sequence in zip(hot.tolist(), table.seq[hot].tolist(), strict=True):
                if len(self.wanted) < WANTED_MAX:
                    self.wanted[row] = sequence

    def _count_below(self, rows: I32) -> None:
        self.reads_below += rows.size
        for medium in FASTEST_FIRST:
            if rows.size and medium in self._segments.media:
                here = self.on(rows, medium)
                self.reads_on[medium] = self.reads_on.get(medium, 0) + int(here.sum())
                rows = rows[~here]

    def _turn(self, now: float) -> None:
        if not self._reads:
            self._reads = [np.zeros(self._table.rows_max, np.uint8) for _ in range(2)]
        elif now < self._window_end + self.window_s:
            self._reads.reverse()
            self._reads[0][:] = 0
        else:
            for one in self._reads:
                one[:] = 0
        self._window_end = now + self.window_s

    def heat(self, rows: I32) -> I32:
        """Reads of each in this window and the last."""
        if not self._reads:
            return np.zeros(rows.size, np.int32)
        total: I32 = self._reads[0][rows].astype(np.int32) + self._reads[1][rows]
        return total

    def take_wanted(self) -> I32:
        """Rows that should come back, still what they were when they were read."""
        wanted, self.wanted = self.wanted, {}
        rows = np.array([*wanted], np.int32)
        sequences = np.array([*wanted.values()], np.uint64)
        current = (self._table.state[rows] == COMMITTED) & (self._table.seq[rows] == sequences)
        still: I32 = rows[current]
        return still
