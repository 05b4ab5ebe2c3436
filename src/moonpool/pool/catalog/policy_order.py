"""The shared policies of `moonpool.pool.eviction` as orders of the catalog, one for each segment.

A policy knows digests of keys, so that it may remember what left. P9 stands above it: the victim is
its first choice among objects without children; only when there is none, or none among many, one
goes that takes its descendants along.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from moonpool._core import Table
from moonpool.pool.catalog.base import CHOSEN, COMMITTED, I32, KEPT, RESERVED, U64
from moonpool.pool.catalog.needs import Need
from moonpool.pool.catalog.standing import ORPHANS, RANK_MAX, Standing
from moonpool.pool.eviction import EvictionPolicy

_CANDIDATES = 64


class _Book:
    """What one segment's policy has been told."""

    def __init__(self, policy: EvictionPolicy[int]) -> None:
        self.policy = policy
        self.replicas: dict[int, int] = {}  # of digests that have a value here
        self.promised: set[int] = set()
        self.ends: set[int] = set()  # of those, all without children, and perhaps others


class PolicyOrder:
    """Memory: a few hundred bytes of Python for each object, besides the table's."""

    touches_ancestors = False
    keeps_books = True
    binding = True

    def __init__(
        self,
        table: Table,
        segments_max: int,
        standing: Standing,
        make: Callable[[int], EvictionPolicy[Any]],
    ) -> None:
        self._table = table
        self._orphans_from = ORPHANS * segments_max
        self._segments_max = segments_max
        self.standing = standing
        self._make = make
        self._books: dict[int, _Book] = {}
        self._digests = np.zeros(table.rows_max, np.int64)

    # What goes.

    def candidates(self, need: Need) -> Generator[I32, None, None]:
        orphans, skip = self._orphans_from + need.segment.id, 0
        while (batch := self._table.list_tail(orphans, _CANDIDATES, skip)).size:
            yield batch
            skip += batch.size
        book = self._books.get(need.segment.id)
        if book is not None:
            yield from self._choices(book, need)

    def _choices(self, book: _Book, need: Need) -> Generator[I32, None, None]:
        segment = need.segment
        if segment.objects:
            fitting = segment.capacity_bytes * segment.objects // max(segment.committed_bytes, 1)
            book.policy.resize(max(1, min(fitting, segment.slots)))
        search = _Search(self, self._table, book, need.only)
        coming = _Coming(self, book, need)
        try:
            while True:
                digest = book.policy.victim(search, coming.next())
                if digest is None and not search.widen():
                    break
                elif digest is None:
                    continue
                elif (replica := book.replicas.get(digest, -1)) >= 0:
                    search.offer(digest, int(self._table.replica_object[replica]))
                    yield np.array([replica], np.int32)
        finally:
            for digest in search.refused():
                book.policy.add(digest)

    # What it is told.

    def touched(self, rows: I32, sequences: U64) -> int:
        table = self._table
        count = table.touch_objects(rows, sequences)
        if count == 0:
            return 0
        current = (rows >= 0) & (rows < table.rows_max)
        safe = np.where(current, rows, 0)
        current &= (table.seq[safe] == sequences) & (table.state[safe] == COMMITTED)
        read = rows[current]
        again = read[:0]
        if np.unique(read).size < read.size:  # each read counts, of ancestors one for all of them
            _, first = np.unique(read, return_index=True)
            again = np.delete(read, first)
        for row in np.concatenate([again, table.ancestors_order(read)]).tolist():
            self._used(row)
        return count

    def _used(self, row: int) -> None:
        table = self._table
        digest = int(self._digests[row])
        replica = int(table.replica[row])
        while replica >= 0:
            book = self._books.get(int(table.replica_segment[replica]))
            if book is not None and digest in book.policy:
                book.policy.touch(digest)
            replica = int(table.replica_next[replica])

    def spared(self, segment: int, replicas: I32) -> None:
        """Orphans that may not go; others that may not are never offered."""
        kinds = self._table.replica_list[replicas] // self._segments_max
        self._table.list_touch(replicas[kinds == ORPHANS])

    def put_back(self, segment: int, replicas: I32) -> None:
        """As if they had come now: their place is not known any more."""
        book = self._books[segment] if segment in self._books else self._open(segment)
        for replica in replicas.tolist():
            digest = int(self._digests[self._table.replica_object[replica]])
            if digest not in book.policy:
                book.policy.add(digest)

    def came(self, segment: int, replicas: I32) -> None:
        book = self._books.get(segment) or self._open(segment)
        rows = self._table.replica_object[replicas]
        digests = self._name(rows)
        depths = self._depths(rows)
        for digest, replica, depth in zip(digests, replicas.tolist(), depths, strict=True):
            book.promised.discard(digest)
            book.replicas[digest] = replica
            book.ends.add(digest)
            if digest not in book.policy:
                book.policy.add(digest, depth)

    def left(self, segment: int, replicas: I32) -> None:
        book = self._books.get(segment)
        if book is None:
            return
        digests = self._digests[self._table.replica_object[replicas]].tolist()
        for digest, replica in zip(digests, replicas.tolist(), strict=True):
            if book.replicas.get(digest) == replica:
                del book.replicas[digest]
                book.ends.discard(digest)
                if digest in book.policy:
                    book.policy.remove(digest)

    def childless(self, rows: I32) -> None:
        table = self._table
        _, replicas = table.replicas_of(rows)
        digests = self._digests[table.replica_object[replicas]].tolist()
        for digest, segment in zip(digests, table.replica_segment[replicas].tolist(), strict=True):
            if segment in self._books:
                self._books[segment].ends.add(digest)

    def given_up(self, rows: I32) -> None:
        open_books = [book for book in self._books.values() if book.promised]
        if not open_books:
            return
        for digest in self._digests[rows].tolist():
            for book in open_books:
                if digest in book.promised:
                    book.promised.remove(digest)
                    book.policy.remove(digest)

    def promise(self, book: _Book, row: int) -> None:
        """Room was made for this object: it counts from now on, though it may not go yet."""
        (digest,) = self._name(np.array([row], np.int32))
        if digest not in book.policy:
            (depth,) = self._depths(np.array([row], np.int32))
            book.policy.add(digest, depth)
            book.promised.add(digest)

    def name_of(self, row: int) -> int:
        (digest,) = self._name(np.array([row], np.int32))
        return digest

    def _open(self, segment: int) -> _Book:
        book = self._books[segment] = _Book(self._make(self._table.rows_max))
        return book

    def _name(self, rows: I32) -> list[int]:
        """Digests of these rows' keys: of this process only, they never leave it."""
        blob, ends = self._table.keys(rows)
        stops = ends.tolist()
        digests = [hash(blob[a:b]) for a, b in zip([0, *stops], stops, strict=False)]
        self._digests[rows] = digests
        return digests

    def _depths(self, rows: I32) -> list[int]:
        """How many ancestors each has."""
        parent = self._table.parent
        known: dict[int, int] = {-1: -1}
        depths = []
        for row in rows.tolist():
            path = [row]
            while path[-1] not in known:
                path.append(int(parent[path[-1]]))
            depth = known[path.pop()]
            while path:
                depth += 1
                known[path.pop()] = depth
            depths.append(known[row])
        return depths


class _Coming:
    """The objects that the room is for: each is told when its room is found."""

    def __init__(self, order: PolicyOrder, book: _Book, need: Need) -> None:
        self._order = order
        self._book = book
        self._need = need
        self._place = 0
        # What is free already takes the first of them.
        self._free = int(need.sizes.sum()) - need.size
        self._free_objects = need.coming.size - need.objects
        self._size = 0

    def next(self) -> int | None:
        """The next one that lacks room."""
        need, found = self._need, self._need.found
        while self._place < need.coming.size:
            row, size = int(need.coming[self._place]), int(need.sizes[self._place])
            room = self._size + size <= found.size + self._free
            if not (room and self._place < found.objects + self._free_objects):
                return self._order.name_of(row)
            self._order.promise(self._book, row)
            self._size += size
            self._place += 1
        return None


class _Search:
    """Says which digests may go, in one decision."""

    def __init__(self, order: PolicyOrder, table: Table, book: _Book, only: int) -> None:
        self._order = order
        self._table = table
        self._book = book
        self._only = only  # tenant whose objects may go, -1: all
        self.strict = True  # only objects without children
        self._rank = 0 if order.standing.used else RANK_MAX  # only up to this rank
        self.among: set[int] | None = book.ends
        self._chosen_children: dict[int, int] = {}
        self._offered: tuple[int, int] | None = None
        self._refused: list[int] = []

    def widen(self) -> bool:
        """Nothing without children may go: something that takes its descendants along, then; and
        then what stands more firmly. False: that was all."""
        if self.strict:
            self.strict, self.among = False, None
            return True
        self.strict, self.among = True, self._book.ends
        self._rank += 1
        return self._rank <= RANK_MAX

    def __call__(self, digest: int) -> bool:
        book = self._book
        if self.strict and digest not in book.ends:
            return False
        self._note()
        replica = book.replicas.get(digest)
        if replica is None:
            return digest not in book.promised
        table = self._table
        row = table.replica_object[replica]
        if table.flags[row] & KEPT or table.state[row] == RESERVED:
            return False
        if self._only >= 0 and table.tenant[row] != self._only:
            return False
        if self._rank < RANK_MAX and self._order.standing.rank(int(row)) > self._rank:
            return False
        children = int(table.children[row])
        if children == 0 or children == self._chosen_children.get(int(row), 0):
            return True
        if self.strict:
            book.ends.discard(digest)
        return not self.strict

    def offer(self, digest: int, row: int) -> None:
        self._note()
        self._offered = (digest, row)

    def refused(self) -> list[int]:
        """What was offered and nevertheless not taken, because of something below it."""
        self._note()
        return self._refused

    def _note(self) -> None:
        """What became of the last offer."""
        if self._offered is None:
            return
        (digest, row), self._offered = self._offered, None
        table = self._table
        if not table.flags[row] & CHOSEN:
            self._refused.append(digest)
            return
        parent = int(table.parent[row])
        if parent >= 0:
            chosen = self._chosen_children.get(parent, 0) + 1
            self._chosen_children[parent] = chosen
            if chosen == table.children[parent]:
                self._order.childless(np.array([parent], np.int32))
