"""The one owner of a tier's slots: grants, seals, retires, and says what is there. No thread.

It speaks like a memory segment's agent, so a node and the master treat a tier as one more segment,
of another medium: terms, inventories, numbered changes and tombstones are the same.

    free --claim--> writing --seal--> sealed --retire--> free
Generations are made of the wall clock and never repeat, so a placement of an earlier life is stale.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any, NamedTuple

import msgspec
import numpy as np

from moonpool.pool.agent import U8, U32, U64
from moonpool.pool.columns import pack_keys
from moonpool.pool.tiers.base import Entry, Status, Store

CHANGES_KEPT = 65_536
TOMBSTONES_MAX = 4096
HEARD_EVERY_MS = 30_000  # how exactly the store knows when a master was heard last
GENERATION_SHIFT = 12
SEALED, FREED = 1, 3


class _Change(NamedTuple):
    sequence: int
    kind: int
    slot: int
    generation: int
    term: int
    seq: int


class TierAgent:
    """`capacity_bytes` and `slots` bound what the master may place here."""

    def __init__(self, store: Store, capacity_bytes: int, slots: int) -> None:
        self.store = store
        self.capacity_bytes = capacity_bytes
        self.slots = slots
        self.valid_until_ns = 0
        self.sequence = 0
        self._notes = store.notes
        self._dirty = False
        self._sealed: dict[int, Entry] = {}
        self._writing: dict[int, Entry] = {}
        self._given_up: set[int] = set()  # generations, of what is being written
        self._changes: deque[_Change] = deque(maxlen=CHANGES_KEPT)
        self._generation = 0
        for entry in store.entries():
            if entry.slot < slots:
                self._sealed[entry.slot] = entry
                self._generation = max(self._generation, entry.generation)
            else:  # the tier is smaller than it was
                store.erase(entry.slot, entry.generation)
        self._free: deque[int] = deque()
        self._fresh = max(self._sealed, default=-1) + 1  # slots from here on were never used
        self._free.extend(slot for slot in range(self._fresh) if slot not in self._sealed)

    @property
    def incarnation(self) -> bytes:
        return self.store.incarnation

    @property
    def term(self) -> int:
        return self._notes.term

    @property
    def data_bytes(self) -> int:
        return self.capacity_bytes

    def usage(self) -> dict[str, int]:
        return {
            "sealed": len(self._sealed),
            "writing": len(self._writing),
            **self.store.usage(),
        }

    # Terms and leases.

    def raise_term(self, term: int, instance: bytes) -> bool:
        """False: an older master, or another one of this term."""
        notes = self._notes
        if term < notes.term or (term == notes.term and instance != notes.instance):
            return False
        if (term, instance) != (notes.term, notes.instance):
            notes.term, notes.instance = term, instance
            self._dirty = True
            self._save()
        return True

    def set_valid_until(self, boottime_ns: int) -> None:
        self.valid_until_ns = max(self.valid_until_ns, boottime_ns)

    def heard(self, wall_ms: int, forget_ms: int) -> None:
        """A master was heard: the store's absence counts from now."""
        notes = self._notes
        if wall_ms - notes.heard_ms >= HEARD_EVERY_MS or forget_ms != notes.forget_ms:
            notes.heard_ms, notes.forget_ms = wall_ms, forget_ms
            self._dirty = True

    def drain(self) -> int:
        """Nothing here is pinned; notes that changed are kept now, and losses told."""
        for slot, generation in self.store.take_lost():
            entry = self._sealed.get(slot)
            if entry is not None and entry.generation == generation:
                self._freed(entry)
        self._save()
        return 0

    def _save(self) -> None:
        if self._dirty:
            with contextlib.suppress(OSError):  # a full disk: again with the next drain
                self.store.save(self._notes)
                self._dirty = False

    # Objects.

    def claim(self, entry: Entry, term: int, wall_ms: int) -> Entry | Status:
        """The entry with a slot and a generation of its own, to be written by the caller."""
        if term != self.term:
            return Status.STALE_TERM
        if self._free:
            slot = self._free.popleft()
        elif self._fresh < self.slots:
            slot = self._fresh
            self._fresh += 1
        else:
            return Status.NO_SLOT
        self._generation = max(self._generation + 1, wall_ms << GENERATION_SHIFT)
        claimed = msgspec.structs.replace(entry, slot=slot, generation=self._generation)
        self._writing[slot] = claimed
        return claimed

    def seal(self, entry: Entry, term: int) -> Status:
        """It was written; from now on it is readable, unless it was given up meanwhile."""
        given_up = entry.generation in self._given_up
        if given_up or term != self.term:
            self.abort(entry)
            return Status.EXPIRED if given_up else Status.STALE_TERM
        del self._writing[entry.slot]
        self._sealed[entry.slot] = entry
        self._changed(SEALED, entry)
        return Status.OK

    def abort(self, entry: Entry) -> None:
        """Call when nobody writes it any more."""
        self.store.erase(entry.slot, entry.generation)
        del self._writing[entry.slot]
        self._given_up.discard(entry.generation)
        self._free.append(entry.slot)

    def find(self, slot: int, generation: int, boottime_ns: int) -> Entry | Status:
        """EXPIRED: no master was heard for a lease, so it may have been removed."""
        if boottime_ns >= self.valid_until_ns:
            return Status.EXPIRED
        entry = self._sealed.get(slot)
        if entry is None or entry.generation != generation:
            return Status.MOVED
        return entry

    def retire(self, slot: U32, generation: U64, term: int, hold_ms: int = 0) -> U8:
        """Nothing is held: a lease keeps memory, and there is none here."""
        if term != self.term:
            return np.full(slot.size, Status.STALE_TERM, np.uint8)
        pairs = zip(slot.tolist(), generation.tolist(), strict=True)
        return np.array([self._retire(one, number) for one, number in pairs], np.uint8)

    def _retire(self, slot: int, generation: int) -> Status:
        writing = self._writing.get(slot)
        if writing is not None and writing.generation == generation:
            self._given_up.add(generation)
            return Status.OK
        entry = self._sealed.get(slot)
        if entry is None or entry.generation != generation:
            return Status.MOVED
        self.store.erase(slot, generation)
        self._freed(entry)
        return Status.OK

    def expire(self, term: U64, seq: U64) -> int:
        dead = set(zip(term.tolist(), seq.tolist(), strict=True))
        held = [*self._writing.values(), *self._sealed.values()]
        some = [one for one in held if (one.term, one.sequence) in dead]
        for one in some:
            self._retire(one.slot, one.generation)
        return len(some)

    def _freed(self, entry: Entry) -> None:
        del self._sealed[entry.slot]
        self._free.append(entry.slot)
        self._changed(FREED, entry)

    def _changed(self, kind: int, entry: Entry) -> None:
        self.sequence += 1
        self._changes.append(
            _Change(self.sequence, kind, entry.slot, entry.generation, entry.term, entry.sequence)
        )

    # Reports.

    def inventory(self, start_slot: int, slots_max: int) -> dict[str, Any]:
        end = min(start_slot + slots_max, self.slots)
        sealed = self._sealed
        if start_slot >= self._fresh:
            end = self.slots
        some = [sealed[s] for s in range(start_slot, min(end, self._fresh)) if s in sealed]
        return {
            **self._columns(some),
            "next_start": end if end < self._fresh else self.slots,
            "sequence": self.sequence,
        }

    def inventory_of(self, slots: U32) -> dict[str, Any]:
        """The same of those of these slots that are sealed."""
        return self._columns([self._sealed[s] for s in slots.tolist() if s in self._sealed])

    @staticmethod
    def _columns(some: list[Entry]) -> dict[str, Any]:
        keys = pack_keys([one.key for one in some])
        parents = pack_keys([one.parent for one in some])
        return {
            "slot": np.array([one.slot for one in some], np.uint32),
            "generation": np.array([one.generation for one in some], np.uint64),
            "term": np.array([one.term for one in some], np.uint64),
            "seq": np.array([one.sequence for one in some], np.uint64),
            "size": np.array([one.size for one in some], np.uint64),
            "crc": np.array([one.crc for one in some], np.uint32),
            "tenant": np.array([one.tenant for one in some], np.uint32),
            "expiry_ms": np.array([one.expiry_ms for one in some], np.int64),
            "last_used": np.array(
                [(one.generation >> GENERATION_SHIFT) // 1000 & 0xFFFFFFFF for one in some],
                np.uint32,
            ),
            "replicas": np.array([one.replicas for one in some], np.uint8),
            "pin": np.array([one.pin for one in some], np.uint8),
            "keys": keys.blob,
            "key_ends": np.frombuffer(keys.ends, np.uint32),
            "parents": parents.blob,
            "parent_ends": np.frombuffer(parents.ends, np.uint32),
        }

    def changes(self, after_sequence: int, changes_max: int) -> dict[str, Any] | None:
        kept = self._changes
        if self.sequence > after_sequence and (not kept or kept[0].sequence > after_sequence + 1):
            return None
        some = [one for one in kept if one.sequence > after_sequence][:changes_max]
        columns = [*zip(*some, strict=True)] or [()] * 6
        dtypes = (np.uint64, np.uint8, np.uint32, np.uint64, np.uint64, np.uint64)
        names = ("sequence", "kind", "slot", "generation", "term", "seq")
        return {
            name: np.array(column, dtype)
            for name, column, dtype in zip(names, columns, dtypes, strict=True)
        }

    # Tombstones.

    def tombstone_add(self, hash: bytes, term: int, seq: int) -> int:
        tombs = self._notes.tombstones
        if hash not in tombs and len(tombs) >= TOMBSTONES_MAX:
            return int(Status.NO_SPACE)
        tombs[hash] = max((term, seq), tombs.get(hash, (0, 0)))
        self._dirty = True
        return int(Status.OK)

    def tombstone_remove(self, hash: bytes) -> bool:
        self._dirty = True
        return self._notes.tombstones.pop(hash, None) is not None

    def tombstones(self) -> tuple[bytes, U64, U64]:
        tombs = self._notes.tombstones
        return (
            b"".join(tombs),
            np.array([term for term, _ in tombs.values()], np.uint64),
            np.array([seq for _, seq in tombs.values()], np.uint64),
        )

    def close(self) -> None:
        self._save()
        self.store.close()
