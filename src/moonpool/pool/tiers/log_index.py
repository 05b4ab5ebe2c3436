"""What lies where in the disk tier's buckets, and what of them is garbage. Pure: no files.

A slot has one object; the later PUT of a slot wins, and a REMOVE takes only its own generation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from moonpool.pool.tiers.base import Entry, Notes
from moonpool.pool.tiers.log_format import (
    Kind,
    Place,
    Record,
    parse_put,
    parse_remove,
    put_record,
    record,
)


class Located(NamedTuple):
    entry: Entry
    place: Place


@dataclass(slots=True)
class BucketUse:
    """`end`: bytes of the file; `live`: those that objects take; `slots`: theirs."""

    end: int
    live: int = 0
    slots: set[int] = field(default_factory=set)

    @property
    def objects(self) -> int:
        return len(self.slots)

    def garbage(self, start: int) -> int:
        return self.end - start - self.live


class LogIndex:
    """Objects by slot, use by bucket."""

    def __init__(self) -> None:
        self.objects: dict[int, Located] = {}
        self.buckets: dict[int, BucketUse] = {}
        self.notes = Notes()
        self.size_bytes = 0  # of the objects, without headers and padding

    def apply(self, records: Iterable[Record], incarnation: bytes) -> int:
        """Replay; how many records made no sense."""
        strange = 0
        for one in records:
            if one.kind is Kind.PUT:
                told = parse_put(one.payload, incarnation)
                if told is None:
                    strange += 1
                else:
                    self.put(Located(*told))
            elif one.kind is Kind.REMOVE:
                self.remove(*parse_remove(one.payload))
            elif one.kind is Kind.NOTES:
                self.notes = msgspec.msgpack.decode(one.payload, type=Notes)
        return strange

    def put(self, located: Located) -> None:
        self._take(located.entry.slot)
        self.objects[located.entry.slot] = located
        use = self.buckets.setdefault(located.place.bucket, BucketUse(0))
        use.end = max(use.end, located.place.offset + located.place.length)
        use.live += located.place.length
        use.slots.add(located.entry.slot)
        self.size_bytes += located.entry.size

    def find(self, slot: int, generation: int) -> Located | None:
        located = self.objects.get(slot)
        if located is None or located.entry.generation != generation:
            return None
        return located

    def remove(self, slot: int, generation: int) -> Located | None:
        """What was there, None when nothing of that generation is."""
        if self.find(slot, generation) is None:
            return None
        return self._take(slot)

    def _take(self, slot: int) -> Located | None:
        located = self.objects.pop(slot, None)
        if located is not None:
            use = self.buckets[located.place.bucket]
            use.live -= located.place.length
            use.slots.discard(slot)
            self.size_bytes -= located.entry.size
        return located

    def in_bucket(self, bucket: int) -> list[Located]:
        use = self.buckets.get(bucket)
        found = [] if use is None else [self.objects[slot] for slot in use.slots]
        return sorted(found, key=lambda one: one.place.offset)

    def most_garbage(self, apart_from: int, start: int) -> int | None:
        """The bucket whose reuse costs least: by what is left in it; None when none has any."""
        some = [
            number
            for number, use in self.buckets.items()
            if number != apart_from and use.garbage(start) > 0
        ]
        return min(some, key=lambda number: self.buckets[number].live, default=None)

    @property
    def file_bytes(self) -> int:
        return sum(use.end for use in self.buckets.values())

    def records(self, incarnation: bytes) -> list[bytes]:
        """An index that says what is so and nothing else."""
        rows = [put_record(entry, place, incarnation) for entry, place in self.objects.values()]
        return [record(Kind.NOTES, msgspec.msgpack.encode(self.notes)), *rows]
