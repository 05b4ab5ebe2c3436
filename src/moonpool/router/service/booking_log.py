"""What one router booked, numbered, for its peers to follow. Pure.

A follower asks for what came after a number of an epoch (one life of the router). It gets the
entries, or, when they are gone or the epoch is another, all living bookings with the number they
stand for; so nothing is lost by a gap, only late.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from moonpool.router.base import Role
from moonpool.router.hashing import HASH_VERSION

ENTRIES_MAX: Final = 65_536
PAGE_MAX: Final = 4096


class Booked(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A request went to a worker; `hashes` are its prefix hashes, u64 little-endian."""

    id: str
    worker: str
    rank: int
    role: Role
    model: str
    prompt_tokens: int
    hashes: bytes


class Prefilled(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Its first token came."""

    id: str


class Freed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """It is over."""

    id: str


Entry = Booked | Prefilled | Freed


class Page(msgspec.Struct, frozen=True, array_like=True):
    """An answer to a follower: after `entries` it is at `number` of `epoch`."""

    epoch: str
    number: int
    whole: bool
    """True: `entries` are all living bookings, forget what you had."""
    entries: list[Entry]
    hash_version: int = 1
    """Of the hashes in them; routers from before it was told have the first."""


class BookingLog:
    """The writer's side."""

    def __init__(self, epoch: str, entries_max: int = ENTRIES_MAX) -> None:
        self.epoch = epoch
        self.number = 0
        """Of the last entry."""
        self._entries: deque[Entry] = deque(maxlen=entries_max)
        self._living: dict[str, list[Entry]] = {}

    def add(self, entry: Entry) -> None:
        self.number += 1
        self._entries.append(entry)
        if isinstance(entry, Freed):
            self._living.pop(entry.id, None)
        elif isinstance(entry, Booked):
            self._living[entry.id] = [entry]
        elif entry.id in self._living:
            self._living[entry.id].append(entry)

    @property
    def living(self) -> list[str]:
        """Names of the bookings that are not over."""
        return list(self._living)

    def page(self, epoch: str, after: int) -> Page:
        """What a follower lacks that is at `after` of `epoch`."""
        oldest = self.number - len(self._entries)
        if epoch != self.epoch or not oldest <= after <= self.number:
            living = [entry for entries in self._living.values() for entry in entries]
            return Page(self.epoch, self.number, True, living, HASH_VERSION)
        first = after - oldest
        last = min(first + PAGE_MAX, len(self._entries))
        entries = [self._entries[i] for i in range(first, last)]
        return Page(self.epoch, after + len(entries), False, entries, HASH_VERSION)


class BookingFollower:
    """The reader's side: where it is, and what a page changes."""

    def __init__(self) -> None:
        self.epoch = ""
        self.number = 0
        self.living: set[str] = set()

    def follow(self, page: Page) -> list[Entry]:
        """What to do now, in order: a whole page begins with the end of all that was known."""
        done: list[Entry] = []
        if page.whole or page.epoch != self.epoch:
            done += self.forget()
        self.epoch, self.number = page.epoch, page.number
        for entry in page.entries:
            if isinstance(entry, Booked):
                if entry.id in self.living:
                    continue
                self.living.add(entry.id)
                # Its load counts; where its prefix went only those of its version know.
                if page.hash_version != HASH_VERSION:
                    entry = msgspec.structs.replace(entry, hashes=b"")
            elif entry.id not in self.living:
                continue
            elif isinstance(entry, Freed):
                self.living.discard(entry.id)
            done.append(entry)
        return done

    def forget(self) -> list[Entry]:
        """The other router is gone: its bookings end, and the next page is a whole one."""
        done: list[Entry] = [Freed(name) for name in sorted(self.living)]
        self.living.clear()
        self.epoch, self.number = "", 0
        return done
