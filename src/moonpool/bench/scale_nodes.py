"""Simulated nodes: the real NodeMachine over agents that keep numbers instead of bytes.

An object is a number; its key follows from the number, so that ten millions of them cost columns of
16 bytes a slot and no heap.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from moonpool.pool import messages as m
from moonpool.pool.agent import U8, U32, U64
from moonpool.pool.catalog.base import I64, Bool
from moonpool.pool.node_machine import NodeMachine

KEY_BYTES: Final = 80
OBJECT_BYTES: Final = 16 << 10
CHANGES_KEPT: Final = 65_536
_PREFIX: Final = b"bench/model-layout/"
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_SHIFTS: Final = np.arange(60, -4, -4, dtype=np.uint64)
_SEALED, _RETIRED = 1, 2


def keys_of(numbers: I64) -> m.KeyColumn:
    """Keys of 80 bytes, as an engine's: a model's prefix and what looks like a digest."""
    digits = np.empty((numbers.size, KEY_BYTES), np.uint8)
    digits[:, : len(_PREFIX)] = np.frombuffer(_PREFIX, np.uint8)
    mixed = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    hexes = _HEX[(mixed[:, None] >> _SHIFTS) & np.uint64(15)]
    plain = _HEX[(numbers.astype(np.uint64)[:, None] >> _SHIFTS) & np.uint64(15)]
    digest = np.concatenate([hexes, plain, hexes, plain], axis=1)
    digits[:, len(_PREFIX) :] = digest[:, : KEY_BYTES - len(_PREFIX)]
    ends = np.arange(1, numbers.size + 1, dtype=np.uint32) * np.uint32(KEY_BYTES)
    return m.KeyColumn(digits.tobytes(), ends.tobytes())


class _Changes(NamedTuple):
    """Of one call; as they were at that moment."""

    sequence: U64
    kind: U8
    slot: U32
    generation: U64
    term: U64
    seq: U64


_NONE: Final = _Changes(
    np.zeros(0, np.uint64),
    np.zeros(0, np.uint8),
    np.zeros(0, np.uint32),
    np.zeros(0, np.uint64),
    np.zeros(0, np.uint64),
    np.zeros(0, np.uint64),
)


class NumberedAgent:
    """A segment's tables and no segment: `number` i64[slots] of what is sealed, -1 nothing."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.term = 0
        self.sequence = 0
        self.valid_until_ns = 0
        self.number: I64 = np.full(slots, -1, np.int64)
        self.seq: U64 = np.zeros(slots, np.uint64)
        self.value_term: U64 = np.zeros(slots, np.uint64)
        self.generation: U32 = np.zeros(slots, np.uint32)
        self._free = np.arange(slots - 1, -1, -1, dtype=np.uint32)
        self._free_count = slots
        self._changes: list[_Changes] = []
        self._instance = b""

    @property
    def data_bytes(self) -> int:
        return self.slots * OBJECT_BYTES

    def usage(self) -> dict[str, int]:
        return {"sealed": self.slots - self._free_count, "writing": 0}

    def raise_term(self, term: int, instance: bytes) -> bool:
        if term < self.term or (term == self.term and instance != self._instance):
            return False
        self.term, self._instance = term, instance
        return True

    def set_valid_until(self, boottime_ns: int) -> None:
        self.valid_until_ns = boottime_ns

    def seal(self, numbers: I64, sequences: U64) -> tuple[U32, U64]:
        """Take objects in; their slots and generations."""
        self._free_count -= numbers.size
        slots = self._free[self._free_count : self._free_count + numbers.size].copy()
        self.number[slots], self.seq[slots] = numbers, sequences
        self.value_term[slots] = self.term
        self.generation[slots] += 1
        self._note(_SEALED, slots)
        return slots, self.generation[slots].astype(np.uint64)

    def retire(self, slot: U32, generation: U64, term: int, hold_ms: int = 0) -> U8:
        good = (self.generation[slot] == generation) & (self.number[slot] >= 0)
        gone = slot[good]
        self.number[gone] = -1
        self._free[self._free_count : self._free_count + gone.size] = gone
        self._free_count += gone.size
        self._note(_RETIRED, gone)
        return np.where(good, 0, 1).astype(np.uint8)

    def _note(self, kind: int, slots: U32) -> None:
        if slots.size:
            n, first = slots.size, self.sequence + 1
            self._changes.append(
                _Changes(
                    np.arange(first, first + n, dtype=np.uint64),
                    np.full(n, kind, np.uint8),
                    slots,
                    self.generation[slots].astype(np.uint64),
                    self.value_term[slots],
                    self.seq[slots],
                )
            )
            self.sequence += n

    def expire(self, term: U64, seq: U64) -> int:
        return 0

    def drain(self) -> int:
        return 0

    def inventory(self, start_slot: int, slots_max: int) -> dict[str, Any]:
        stop = min(start_slot + slots_max, self.slots)
        held = np.flatnonzero(self.number[start_slot:stop] >= 0).astype(np.uint32)
        return {**self.inventory_of(held + np.uint32(start_slot)), "next_start": stop}

    def inventory_of(self, slots: U32) -> dict[str, Any]:
        here: Bool = self.number[slots] >= 0
        slots = slots[here]
        n = slots.size
        keys = keys_of(self.number[slots])
        return {
            "slot": slots,
            "generation": self.generation[slots].astype(np.uint64),
            "term": self.value_term[slots],
            "seq": self.seq[slots],
            "size": np.full(n, OBJECT_BYTES, np.uint64),
            "crc": np.zeros(n, np.uint32),
            "tenant": np.zeros(n, np.uint32),
            "expiry_ms": np.zeros(n, np.int64),
            "last_used": np.zeros(n, np.uint32),
            "replicas": np.ones(n, np.uint8),
            "pin": np.zeros(n, np.uint8),
            "keys": keys.blob,
            "key_ends": np.frombuffer(keys.ends, np.uint32),
            "parents": b"",
            "parent_ends": np.zeros(n, np.uint32),
        }

    def changes(self, after_sequence: int, changes_max: int) -> dict[str, Any] | None:
        """Those of the calls after that number; what was told is forgotten."""
        del changes_max
        left = [one for one in self._changes if int(one.sequence[0]) > after_sequence]
        self._changes = []
        if sum(one.slot.size for one in left) > CHANGES_KEPT:
            return None
        left.append(_NONE)
        columns = (np.concatenate(some) for some in zip(*left, strict=True))
        return dict(zip(_Changes._fields, columns, strict=True))

    def tombstone_add(self, hash: bytes, term: int, seq: int) -> int:
        return 0

    def tombstone_remove(self, hash: bytes) -> bool:
        return False

    def tombstones(self) -> tuple[bytes, U64, U64]:
        return b"", np.zeros(0, np.uint64), np.zeros(0, np.uint64)


class SimulatedNode:
    """One node and its host: `session` is its connection to the master."""

    def __init__(self, number: int, slots: int) -> None:
        self.session = number + 1
        self.agent = NumberedAgent(slots)
        endpoint = m.SegmentEndpoint(
            0,
            number.to_bytes(16, "little"),
            f"node{number}",
            f"host{number}",
            capacity_bytes=slots * OBJECT_BYTES,
        )
        self.machine = NodeMachine(self.agent, endpoint)
