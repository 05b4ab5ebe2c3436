"""One commit call: what it asks for, and which of its attempts and replicas count."""

from __future__ import annotations

import msgspec
import numpy as np

from moonpool.pool.catalog.base import I32, NO_SEGMENT, U8, U16, U32, U64, Bool, Index
from moonpool.pool.catalog.reservations import Batch, Reservations
from moonpool.pool.catalog.rows import Rows


class CommitRequest(msgspec.Struct, frozen=True, gc=False):
    """m attempts in chain order and their sealed replicas, flattened: `counts` u8[m], the other
    replica columns one entry per replica."""

    term: int
    rows: I32
    attempts: U64
    crcs: U32
    counts: U8
    segments: U16
    slots: U32
    generations: U64


class CheckedCommit:
    """The attempts of one commit whose reservation is open, with the replicas that count."""

    def __init__(
        self, rows: Rows, reservations: Reservations, call: CommitRequest, places: Index
    ) -> None:
        self.places = places
        self.call = call
        self.rows = call.rows[places]
        self.attempts = call.attempts[places]
        self.crcs = call.crcs[places]
        self.single = call.counts.size == call.segments.size and bool((call.counts == 1).all())
        self._find_batches(rows, reservations)
        self.good = np.zeros(places.size, np.bool_)
        self._check_replicas(rows)

    def _find_batches(self, rows: Rows, reservations: Reservations) -> None:
        firsts = np.array([_batch_of(reservations, a) for a in self.attempts.tolist()], np.uint64)
        self.indexes = (self.attempts - firsts).astype(np.int64)
        self.parents = np.full(self.rows.size, -1, np.int32)
        self.batches: list[tuple[Batch, slice | Index]] = []
        wheres: list[tuple[int, slice | Index]]
        if (firsts == firsts[0]).all():
            wheres = [(int(firsts[0]), slice(None))]
        else:
            wheres = [(int(first), np.flatnonzero(firsts == first)) for first in np.unique(firsts)]
        for first, where in wheres:
            batch = reservations.get(first)
            assert batch is not None, first
            self.batches.append((batch, where))
            self.parents[where] = batch.parents_now(rows.table)[self.indexes[where]]

    def _check_replicas(self, rows: Rows) -> None:
        """A replica counts when its segment was promised, once; enough of them make a value."""
        call = self.call
        counts = call.counts[self.places].astype(np.int64)
        if self.places.size == call.rows.size:
            where: slice | Index = slice(None)
        else:
            chosen = np.zeros(call.rows.size, np.bool_)
            chosen[self.places] = True
            where = np.flatnonzero(np.repeat(chosen, call.counts))
        self.segments = call.segments[where]
        self.slots = call.slots[where]
        self.generations = call.generations[where]
        if self.single:
            self.owner_index = np.arange(self.places.size)
        else:
            self.owner_index = np.repeat(np.arange(self.places.size), counts)
        fits = np.zeros(self.segments.size, np.bool_)
        minimum = np.zeros(self.places.size, np.int64)
        for batch, at in self.batches:
            minimum[at] = batch.min_replicas
            if self.single:
                mine: slice | Index = at
            else:
                chosen = np.zeros(self.places.size, np.bool_)
                chosen[at] = True
                mine = np.flatnonzero(chosen[self.owner_index])
            promised = batch.segments[self.indexes[self.owner_index[mine]]]
            fits[mine] = (promised == self.segments[mine, None]).any(axis=1)
        fits &= self.segments != NO_SEGMENT
        safe = np.where(fits, self.segments, 0)
        fits &= self.slots < rows.segments.slots[safe]
        if not self.single:
            fits &= first_of_each(self.owner_index.astype(np.uint64) << 16 | self.segments)
        fits &= first_of_each(self.segments.astype(np.uint64) << 32 | self.slots)
        self.fits = fits
        enough = np.bincount(self.owner_index[fits], minlength=self.places.size)
        self.good = (enough >= minimum) & (enough > 0)

    def drop_refused(self) -> None:
        """Keep what is good, in every column."""
        if not (self.good.all() and self.fits.all()):
            keep = self.fits & self.good[self.owner_index]
            renumber = np.cumsum(self.good) - 1
            self.segments = self.segments[keep]
            self.slots = self.slots[keep]
            self.generations = self.generations[keep]
            self.owner_index = renumber[self.owner_index[keep]]
            self.batches = [
                (batch, renumber[np.arange(self.good.size)[where][self.good[where]]])
                for batch, where in self.batches
            ]
            self.rows, self.attempts = self.rows[self.good], self.attempts[self.good]
            self.crcs, self.indexes = self.crcs[self.good], self.indexes[self.good]
            self.parents = self.parents[self.good]
        self.owners = self.rows if self.single else self.rows[self.owner_index]

    def owner_attempts(self) -> U64:
        return self.attempts if self.single else self.attempts[self.owner_index]

    def owner_crcs(self) -> U32:
        return self.crcs if self.single else self.crcs[self.owner_index]


def _batch_of(reservations: Reservations, attempt: int) -> int:
    batch = reservations.find(attempt)
    assert batch is not None, attempt
    return batch.first


def first_of_each(values: Index) -> Bool:
    """True where a value appears for the first time."""
    if values.size < 2 or np.unique(values).size == values.size:
        return np.ones(values.size, np.bool_)
    _, first = np.unique(values, return_index=True)
    once = np.zeros(values.size, np.bool_)
    once[first] = True
    return once
