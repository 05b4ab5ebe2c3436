"""A snapshot that was read: which segments it has, up to which change, and their rows piece by
piece. What it reads from is a function, so that it needs no file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from moonpool.core.errors import BadFrame
from moonpool.pool.catalog.base import Bool
from moonpool.pool.messages_node import InventoryChunk
from moonpool.pool.snapshot.format import (
    End,
    Head,
    Part,
    Place,
    Read,
    places_of,
    record_at,
)

_SMALL_MAX = 256  # bytes of a frame that is no rows, at most


@dataclass(slots=True)
class SavedSegment:
    """`since`: the agent's change number after which it has to be asked what changed."""

    slots: int
    since: int
    places: list[Place] = field(default_factory=list)


class Saved:
    """Raises BadFrame and Corrupt for what was not written to its end. Rows are checked when they
    are read: a big file is no wait at the start."""

    def __init__(self, read: Read, size: int) -> None:
        self._read = read
        self._segments: dict[bytes, SavedSegment] = {}
        places = places_of(read, size)
        if len(places) < 2 or record_at(read, places[-1]) != End(len(places) - 1):
            raise BadFrame("not written to its end")
        head = record_at(read, places[0])
        if not isinstance(head, Head):
            raise BadFrame("it does not begin as a snapshot does")
        self.head = head
        segment = None
        for place in places[1:-1]:
            record = record_at(read, place) if place.length <= _SMALL_MAX else None
            if isinstance(record, Part):
                segment = SavedSegment(record.slots, record.since)
                self._segments[record.incarnation] = segment
            elif segment is None or isinstance(record, Head | End):
                raise BadFrame(f"rows of no segment at byte {place.offset}")
            else:
                segment.places.append(place)

    def __len__(self) -> int:
        return len(self._segments)

    def find(self, incarnation: bytes, slots: int) -> SavedSegment | None:
        segment = self._segments.get(incarnation)
        return segment if segment is not None and segment.slots == slots else None

    def rows(self, place: Place) -> InventoryChunk:
        """Raises Corrupt, BadFrame."""
        record = record_at(self._read, place)
        if not isinstance(record, InventoryChunk):
            raise BadFrame(f"no rows at byte {place.offset}")
        return record


class Restore:
    """One segment on its way from a snapshot into the catalog. `changed` bool[slots]: the node has
    told of these, the snapshot knows nothing of them; `filled` bool[slots]: an object is in it."""

    def __init__(self, saved: Saved, segment: SavedSegment) -> None:
        self.saved = saved
        self.segment = segment
        self.changed: Bool = np.zeros(segment.slots, np.bool_)
        self.filled: Bool = np.zeros(segment.slots, np.bool_)
        self.sealed = -1  # objects that the agent has
        self.told = False  # all that changed was
        self.next = 0  # piece to be taken in
        self.unanswered = 0  # heartbeats

    @property
    def over(self) -> bool:
        return self.next == len(self.segment.places)

    @property
    def agrees(self) -> bool:
        """What came together is as many as the agent has."""
        return int(self.filled.sum()) == self.sealed
