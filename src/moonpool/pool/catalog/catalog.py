"""The catalog: which keys exist, where their replicas lie, who may write, what goes.

A pure state machine: time, wall time and randomness are arguments; no I/O, no threads, no clock.
It knows nothing of connections: an owner is a number. `MasterMachine` speaks for it.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np

from moonpool._core import Table
from moonpool.pool.catalog.admission import Admission
from moonpool.pool.catalog.admitted import Admitted, Whole
from moonpool.pool.catalog.base import (
    COMMITTED,
    I32,
    IN_FLIGHT,
    NO_SEGMENT,
    RESERVED,
    U8,
    U16,
    U32,
    U64,
    Bool,
    CatalogConfig,
    Expiry,
    Placement,
    Retirement,
    SegmentFacts,
)
from moonpool.pool.catalog.commits import CommitRequest
from moonpool.pool.catalog.copying import Copying
from moonpool.pool.catalog.distinct import distinct
from moonpool.pool.catalog.endings import Ended, Endings
from moonpool.pool.catalog.inventory import Inventory
from moonpool.pool.catalog.placement import one_more, placement_named
from moonpool.pool.catalog.reservations import Batch, PutRequest, Reservations
from moonpool.pool.catalog.room import Room
from moonpool.pool.catalog.rows import Rows
from moonpool.pool.catalog.settlement import Settled, Settlement
from moonpool.pool.catalog.standing import LISTS_PER_SEGMENT
from moonpool.pool.messages import LookupStatus, PutStatus
from moonpool.pool.tenancy.shares import Shares

SWEEP_ROWS = 16_384


# Plain numbers: a member of an enum costs as much as the comparison it is used in.
_NOBODY = np.zeros(0, np.bool_)
_FOUND, _ABSENT = int(LookupStatus.FOUND), int(LookupStatus.ABSENT)
_EVICTED = int(LookupStatus.EVICTED)
_LOOKUP_STATUS = np.full(256, _ABSENT, np.uint8)  # of a row in this state
_LOOKUP_STATUS[COMMITTED] = _FOUND
_LOOKUP_STATUS[RESERVED] = LookupStatus.IN_FLIGHT


class Placed(NamedTuple):
    """Lookup of n keys: `status` u8[n] of LookupStatus, `rows` i32[n]; replicas flattened."""

    status: U8
    rows: I32
    counts: U8
    replicas: I32


class Removal(NamedTuple):
    """A value that was taken away, and where its replicas lay."""

    key: bytes
    term: int
    sequence: int
    segments: tuple[int, ...]


class Heir(NamedTuple):
    """A waiter that inherits a key whose writer gave up."""

    owner: int
    until: float


def make_table(config: CatalogConfig) -> Table:
    """The native row table, sized for this configuration."""
    replicas = config.replica_rows_max or config.rows_max + config.rows_max // 2
    return Table(config.rows_max, replicas, LISTS_PER_SEGMENT * config.segments_max)


class Catalog:
    """One master's view of all objects. Batches in, decisions out."""

    def __init__(
        self,
        config: CatalogConfig,
        table: Table | None = None,
        *,
        term: int = 1,
        seed: int = 0,
        placement: Placement | None = None,
        shares: Shares | None = None,
    ) -> None:
        """`shares`: there are tenants, and what each may have."""
        self.config = config
        self.table = table if table is not None else make_table(config)
        self.rows = Rows(config, self.table, term, shares)
        self.segments = self.rows.segments
        self.events = self.rows.events
        self.leases = self.rows.leases
        self.reservations = Reservations(config.reservations_max)
        self.room = Room(self.rows)
        placement = placement or placement_named(config.placement)
        self.admission = Admission(self.rows, self.reservations, placement, self.room)
        self.endings = Endings(self.rows, self.reservations)
        self.settlement = Settlement(self.rows, self.reservations, self.endings)
        self.copying = Copying(self.rows)
        self.inventory = Inventory(self.rows, self.reservations, self.copying)
        self.heirs: dict[bytes, Heir] = {}
        self._random = random.Random(seed)
        self.placement = placement
        self._sweep_row = 0

    @property
    def term(self) -> int:
        return self.rows.term

    # Writing.

    def reserve(self, put: PutRequest, now: float, wall_ms: int) -> Admitted:
        """As `grant`, told key by key."""
        granted = self.grant(put, now, wall_ms)
        return granted.admitted([]) if isinstance(granted, Whole) else granted

    def grant(self, put: PutRequest, now: float, wall_ms: int) -> Admitted | Whole:
        """Ask for the right to write a batch; see `Admission`. ValueError for malformed keys."""
        foreign = self._foreign(put, now) if self.heirs else _NOBODY
        granted = self.admission.admit(put, self._random.random, now, wall_ms, foreign)
        if not self.heirs and self.config.high_watermark >= 1.0:
            return granted
        admitted = granted.admitted([]) if isinstance(granted, Whole) else granted
        if self.heirs:
            self._inherit(put, admitted)
        if self.config.high_watermark < 1.0:
            relief = self.room.relieve(wall_ms, now)
            admitted = admitted._replace(retirements=admitted.retirements + relief)
        return admitted

    def commit(self, call: CommitRequest, now: float, wall_ms: int) -> Settled:
        """Make sealed attempts visible; see `Settlement`."""
        settled = self.settlement.commit(call, now, wall_ms)
        if self.segments.tiered:
            self.rows.tiers.committed(call.rows[settled.status == PutStatus.COMMITTED])
        return settled

    def commit_usual(self, call: CommitRequest, now: float, wall_ms: int) -> bool:
        """The same where it is all of one batch that was granted whole, and nothing else follows
        from it. False: not so, and nothing has changed."""
        if self.segments.tiered:
            return False
        return self.settlement.commit_usual(call, now, wall_ms)

    def commits_whole(self, call: CommitRequest) -> bool:
        """Whether these are the rows of one batch that was granted whole: they hold nothing yet."""
        batch = self.reservations.find(int(call.attempts[0]))
        return batch is not None and batch.whole and batch.rows.tobytes() == call.rows.tobytes()

    def abort(self, rows: I32, attempts: U64, now: float) -> Ended:
        """The writer says that it is done and that its replicas shall not count."""
        return self.endings.end(rows, attempts, now)

    def reoffer(
        self, rows: I32, attempts: U64, failed: U16, host_id: str, now: float
    ) -> tuple[U16, list[Expiry]]:
        """Another segment for each attempt whose `failed` one could not take it; no eviction. Also
        what the failed ones may hold of it."""
        expiries: list[Expiry] = []
        offers = np.full(rows.size, NO_SEGMENT, np.uint16)
        for i, (row, attempt, segment) in enumerate(
            zip(rows.tolist(), attempts.tolist(), failed.tolist(), strict=True)
        ):
            batch = self.reservations.find(attempt)
            if batch is not None:
                place = attempt - batch.first
                if batch.open[place] and int(batch.rows[place]) == row:
                    offers[i] = self._move(batch, place, segment, host_id, expiries)
        for number in {one.segment for one in expiries}:
            self.segments[number].breaker.failed(now)
        return offers, expiries

    def _move(
        self, batch: Batch, place: int, failed: int, host_id: str, expiries: list[Expiry]
    ) -> int:
        columns = np.flatnonzero(batch.segments[place] == failed)
        if failed == NO_SEGMENT or columns.size == 0:
            return NO_SEGMENT
        size = int(batch.sizes[place])
        homes = [self.segments[int(s)] for s in batch.segments[place] if s != NO_SEGMENT]
        taken = {one.node for one in homes}
        domains = {one.domain for one in homes if one.id != failed}
        facts = [one for one in self.segments.facts(batch.tenant) if one.node not in taken]
        chosen = one_more(self.placement, facts, domains, size, host_id, self._random.random())
        self.segments[failed].release(size, 1)
        if self.rows.shares is not None and chosen is None:
            self.rows.shares.usage.release(batch.tenant, size, 0)
        attempt = np.array([batch.first + place], np.uint64)
        expiries.append(Expiry(failed, self.term, attempt))
        target = NO_SEGMENT if chosen is None else chosen
        batch.segments[place, columns[0]] = target
        batch.source = None
        if chosen is not None:
            self.segments[target].promise(size, 1)
        return target

    def expire(self, now: float) -> Ended:
        """End reservations whose time is over; their writers may still hold memory for a while."""
        return self._end_all(self.reservations.expired(now), now)

    def end_owner(self, owner: int, now: float) -> Ended:
        """A client is gone: its reservations, leases and inheritances end."""
        self.leases.end_owner(owner)
        inherited = [key for key, heir in self.heirs.items() if heir.owner == owner]
        for key in inherited:
            del self.heirs[key]
        ended = self._end_all(self.reservations.of_owner(owner), now)
        ended.keys.extend(inherited)
        return ended

    def raise_term(self, term: int, now: float) -> Ended:
        """Rule under a higher term from now on; what was promised under the old one is void."""
        assert term > self.rows.term, (term, self.rows.term)
        ended = self._end_all(list(self.reservations), now)
        self.rows.term = term
        self.events.new_term(term)
        return ended

    def _end_all(self, batches: list[Batch], now: float) -> Ended:
        ended = Ended([], [])
        late_until = now + self.config.reservation_ms / 1000
        for batch in batches:
            keys, expiries = self.endings.end_batch(batch, now, late_until)
            ended.keys.extend(keys)
            ended.expiries.extend(expiries)
        return ended

    # Inheritance.

    def bequeath(self, key: bytes, owner: int, now: float) -> None:
        """The writer of `key` gave up; `owner` may write it first, for a bounded time."""
        self.heirs[key] = Heir(owner, now + self.config.inheritance_ms / 1000)

    def lapsed(self, now: float) -> list[bytes]:
        """Keys whose inheritance is over; they are nobody's again."""
        keys = [key for key, heir in self.heirs.items() if heir.until <= now]
        for key in keys:
            del self.heirs[key]
        return keys

    def _foreign(self, put: PutRequest, now: float) -> Bool:
        heirs = (self.heirs.get(key) for key in split_keys(put.blob, put.ends))
        return np.array(
            [h is not None and h.owner != put.owner and h.until > now for h in heirs], np.bool_
        )

    def _inherit(self, put: PutRequest, admitted: Admitted) -> None:
        for i, key in enumerate(split_keys(put.blob, put.ends)):
            if admitted.attempts[i]:
                self.heirs.pop(key, None)

    # Reading.

    def lookup(self, blob: bytes, ends: U32, prefix: bool, wall_ms: int) -> Placed:
        """Placements; with `prefix` only of the leading run of found keys."""
        table = self.table
        rows = table.find(blob, ends)
        status = _LOOKUP_STATUS[table.state[rows]]
        status[rows < 0] = _ABSENT
        if self.rows.may_expire:
            over = (status == _FOUND) & self.rows.expired(np.maximum(rows, 0), wall_ms)
            status[over] = LookupStatus.EXPIRED
        if len(self.rows.evicted):
            absent = np.flatnonzero(status == _ABSENT)
            status[self.rows.evicted.among(blob, ends, absent)] = _EVICTED
        if prefix:
            self._cut(status)
        counts = np.zeros(rows.size, np.uint8)
        found = status == _FOUND
        some, replicas = table.replicas_of(rows[found])
        if not self.segments.all_alive:
            some, replicas = self.rows.live_counts(some, replicas)
            status[np.flatnonzero(found)[some == 0]] = LookupStatus.UNREACHABLE
            if prefix and not some.all():
                self._cut(status)
                kept = int((status == _FOUND).sum())
                replicas = replicas[: int(some[:kept].sum())]
                some = some[:kept]
                found = status == _FOUND
        counts[found] = some
        return Placed(status, np.where(status == _FOUND, rows, -1), counts, replicas)

    @staticmethod
    def _cut(status: U8) -> None:
        """Only the leading run of found keys is answered, and what ended it."""
        misses = np.flatnonzero(status != _FOUND)
        if misses.size:
            status[misses[0] + 1 :] = _ABSENT

    def exists(self, blob: bytes, ends: U32, wall_ms: int) -> U8:
        """1 where a key is committed and readable. Never counts as a read."""
        rows = self.table.find(blob, ends)
        found = rows >= 0
        found &= self.table.state[rows] == COMMITTED
        if self.rows.may_expire:
            found &= ~self.rows.expired(np.maximum(rows, 0), wall_ms)
        if not self.segments.all_alive:
            at = np.flatnonzero(found)
            found[at] = self.rows.reachable(rows[at])
        return found.view(np.uint8)

    def touch(self, rows: I32, sequences: U64, now: float = 0.0, host: str = "") -> int:
        """Reads by a host, oldest first; how many are of what is there, those included that count
        because of another of their group."""
        self.rows.heat.read(rows, sequences, host, now)
        self.rows.tiers.read(rows, sequences, now)
        rows, sequences = self.rows.groups.with_mates(rows, sequences)
        self.rows.standing.read(rows, sequences, now)
        return self.rows.order.touched(rows, sequences)

    # Removing.

    def remove(
        self, blob: bytes, ends: U32, now: float, wall_ms: int
    ) -> tuple[Bool, list[Removal], list[Retirement]]:
        """Invisible at once: which keys had a value, what those were, and what the agents must
        retire. A put in flight on a removed key goes on."""
        rows = self.table.find(blob, ends)
        removed = (rows >= 0) & (self.table.state[rows] == COMMITTED)
        removals, retirements = self.remove_rows(distinct(rows[removed]), now, wall_ms)
        return removed, removals, retirements

    def remove_rows(
        self, rows: I32, now: float, wall_ms: int
    ) -> tuple[list[Removal], list[Retirement]]:
        """The same for committed rows, each once."""
        removals = self.versions(rows)
        return removals, self.rows.drop(rows, "remove", wall_ms, now)

    def versions(self, rows: I32) -> list[Removal]:
        """What these committed rows hold now."""
        table = self.table
        counts, replicas = table.replicas_of(rows)
        segments = table.replica_segment[replicas].tolist()
        removals, start = [], 0
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            where = tuple(segments[start : start + count])
            start += count
            removals.append(
                Removal(table.key(row), int(table.term[row]), int(table.seq[row]), where)
            )
        return removals

    def lose(self, replicas: I32, now: float, wall_ms: int) -> list[Retirement]:
        """These replicas are worthless (corrupt); an object that has no other is gone."""
        return self.rows.lose_replicas(replicas, wall_ms, now) if replicas.size else []

    def scan(
        self, cursor: int, rows_max: int, prefix: bytes, tenant: int | None = None
    ) -> tuple[I32, int]:
        """Committed rows (of one tenant) among the next `rows_max` row numbers, and where to go on
        (-1: end)."""
        rows, cursor = self.table.scan(cursor, rows_max, prefix)
        rows = rows[self.table.state[rows] == COMMITTED]
        if tenant is not None:
            rows = rows[self.table.tenant[rows] == tenant]
        return rows, cursor

    def sweep(self, now: float, wall_ms: int) -> list[Retirement]:
        """Remove expired objects among the next rows; bounded work per call."""
        if not self.rows.may_expire:
            return []
        rows, after = self.scan(self._sweep_row, SWEEP_ROWS, b"")
        self._sweep_row = max(after, 0)
        gone = rows[self.rows.expired(rows, wall_ms)]
        gone = gone[(self.table.flags[gone] & IN_FLIGHT) == 0]
        return self.rows.drop(gone, "expire", wall_ms, now) if gone.size else []

    def unpin(self, now: float) -> None:
        """Soft pins whose time is over end."""
        over = self.rows.standing.expire(now)
        if over.size:
            self.rows.relist(over)

    def facts(self, tenant: int = 0) -> list[SegmentFacts]:
        return self.segments.facts(tenant)


def split_keys(blob: bytes, ends: U32) -> list[bytes]:
    stops = ends.tolist()
    return [blob[a:b] for a, b in zip([0, *stops], stops, strict=False)]
