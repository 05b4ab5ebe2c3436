"""Promises to writers: one record per reserve call, found by attempt, by owner or by deadline.

An attempt is the version's sequence. A batch's attempts are consecutive, so that
`attempt - batch.first` is the place of a key in the batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator

import msgspec
import numpy as np

from moonpool._core import Table, join_keys
from moonpool.pool.catalog.base import I32, U16, U32, U64, Bool, Index

PARENT_GONE = -2


class PutRequest(msgspec.Struct, frozen=True, gc=False):
    """One reserve call, validated columns: n keys in one blob, `sizes` u64[n], `parent_of` i32[n]
    (index of an earlier key, -1 none, -2-j outside parent j)."""

    owner: int
    blob: bytes
    ends: U32
    sizes: U64
    parent_of: I32
    outside_blob: bytes
    outside_ends: U32
    replicas: int = 1
    min_replicas: int = 1
    pin: int = 0
    pin_ttl_ms: int = 0
    pin_refresh: bool = False
    group: bytes = b""
    expiry_ms: int = 0
    tenant: int = 0
    chain: bool = False
    replace: bool = False
    prefer_segment: int = -1
    host_id: str = ""


class Batch(msgspec.Struct, gc=False):
    """Columns of the granted keys of one reserve call, `g` of them, in attempt order.

    Most calls are granted as a whole and committed as a whole, and nobody asks them for `segments`,
    `replacing` or `open`: those are made when they are."""

    first: int
    owner: int  # session
    deadline: float
    rows: I32
    sizes: U64
    parents: I32
    open_count: int
    min_replicas: int
    wanted: int
    pin: int
    pin_ttl_ms: int
    pin_refresh: bool
    group: bytes
    tenant: int
    expiry_ms: int
    mixed: bool  # some key replaces
    source: PutRequest | None  # when the whole call was granted on one segment, one copy each:
    segment: int = -1  # that segment
    total_bytes: int = 0
    parent_keys: list[bytes] = []  # of a mixed batch (b"" none): replaced keys are linked at commit
    made_segments: U16 | None = None
    made_replacing: Bool | None = None
    made_open: Bool | None = None

    @property
    def segments(self) -> U16:
        """u16[g, replicas], NO_SEGMENT where fewer were granted."""
        made = self.made_segments
        if made is None:
            made = self.made_segments = np.full((self.rows.size, 1), self.segment, np.uint16)
        return made

    @property
    def replacing(self) -> Bool:
        """The key had a value (or one nobody can read) when it was granted."""
        made = self.made_replacing
        if made is None:
            made = self.made_replacing = np.zeros(self.rows.size, np.bool_)
        return made

    @property
    def open(self) -> Bool:
        """Not settled yet."""
        made = self.made_open
        if made is None:
            made = self.made_open = np.ones(self.rows.size, np.bool_)
        return made

    def parents_now(self, table: Table) -> I32:
        """Rows of the parents as they are now. A row that nothing was linked to may have gone
        meanwhile, or belong to another key: PARENT_GONE unless the key is there again."""
        named = np.flatnonzero(self.parents >= 0)
        if not self.mixed or named.size == 0:
            return self.parents
        blob, ends = join_keys([self.parent_keys[i] for i in named.tolist()])
        found = table.find(blob, np.frombuffer(ends, np.uint32))
        now = self.parents.copy()
        now[named] = np.where(found >= 0, found, PARENT_GONE)
        return now

    @property
    def whole(self) -> bool:
        """Granted as a whole, on one segment, and nothing of it is settled yet."""
        return self.source is not None and self.open_count == self.rows.size


def keys_of(table: Table, rows: I32) -> list[bytes]:
    """Keys of these rows, b"" for -1."""
    return [b"" if row < 0 else table.key(row) for row in rows.tolist()]


class Reservations:
    """Every open batch; batches close when their last key is settled."""

    def __init__(self, reservations_max: int) -> None:
        self._max = reservations_max
        # In order of `first`, which is also the order of deadlines: both only grow.
        self._batches: OrderedDict[int, Batch] = OrderedDict()
        self._firsts: list[int] = []
        self._owners: dict[int, set[int]] = {}
        self.keys = 0

    def __len__(self) -> int:
        return self.keys

    @property
    def left(self) -> int:
        return self._max - self.keys

    def add(self, batch: Batch) -> None:
        self._batches[batch.first] = batch
        self._firsts.append(batch.first)
        self._owners.setdefault(batch.owner, set()).add(batch.first)
        self.keys += batch.open_count

    def get(self, first: int) -> Batch | None:
        return self._batches.get(first)

    def find(self, attempt: int) -> Batch | None:
        """The open batch that holds this attempt, the attempt itself open or not."""
        at = bisect_right(self._firsts, attempt) - 1
        if at < 0:
            return None
        batch = self._batches[self._firsts[at]]
        return batch if attempt < batch.first + batch.rows.size else None

    def replaces(self, attempt: int, table: Table) -> None:
        """An inventory brought a value of a key that was granted as a fresh one."""
        batch = self.find(attempt)
        if batch is None or batch.mixed:
            return
        batch.parent_keys = keys_of(table, batch.parents)
        batch.mixed, batch.source = True, None

    def is_open(self, attempt: int) -> bool:
        batch = self.find(attempt)
        return batch is not None and bool(batch.open[attempt - batch.first])

    def close(self, batch: Batch, places: Index) -> None:
        """These keys of the batch are settled."""
        batch.open[places] = False
        batch.open_count -= len(places)
        self.keys -= len(places)
        if batch.open_count == 0:
            self._forget(batch)

    def close_whole(self, batch: Batch) -> None:
        """The same for a batch of which nothing was settled before."""
        self.keys -= batch.open_count
        batch.open_count = 0
        self._forget(batch)

    def _forget(self, batch: Batch) -> None:
        del self._batches[batch.first]
        del self._firsts[bisect_right(self._firsts, batch.first) - 1]
        owned = self._owners[batch.owner]
        owned.remove(batch.first)
        if not owned:
            del self._owners[batch.owner]

    def of_owner(self, owner: int) -> list[Batch]:
        return [self._batches[first] for first in sorted(self._owners.get(owner, ()))]

    def expired(self, now: float) -> list[Batch]:
        """Batches whose deadline has passed, oldest first."""
        gone = []
        for batch in self._batches.values():
            if batch.deadline > now:
                break
            gone.append(batch)
        return gone

    @property
    def oldest(self) -> int | None:
        """The first attempt of the oldest open batch."""
        return self._firsts[0] if self._firsts else None

    @property
    def next_deadline(self) -> float | None:
        return next(iter(self._batches.values())).deadline if self._batches else None

    def __iter__(self) -> Iterator[Batch]:
        return iter(list(self._batches.values()))
