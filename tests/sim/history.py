"""What clients saw, and whether a pool that keeps its promises could have shown it."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

HEADER = struct.Struct("<IIQ")  # put number, size, magic
MAGIC = 0x4D4F4F4E504F4F4C


def stamp(put: int, size: int) -> bytes:
    """`size` bytes (at least 16) that no other put has, checkable to the last one."""
    return HEADER.pack(put, size, MAGIC) + random.Random(put).randbytes(size - HEADER.size)


@dataclass(slots=True)
class Put:
    number: int
    key: bytes
    size: int
    begin: float
    parent: bytes | None = None
    replace: bool = False
    end: float = float("inf")
    outcome: str = "unknown"  # stored, exists, failed, unknown


@dataclass(slots=True)
class Removal:
    key: bytes
    begin: float
    end: float = float("inf")
    acknowledged: bool = False


@dataclass
class Outages:
    """When nodes were away and masters died, for the one case no memory of a removal can outlive:
    a node away missed it, and then the master and the nodes that remembered it went together. Until
    these are back the value may be seen again (docs/protocol.md); then it is gone for good."""

    away: list[tuple[str, float, float]] = field(default_factory=list)
    master_deaths: list[float] = field(default_factory=list)

    def excuse(self, superseded: tuple[float, float], hit: float) -> bool:
        begin, end = superseded
        missed = {name for name, a, b in self.away if a <= end and begin <= b}
        return any(
            begin <= death <= hit
            and any(a <= hit and death <= b and missed - {name} for name, a, b in self.away)
            for death in self.master_deaths
        )


@dataclass
class History:
    """P1 (bytes of one current put), P2 (nothing of a failed put), P3, P5, P7 as checks."""

    puts: list[Put] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    hits: int = 0
    misses: int = 0
    problems: list[str] = field(default_factory=list)
    outages: Outages = field(default_factory=Outages)

    def begin_put(
        self, key: bytes, size: int, now: float, parent: bytes | None, replace: bool
    ) -> Put:
        put = Put(len(self.puts) + 1, key, size, now, parent, replace)
        self.puts.append(put)
        return put

    def begin_removal(self, key: bytes, now: float) -> Removal:
        removal = Removal(key, now)
        self.removals.append(removal)
        return removal

    def hit(self, key: bytes, data: bytes, begin: float, end: float) -> None:
        """A get that ran from `begin` to `end` returned `data`."""
        self.hits += 1
        put = self._whose(key, data)
        if put is None:
            return
        what = f"get of {key!r} [{begin:.4f}, {end:.4f}] returned put {put.number}"
        if put.begin > end:
            self.problems.append(f"P1: {what}, which began only at {put.begin:.4f}")
        if put.outcome == "failed" and put.end < begin:
            self.problems.append(f"P2: {what}, which had failed at {put.end:.4f}")
        later = self._superseded(put, begin, end)
        if later:
            self.problems.append(f"P1/P5: {what}, although {later}")

    def _whose(self, key: bytes, data: bytes) -> Put | None:
        if len(data) < HEADER.size:
            self.problems.append(f"P1: get of {key!r} returned {len(data)} bytes")
            return None
        number, size, magic = HEADER.unpack_from(data)
        if magic != MAGIC or not 0 < number <= len(self.puts):
            self.problems.append(f"P1: get of {key!r} returned bytes nobody put")
            return None
        put: Put = self.puts[number - 1]
        if put.key != key:
            self.problems.append(f"P1: get of {key!r} returned put {number} of {put.key!r}")
            return None
        if len(data) != put.size or data != stamp(number, put.size):
            self.problems.append(f"P1: get of {key!r} returned torn bytes of put {number}")
            return None
        return put

    def _superseded(self, put: Put, begin: float, end: float) -> str:
        """Why `put` cannot be current any more at `begin`; empty if it can."""
        if put.outcome != "stored":
            return ""  # unknown outcome: it may have become visible late
        for removal in self.removals:
            if (
                removal.key == put.key
                and removal.acknowledged
                and put.end < removal.begin
                and removal.end < begin
                and not self.outages.excuse((removal.begin, removal.end), end)
            ):
                return f"it was removed at {removal.end:.4f}"
        for other in self.puts:
            if (
                other.key == put.key
                and other.replace
                and other.outcome == "stored"
                and put.end < other.begin
                and other.end < begin
                and not self.outages.excuse((other.begin, other.end), end)
            ):
                return f"put {other.number} had replaced it at {other.end:.4f}"
        return ""

    def must_be_there(self, key: bytes) -> Put | None:
        """The put whose value `key` must have at the end, if that is certain."""
        stored = [put for put in self.puts if put.key == key and put.outcome == "stored"]
        if not stored:
            return None
        last = max(stored, key=lambda put: put.end)
        for removal in self.removals:
            if removal.key == key and removal.end > last.begin:
                return None  # removed later, or perhaps
        for other in self.puts:
            if other.key == key and other is not last and other.end > last.begin:
                if other.outcome in ("unknown", "stored"):
                    return None
        return last
