"""One interface for every tier below memory: submit, poll, cancel. Nothing here does I/O.

A `Store` keeps objects and blocks; a `Tier` runs one behind a bounded queue, so that nobody waits
for a slow one. Objects are named by (slot, generation), as everywhere in the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from moonpool.core.status import BlockStatus

Status = BlockStatus
Buffer = Any  # anything with the buffer protocol
WHOLE = -1


class Entry(msgspec.Struct, frozen=True, gc=False):
    """What a stored object says of itself: all that a catalog needs to know it again."""

    slot: int
    generation: int
    key: bytes
    parent: bytes
    term: int
    sequence: int
    size: int
    crc: int
    tenant: int = 0
    expiry_ms: int = 0
    replicas: int = 1
    pin: int = 0


class Write(NamedTuple):
    entry: Entry
    data: Buffer


class Read(NamedTuple):
    slot: int
    generation: int
    offset: int = 0
    length: int = WHOLE


class Erase(NamedTuple):
    slot: int
    generation: int


TierOp = Write | Read | Erase


class Finished(NamedTuple):
    """An op is over; `data` is there when a read went well."""

    ticket: int
    status: Status
    data: Buffer | None = None


class Notes(msgspec.Struct):
    """What else outlives the process: whom the agent obeys, and removes that missed a replica."""

    term: int = 0
    instance: bytes = bytes(16)
    heard_ms: int = 0  # wall clock when a master was last heard
    forget_ms: int = 0  # away longer, it comes back empty; 0: never
    tombstones: dict[bytes, tuple[int, int]] = msgspec.field(default_factory=dict)


class Store(Protocol):
    """Objects on some medium. Calls block and come from several threads; `write` from one."""

    medium: str
    incarnation: bytes

    @property
    def notes(self) -> Notes: ...

    def entries(self) -> Sequence[Entry]:
        """Everything believed, as found at the start and changed since."""
        ...

    def write(self, entry: Entry, data: Buffer) -> Status: ...

    def read(self, slot: int, generation: int, offset: int, length: int) -> Buffer | Status:
        """A whole object is proved by its CRC; one that fails is CORRUPT and not kept."""
        ...

    def erase(self, slot: int, generation: int) -> Status:
        """MOVED when it is not there. Once answered it never comes back."""
        ...

    def take_lost(self) -> list[tuple[int, int]]:
        """(slot, generation) of what was there and is not any more, by no erase, since last."""
        ...

    def save(self, notes: Notes) -> None:
        """Keep these notes. Raises OSError."""
        ...

    def usage(self) -> dict[str, int]:
        """Counters; among them objects, size_bytes and file_bytes."""
        ...

    def close(self) -> None: ...


class Tier(Protocol):
    """A store behind a bounded queue. No call waits for the medium."""

    def submit(self, op: TierOp) -> int | None:
        """A ticket; None when the queue is full: not now."""
        ...

    def poll(self) -> list[Finished]:
        """What has ended since the last call, in the order in which it did."""
        ...

    def cancel(self, ticket: int) -> bool:
        """Whether it will not be begun; `poll` says CANCELLED then. What runs goes on."""
        ...
