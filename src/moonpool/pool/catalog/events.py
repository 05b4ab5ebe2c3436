"""The numbered event log: bounded, in order, resumable, and re-based when a follower fell behind.

Numbers are (term, sequence). Sequences go on over terms, but a new term asks followers to re-base:
they cannot know what the old master said last. Batches are kept as columns, one record per batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

import msgspec

from moonpool.pool.catalog.base import I32, U32, U64
from moonpool.pool.messages import Event


class _Record(msgspec.Struct, frozen=True, gc=False):
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
    medium: str = ""
    parent_of: I32 | None = None  # instead: place in `ends`, -1 none, -2-j place j in `parent_ends`

    def event(self, term: int, sequence: int) -> Event:
        i = sequence - self.first
        return Event(
            term=term,
            sequence=sequence,
            kind=self.kind,
            key=_part(self.blob, self.ends, i),
            parent=self._parent(i),
            size=0 if self.sizes is None else int(self.sizes[i]),
            node=self.node,
            wall_ms=self.wall_ms,
            medium=self.medium,
        )

    def _parent(self, i: int) -> bytes:
        if self.parent_of is None:
            return _part(self.parent_blob, self.parent_ends, i)
        place = int(self.parent_of[i])
        if place >= 0:
            return _part(self.blob, self.ends, place)
        return b"" if place == -1 else _part(self.parent_blob, self.parent_ends, -2 - place)


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

    def add(self, kind: str, node: str, wall_ms: int, medium: str = "") -> None:
        self._append(_Record(self.next_sequence, 1, kind, node, wall_ms, medium=medium))

    def add_keys(
        self,
        kind: str,
        wall_ms: int,
        blob: bytes,
        ends: U32,
        parent_blob: bytes,
        parent_ends: U32,
        sizes: U64,
        parent_of: I32 | None = None,
        medium: str = "",
    ) -> None:
        """One event per key, in order. Without `parent_of` there is one parent end per key; with
        it parents are named as in Reserve. The columns are kept, not copied."""
        if ends.size:
            self._append(
                _Record(
                    self.next_sequence,
                    int(ends.size),
                    kind,
                    "",
                    wall_ms,
                    blob,
                    ends,
                    parent_blob,
                    parent_ends,
                    sizes,
                    medium,
                    parent_of,
                )
            )

    def keys_since(self, sequence: int) -> list[bytes]:
        """Keys of the batches added since next_sequence was `sequence`, of all kinds."""
        keys: list[bytes] = []
        for record in reversed(self._records):
            if record.first < sequence:
                break
            if record.ends is not None:
                keys += (_part(record.blob, record.ends, i) for i in range(record.count))
        return keys

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
