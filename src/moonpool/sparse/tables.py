"""The tables of a sparse segment: pages, prefixes, leases. Pure: facts and time are arguments.

    entry   free -> writing (claim) -> sealed (first publish) -> free
                                          └-> retired (removed under leases) -> free
    page    free -> writing (one writer's) -> sealed (immutable) -> free with the next generation

Memory is given back in an order that readers can check: the entry says it is gone, the page words
take their next generation, and only then may a page be given to somebody else. Every change is made
under the pool's lock, store after store; whoever holds the lock next repairs what a killed process
left half done, from the entries: a page is somebody's only while a live entry counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moonpool import _core
from moonpool.core.errors import BadInput, MoonpoolError, PoolFull
from moonpool.sparse.layout import U8, U32
from moonpool.sparse.segment_format import (
    ENTRY,
    FREE,
    LEASE,
    NO_OWNER,
    PAGE_FREE,
    PAGE_SEALED,
    PAGE_WRITING,
    RETIRED,
    SEALED,
    WRITING,
    Geometry,
)

U64 = NDArray[np.uint64]
_GENERATION_SHIFT = np.uint64(2)
_STATE_MASK = np.uint64(3)
_FIELDS = ENTRY.fields
assert _FIELDS is not None


class Entry(NamedTuple):
    """One prefix, as its table row says."""

    number: int
    generation: int
    state: int
    tokens: int
    pages: int
    hint_tokens: int
    request: int


class Stores:
    """How changes reach the tables, one after another in this order. Tests end the process here."""

    def words(self, memory: U8, offsets: U64, values: U64) -> None:
        """u64 words that readers look at meanwhile."""
        _core.store_words(memory, offsets, values)

    def column(self, column: NDArray[Any], at: Any, value: Any) -> None:
        """What is only read under the lock."""
        column[at] = value


class Tables:
    """Over device 0's mapped bytes. Every method wants the pool's lock held."""

    def __init__(self, geometry: Geometry, memory: U8, stores: Stores | None = None) -> None:
        self.geometry = geometry
        self.memory = memory
        self._stores = stores or Stores()
        total = geometry.pages_total
        self.words = self._column(geometry.words_offset, total, np.uint64)
        self.owners = self._column(geometry.owners_offset, total, np.uint32)
        self.orders = self._column(geometry.orders_offset, total, np.uint32)
        self.marks = self._column(geometry.marks_offset, 2, np.uint64)
        self.entries = self._column(geometry.entries_offset, geometry.entries, ENTRY)
        self.leases = self._column(geometry.leases_offset, geometry.leases, LEASE)

    def format(self) -> None:
        """Fresh tables."""
        self.memory[self.geometry.marks_offset : self.geometry.hints_offset] = 0
        self.owners[:] = NO_OWNER

    # --- finding ----------------------------------------------------------------------------------

    def find(self, key: bytes) -> Entry | None:
        """The live prefix of this name, being written or sealed."""
        live = np.flatnonzero(
            (self.entries["state"] == WRITING) | (self.entries["state"] == SEALED)
        )
        for number in live.tolist():
            if self.entries["key"][number].tobytes() == key:
                return self.entry(number)
        return None

    def entry(self, number: int) -> Entry:
        row = self.entries[number]
        names = ("generation", "state", "tokens", "pages", "hint_tokens", "request")
        return Entry(number, *(int(row[name]) for name in names))

    def pages_of(self, entry: Entry) -> U32:
        """Its pages in order."""
        mine = np.flatnonzero(self.owners == entry.number).astype(np.uint32)
        return mine[np.argsort(self.orders[mine], kind="stable")][: entry.pages]

    def leased(self, entry: Entry, now_ns: int) -> bool:
        """Whether somebody still reads it."""
        return bool(
            np.any(
                (self.leases["entry"] == entry.number)
                & (self.leases["generation"] == entry.generation)
                & (self.leases["until_ns"] > now_ns)
            )
        )

    @property
    def free_pages(self) -> int:
        return int(np.count_nonzero((self.words & _STATE_MASK) == PAGE_FREE))

    # --- writing ----------------------------------------------------------------------------------

    def claim(self, key: bytes, now_ns: int, alive: Callable[[int], bool]) -> Entry:
        """A fresh entry under `key`. Raises BadInput when there is one, PoolFull without room."""
        if (there := self.find(key)) is not None:
            if there.state == SEALED or alive(there.number):
                state = "sealed" if there.state == SEALED else "being written"
                raise BadInput(f"a prefix under this key is {state} already; remove it first")
            self.release(there)
        number = self._free_entry(now_ns, alive)
        entry = self.entry(number)
        request = int(self.marks[1])
        self._stores.column(self.entries["key"], number, np.frombuffer(key, "V32")[0])
        self._set(number, generation=entry.generation + 1, tokens=0, pages=0, hint_tokens=0)
        self._set(number, used_ns=now_ns, request=request)
        self._set(number, state=WRITING)
        self._mark(1, request + 1)
        return self.entry(number)

    def extend(self, entry: Entry, pages: int, now_ns: int, alive: Callable[[int], bool]) -> Entry:
        """So many pages more for its writer. Raises PoolFull; nothing was taken then."""
        free = self.free_pages
        victims = []
        for victim in self._victims(now_ns, alive, entry.number) if free < pages else ():
            victims.append(victim)
            free += victim.pages
            if free >= pages:
                break
        if free < pages:
            raise PoolFull(
                f"{pages} pages are wanted, {free} could be free and the rest is being written "
                "or read; remove prefixes, or create a larger pool"
            )
        for victim in victims:
            self.release(victim)
        chosen = self._choose(entry, pages)
        self._stores.column(self.owners, chosen, np.uint32(entry.number))
        orders = np.arange(entry.pages, entry.pages + pages, dtype=np.uint32)
        self._stores.column(self.orders, chosen, orders)
        self._page_state(chosen, PAGE_WRITING)
        self._set(entry.number, pages=entry.pages + pages)
        return self.entry(entry.number)

    def publish(self, entry: Entry, tokens: int, now_ns: int, *, whole: bool) -> Entry:
        """Tokens 0..tokens-1 are readable from here on; with `whole` the last page, too."""
        per_page = self.geometry.layout.page_tokens
        done = -(-tokens // per_page) if whole else tokens // per_page
        pages = self.pages_of(entry)[:done]
        fresh = pages[(self.words[pages] & _STATE_MASK) == PAGE_WRITING]
        if len(fresh):
            self._page_state(fresh, PAGE_SEALED)
        self._set(entry.number, used_ns=now_ns, tokens=tokens if whole else done * per_page)
        self._set(entry.number, state=SEALED)
        return self.entry(entry.number)

    def trim(self, entry: Entry) -> Entry:
        """Gives back pages beyond what is published: nobody will write them."""
        keep = self.geometry.layout.pages(entry.tokens)
        extra = self.pages_of(entry)[keep:]
        self._set(entry.number, pages=keep)
        self._free_pages(extra)
        return self.entry(entry.number)

    def set_hint(self, entry: Entry, tokens: int) -> None:
        self._set(entry.number, hint_tokens=tokens)

    def remove(self, entry: Entry, now_ns: int) -> bool:
        """Not found from here on; its memory returns when the last lease has ended. True: now."""
        if self.leased(entry, now_ns):
            self._set(entry.number, state=RETIRED)
            return False
        self.release(entry)
        return True

    def release(self, entry: Entry) -> None:
        """Its pages are anybody's."""
        self._set(entry.number, generation=entry.generation + 1)
        self._set(entry.number, state=FREE)
        self._free_pages(np.flatnonzero(self.owners == entry.number).astype(np.uint32))

    def reap(self, now_ns: int, alive: Callable[[int], bool]) -> int:
        """Gives back what nobody will use: retired prefixes without a reader, prefixes whose writer
        died before its first publish, pages it had not sealed. How many pages."""
        before = self.free_pages
        for number in np.flatnonzero(self.entries["state"] != FREE).tolist():
            entry = self.entry(number)
            if (entry.state == RETIRED and not self.leased(entry, now_ns)) or (
                entry.state == WRITING and not alive(number)
            ):
                self.release(entry)
            elif entry.state == SEALED and not alive(number):
                if entry.pages > self.geometry.layout.pages(entry.tokens):
                    self.trim(entry)
        return self.free_pages - before

    # --- leases -----------------------------------------------------------------------------------

    def lease(self, entry: Entry, until_ns: int, now_ns: int) -> int:
        """A reader's place in the lease table. Raises PoolFull when all are taken."""
        free = np.flatnonzero(self.leases["until_ns"] <= now_ns)
        if not len(free):
            raise PoolFull(f"all {len(self.leases)} leases are taken; close readers")
        number = int(free[0])
        self._stores.column(self.leases["generation"], number, entry.generation)
        self._stores.column(self.leases["entry"], number, entry.number)
        self._stores.column(self.leases["until_ns"], number, until_ns)
        self._set(entry.number, used_ns=now_ns)
        return number

    def renew(self, lease: int, entry: Entry, until_ns: int, now_ns: int) -> bool:
        """False: it ran out, and its place or its prefix may be another's."""
        row = self.leases[lease]
        mine = int(row["entry"]) == entry.number and int(row["generation"]) == entry.generation
        if not mine or int(row["until_ns"]) <= now_ns:
            return False
        if int(self.entries["generation"][entry.number]) != entry.generation:
            return False
        self._stores.column(self.leases["until_ns"], lease, until_ns)
        return True

    # --- a killed process -------------------------------------------------------------------------

    @contextmanager
    def change(self) -> Iterator[None]:
        """Around every change: who finds the mark set repairs first. An error that was raised on
        purpose leaves tables that are whole."""
        if int(self.marks[0]):
            self.repair()
        self._mark(0, 1)
        try:
            yield
        except MoonpoolError:
            self._mark(0, 0)
            raise
        self._mark(0, 0)

    def repair(self) -> None:
        """Makes the tables whole again, from the entries."""
        live = self.entries["state"] != FREE
        owned = self.owners != NO_OWNER
        owner = np.where(owned, self.owners, 0)
        good = owned & live[owner] & (self.orders < self.entries["pages"][owner])
        good &= (self.words & _STATE_MASK) != PAGE_FREE
        stale = np.flatnonzero(~good & (owned | ((self.words & _STATE_MASK) != PAGE_FREE)))
        self._free_pages(stale.astype(np.uint32))
        for number in np.flatnonzero(live).tolist():
            entry = self.entry(number)
            if len(self.pages_of(entry)) != entry.pages:
                self.release(entry)
        self._mark(0, 0)

    # --- inside -----------------------------------------------------------------------------------

    def _column(self, offset: int, count: int, dtype: Any) -> NDArray[Any]:
        nbytes = np.dtype(dtype).itemsize * count
        return self.memory[offset : offset + nbytes].view(dtype)

    def _mark(self, which: int, value: int) -> None:
        at = self.geometry.marks_offset + 8 * which
        self._stores.words(self.memory, np.array([at], np.uint64), np.array([value], np.uint64))

    def _set(self, number: int, **fields: int) -> None:
        assert _FIELDS is not None
        base = self.geometry.entries_offset + ENTRY.itemsize * number
        offsets = np.array([base + _FIELDS[name][1] for name in fields], np.uint64)
        self._stores.words(self.memory, offsets, np.array(list(fields.values()), np.uint64))

    def _page_state(self, pages: U32, state: int) -> None:
        words = (self.words[pages] & ~_STATE_MASK) | np.uint64(state)
        self._store_pages(pages, words)

    def _free_pages(self, pages: U32) -> None:
        """Next generation first: a reader that still copies from them finds out."""
        if not len(pages):
            return
        generations = (self.words[pages] >> _GENERATION_SHIFT) + np.uint64(1)
        self._store_pages(pages, (generations << _GENERATION_SHIFT) | np.uint64(PAGE_FREE))
        self._stores.column(self.owners, pages, np.uint32(NO_OWNER))

    def _store_pages(self, pages: U32, words: U64) -> None:
        offsets = self.geometry.words_offset + 8 * pages.astype(np.uint64)
        self._stores.words(self.memory, offsets, np.ascontiguousarray(words))

    def _free_entry(self, now_ns: int, alive: Callable[[int], bool]) -> int:
        free = np.flatnonzero(self.entries["state"] == FREE)
        if len(free):
            return int(free[0])
        victims = self._victims(now_ns, alive, -1)
        if not victims:
            raise PoolFull(f"all {len(self.entries)} prefixes are being written or read")
        self.release(victims[0])
        return victims[0].number

    def _victims(self, now_ns: int, alive: Callable[[int], bool], keep: int) -> list[Entry]:
        """What may go, in order: what is dead anyway, then the prefix opened longest ago."""
        taken = np.flatnonzero(self.entries["state"] != FREE).tolist()
        found = [
            entry
            for entry in map(self.entry, taken)
            if entry.number != keep and not alive(entry.number) and not self.leased(entry, now_ns)
        ]
        used = self.entries["used_ns"]
        return sorted(found, key=lambda e: (e.state == SEALED, int(used[e.number])))

    def _choose(self, entry: Entry, count: int) -> U32:
        """Free pages for the entry's next `count`, spread over the devices as the pool says."""
        devices = self.geometry.devices
        free = np.flatnonzero((self.words & _STATE_MASK) == PAGE_FREE).astype(np.uint32)
        by_device = [free[free // self.geometry.pages == d].tolist() for d in range(devices)]
        for places in by_device:
            places.reverse()  # the lowest is taken first
        first = {"none": 0, "request": entry.request % devices, "page": entry.request % devices}[
            self.geometry.interleave
        ]
        chosen = []
        for order in range(entry.pages, entry.pages + count):
            wanted = first + order if self.geometry.interleave == "page" else first
            for step in range(devices):  # a full device does not make the pool full
                places = by_device[(wanted + step) % devices]
                if places:
                    chosen.append(places.pop())
                    break
        return np.array(chosen, np.uint32)
