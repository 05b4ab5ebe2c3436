"""The numbered event log: bounded, in order, resumable, and re-based when a follower fell behind.

Numbers are (term, sequence). Sequences go on over terms, but a new term asks followers to re-base:
they cannot know what the old master said last. Batches are kept as columns, one record per batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

import numpy as np

from moonpool.pool.catalog.base import U32, U64
from moonpool.pool.messages import Event


@dataclass(frozen=True, slots=True)
class _Record:
    first: int
    count: int
    kind: str
    node: str
    wall_ms: int
    blob: bytes = b""
    ends: U32 | None = None
    parent_blob: bytes = b""
    parent_ends: U32 | None = None  # equal neighbours: no parent
    sizes: U64 | None = None

    def event(self, term: int, sequence: int) -> Event:
        i = sequence - self.first
        return Event(
            term=term,
            sequence=sequence,
            kind=self.kind,
            key=_part(self.blob, self.ends, i),
            parent=_part(self.parent_blob, self.parent_ends, i),
            size=0 if self.sizes is None else int(self.sizes[i]),
            node=self.node,
            wall_ms=self.wall_ms,
        )


def _part(blob: bytes, ends: U32 | None, i: int) -> bytes:
    if ends is None:
        return b""
    return blob[(int(ends[i - 1]) if i else 0) : int(ends[i])]


class EventLog:
    """At least the last `events_max` events (whole records; one record more at most)."""

    def __init__(self, events_max: int, term: int) -> None:
        self._events_max = events_max
        self._records: deque[_Record] = deque()
        self._kept = 0
        self._term = term
        self.next_sequence = 1

    @property
    def term(self) -> int:
        return self._term

    def new_term(self, term: int) -> None:
        """What was said under an older term cannot be resumed."""
        self._term = term
        self._records.clear()
        self._kept = 0

    def add(self, kind: str, node: str, wall_ms: int) -> None:
        self._append(_Record(self.next_sequence, 1, kind, node, wall_ms))

    def add_keys(
        self,
        kind: str,
        wall_ms: int,
        blob: bytes,
        ends: U32,
        parent_blob: bytes,
        parent_ends: U32,
        sizes: U64,
    ) -> None:
        """One event per key, in order."""
        if ends.size:
            self._append(
                _Record(
                    *(self.next_sequence, int(ends.size), kind, "", wall_ms),
                    *(blob, ends, parent_blob, parent_ends, sizes),
                )
            )

    def _append(self, record: _Record) -> None:
        self._records.append(record)
        self._kept += record.count
        self.next_sequence += record.count
        while self._kept - self._records[0].count >= self._events_max:
            self._kept -= self._records.popleft().count

    def read(self, term: int, sequence: int, limit: int) -> tuple[list[Event], bool]:
        """At most `limit` events from (term, sequence) on, and whether to re-base instead."""
        oldest = self._records[0].first if self._records else self.next_sequence
        if term != self._term or not oldest <= sequence <= self.next_sequence:
            return [], True
        events: list[Event] = []
        start = bisect_right(self._records, sequence, key=lambda record: record.first) - 1
        for number in range(max(start, 0), len(self._records)):
            record = self._records[number]
            last = min(record.first + record.count, sequence + limit)
            events.extend(
                record.event(self._term, one) for one in range(max(record.first, sequence), last)
            )
            if len(events) >= limit:
                break
        return events, False

    def __len__(self) -> int:
        return self._kept


def no_parents(count: int) -> tuple[bytes, U32]:
    return b"", np.zeros(count, np.uint32)
