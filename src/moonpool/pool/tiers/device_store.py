"""A tier in the memory of a device (a GPU): what host memory gives up, nearer than any disk.

Its index is the process's and its bytes are the device's: both end with the node, and the next life
is another incarnation that holds nothing. What is read is proved by its CRC as on every tier.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from moonpool._core import crc32c
from moonpool.pool.tiers.base import WHOLE, Buffer, Entry, Notes, Status
from moonpool.pool.tiers.device_memory import DeviceMemory, FreePieces, Piece


class _Held(NamedTuple):
    entry: Entry
    pieces: list[Piece]


class DeviceStore:
    medium = "vram"

    def __init__(self, memory: DeviceMemory) -> None:
        self.incarnation = secrets.token_bytes(16)
        self.notes = Notes()
        self._memory = memory
        self._free = FreePieces(memory.nbytes)
        self._held: dict[int, _Held] = {}
        self._lost: list[tuple[int, int]] = []
        self._corrupt = 0
        self._lock = threading.Lock()

    def entries(self) -> Sequence[Entry]:
        with self._lock:
            return [one.entry for one in self._held.values()]

    def write(self, entry: Entry, data: Buffer) -> Status:
        raw = memoryview(data).cast("B")
        if raw.nbytes != entry.size:
            return Status.BOUNDS
        with self._lock:
            pieces = self._free.take(entry.size)
        if pieces is None:
            return Status.NO_SPACE
        done = 0
        for offset, length in pieces:
            self._memory.write(offset, raw[done : done + length])
            done += length
        with self._lock:
            before = self._held.pop(entry.slot, None)
            self._held[entry.slot] = _Held(entry, pieces)
            if before is not None:
                self._free.give_back(before.pieces)
        return Status.OK

    def read(self, slot: int, generation: int, offset: int, length: int) -> Buffer | Status:
        held = self._find(slot, generation)
        if held is None:
            return Status.MOVED
        size = held.entry.size if length == WHOLE else length
        if offset + size > held.entry.size:
            return Status.BOUNDS
        data = self._gather(held.pieces, offset, size)
        # Its pieces may have been another object's by the time they were read.
        if self._find(slot, generation) is not held:
            return Status.MOVED
        if length == WHOLE and crc32c(data) != held.entry.crc:
            self._give_up(slot, generation)
            return Status.CORRUPT
        return data

    def _find(self, slot: int, generation: int) -> _Held | None:
        with self._lock:
            held = self._held.get(slot)
        return held if held is not None and held.entry.generation == generation else None

    def _gather(self, pieces: list[Piece], offset: int, size: int) -> Buffer:
        out, done = np.empty(size, np.uint8), 0
        for piece in pieces:
            skip = min(offset, piece.length)
            offset -= skip
            here = min(piece.length - skip, size - done)
            if here:
                there = self._memory.read(piece.offset + skip, here)
                out[done : done + here] = np.frombuffer(there, np.uint8)
                done += here
        return out.data

    def _give_up(self, slot: int, generation: int) -> None:
        if self.erase(slot, generation) is Status.OK:
            with self._lock:
                self._corrupt += 1
                self._lost.append((slot, generation))

    def erase(self, slot: int, generation: int) -> Status:
        with self._lock:
            held = self._held.get(slot)
            if held is None or held.entry.generation != generation:
                return Status.MOVED
            del self._held[slot]
            self._free.give_back(held.pieces)
        return Status.OK

    def take_lost(self) -> list[tuple[int, int]]:
        with self._lock:
            lost, self._lost = self._lost, []
        return lost

    def save(self, notes: Notes) -> None:
        self.notes = notes

    def usage(self) -> dict[str, int]:
        with self._lock:
            used = self._memory.nbytes - self._free.free_bytes
            return {
                "objects": len(self._held),
                "size_bytes": used,
                "file_bytes": used,
                "limit_bytes": self._memory.nbytes,
                "corrupt_objects": self._corrupt,
            }

    def close(self) -> None:
        pass
