"""The master without I/O: messages in, effects out. It speaks for the catalog and decides nothing
that the catalog decides; it adds who asked, who waits, which node is heard, and what to send.

Sessions are numbers given by the shell. Time is monotonic seconds, `wall_ms` is for TTLs and logs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from moonpool._core import Table
from moonpool.core.errors import BadInput
from moonpool.core.sections import MasterConfig
from moonpool.pool import messages as m
from moonpool.pool.catalog.base import COMMITTED, I32, NO_SEGMENT, CatalogConfig, Retirement
from moonpool.pool.catalog.catalog import Catalog, Removal
from moonpool.pool.catalog.reservations import PutRequest
from moonpool.pool.catalog.settlement import CommitRequest, Ended
from moonpool.pool.columns import check_ends, i32, u8, u16, u32, u64, unpack_keys
from moonpool.pool.effects import Effect, Send
from moonpool.pool.master_nodes import Nodes
from moonpool.pool.master_waits import (
    AwaitCall,
    Held,
    Holding,
    KeyWaiters,
    RetireOrders,
    RetireWait,
)

BATCH_MAX = 65_536  # keys in one request
LIST_ROWS = 65_536  # rows looked at for one List
WAIT_MS_MAX = 300_000
DEADLINE_MS = 5_000  # of a held put that names none
SWEEP_S = 1.0


@dataclass(frozen=True, slots=True)
class MasterLimits:
    """Bounds of the master's own tables."""

    waiters_max: int = 65_536
    held_puts_max: int = 4_096
    followers_max: int = 1_024
    tombstones_max: int = 65_536
    reservations_max: int = 1_000_000
    leases_max: int = 65_536
    segments_max: int = 1_024


@dataclass(slots=True)
class Session:
    role: Literal["client", "node"]
    name: str
    host_id: str


class MasterMachine:
    """One master. `instance` is its random identity; `nodes_expected` ends a recovery early."""

    def __init__(
        self,
        config: MasterConfig,
        instance: bytes = b"",
        *,
        limits: MasterLimits | None = None,
        table: Table | None = None,
        seed: int | None = None,
        nodes_expected: int = 0,
    ) -> None:
        self.config = config
        self.limits = limits or MasterLimits()
        self.instance = instance or bytes(16)
        self.catalog = Catalog(
            CatalogConfig(
                rows_max=config.rows_max,
                segments_max=self.limits.segments_max,
                reservations_max=self.limits.reservations_max,
                reservation_ms=config.reservation_ms,
                events_max=config.events_max,
                leases_max=self.limits.leases_max,
            ),
            table,
            seed=int.from_bytes(self.instance, "little") if seed is None else seed,
        )
        self._outbox: list[Effect] = []
        self._sessions: dict[int, Session] = {}
        self._waiters = KeyWaiters(self.limits.waiters_max, self._outbox)
        self._orders = RetireOrders(self._outbox)
        self._held = Holding(self.limits.held_puts_max)
        self._followers = Holding(self.limits.followers_max)
        self.nodes = Nodes(
            self.catalog,
            self._orders,
            self._outbox,
            self.instance,
            config.node_lease_ms,
            config.clock_slack_ms,
            config.forget_after_s,
            self.limits.tombstones_max,
            self._raise_term,
        )
        self._nodes_expected = nodes_expected
        self.recovering = config.grace_ms > 0
        self.catalog.rows.rebuilding = self.recovering
        self._recovery_until: float | None = None
        self._wall_offset_ms = 0.0
        self._next_sweep = 0.0
        self._events_seen = self.catalog.events.next_sequence
        self.requests = 0
        self._handlers: dict[type[Any], Callable[[int, int, Any, float, int], m.Reply | None]] = {
            m.Reserve: self._reserve,
            m.Commit: self._commit,
            m.Abort: self._abort,
            m.Reoffer: self._reoffer,
            m.Await: self._await,
            m.Lookup: self._lookup,
            m.Exists: self._exists,
            m.Remove: self._remove,
            m.RemovePrefix: self._remove_prefix,
            m.List: self._list,
            m.Stat: self._stat,
            m.Topology: self._topology,
            m.EventsFrom: self._events_from,
            m.Lease: self._lease,
            m.Touch: self._touch,
            m.Report: self._report,
        }
        self._node_handlers: dict[type[Any], Callable[[int, Any, float, int], None]] = {
            m.JoinSegment: self.nodes.join,
            m.Adopted: self._adopted,
            m.InventoryChunk: self.nodes.chunk,
            m.Heartbeat: self.nodes.heartbeat,
            m.RetireDone: self._retire_done,
        }

    # Events from the shell.

    def connected(
        self, session: int, role: Literal["client", "node"], name: str, host_id: str, now: float
    ) -> list[Effect]:
        self._sessions[session] = Session(role, name, host_id)
        return self._flush(now)

    def disconnected(self, session: int, now: float) -> list[Effect]:
        """Idempotent. A client's reservations, leases and waits end; a node's segments are away."""
        if self._sessions.pop(session, None) is not None:
            self.nodes.session_lost(session, now)
            self._waiters.forget_session(session)
            self._held.forget_session(session)
            self._followers.forget_session(session)
            self._ended(self.catalog.end_owner(session, now), now)
        return self._flush(now)

    def handle(
        self,
        session: int,
        request_id: int,
        message: m.Message,
        now: float,
        wall_ms: int,
        deadline_ms: int = 0,
    ) -> list[Effect]:
        """One message. Malformed requests are answered Failure and change nothing."""
        self.requests += 1
        self._wall_offset_ms = wall_ms - now * 1000
        known = self._sessions.get(session)
        if known is None:
            return []
        try:
            if known.role == "node":
                self._from_node(session, message, now, wall_ms)
            else:
                self._from_client(session, request_id, message, now, wall_ms, deadline_ms)
        except (ValueError, IndexError) as error:
            code = error.code if isinstance(error, BadInput) else "bad_input"
            self._outbox.append(Send(session, request_id, m.Failure(code, str(error))))
        return self._flush(now)

    def tick(self, now: float, wall_ms: int | None = None) -> list[Effect]:
        wall = round(now * 1000 + self._wall_offset_ms) if wall_ms is None else wall_ms
        self._ended(self.catalog.expire(now), now)
        for key in self.catalog.lapsed(now):
            self._next_heir(key, now)
        self.catalog.leases.expire(now)
        self._waiters.expire(now)
        self.nodes.tick(now, wall)
        self._orders.expire(now)
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_S
            self.nodes.retire(self.catalog.sweep(now, wall))
        for held in self._held.take_expired(now):
            self._answer_held(held, now, wall)
        for held in self._followers.take_expired(now):
            self._outbox.append(Send(held.session, held.request, self._events(held.message)))
        return self._flush(now)

    def next_deadline(self) -> float | None:
        """When `tick` is due."""
        heirs = (heir.until for heir in self.catalog.heirs.values())
        moments = [
            self.catalog.reservations.next_deadline,
            min(heirs, default=None),
            self.catalog.leases.next_deadline,
            self._waiters.next_deadline,
            self._orders.next_deadline,
            self.nodes.next_deadline(),
            self._held.next_deadline,
            self._followers.next_deadline,
            # A node that still reports ends the recovery by a message, or by its lease.
            self._recovery_until if self.recovering and not self.nodes.recovering else None,
            self._next_sweep if self.catalog.rows.may_expire else None,
        ]
        return min((moment for moment in moments if moment is not None), default=None)

    def _flush(self, now: float) -> list[Effect]:
        if self.recovering:
            self._recover(now)
        if len(self._followers) and self.catalog.events.next_sequence != self._events_seen:
            for held in self._followers.take_all():
                self._outbox.append(Send(held.session, held.request, self._events(held.message)))
        self._events_seen = self.catalog.events.next_sequence
        effects = self._outbox.copy()
        self._outbox.clear()
        return effects

    # Recovery: reads are answered at once, puts wait, nothing is evicted.

    def _recover(self, now: float) -> None:
        if self._recovery_until is None:
            self._recovery_until = now + self.config.grace_ms / 1000
        if self.nodes.recovering:
            return
        all_reported = 0 < self._nodes_expected <= self.nodes.reported
        if now < self._recovery_until and not all_reported:
            return
        self.recovering = False
        self.catalog.rows.orphan_all()
        wall_ms = round(now * 1000 + self._wall_offset_ms)
        for held in self._held.take_all():
            self._answer_held(held, now, wall_ms)

    def _answer_held(self, held: Held, now: float, wall_ms: int) -> None:
        reply: m.Reply | None
        match held.message:
            case m.Reserve() as put:
                if self.recovering:
                    reply = self._still_recovering(put, wall_ms)
                else:
                    reply = self._admit(held.session, put, now, wall_ms)
            case m.Remove() as removal:
                if self.recovering:
                    count = len(removal.keys.ends) // 4
                    reply = m.Removed(bytes([m.RemoveStatus.RECOVERING]) * count)
                else:
                    reply = self._remove(held.session, held.request, removal, now, wall_ms)
            case m.RemovePrefix() as removals:
                if self.recovering:
                    reply = m.Failure("not_ready", "the master still hears its nodes; try again")
                else:
                    reply = self._remove_prefix(held.session, held.request, removals, now, wall_ms)
            case m.EventsFrom():
                raise AssertionError(held)
        if reply is not None:
            self._outbox.append(Send(held.session, held.request, reply))

    def _still_recovering(self, call: m.Reserve, wall_ms: int) -> m.Reserved:
        found = self.catalog.exists(call.keys.blob, u32(call.keys.ends), wall_ms)
        status = np.where(found, m.PutStatus.EXISTS, m.PutStatus.RECOVERING).astype(np.uint8)
        n = status.size
        return self._reserved(
            status.tobytes(),
            np.full(n, -1, np.int32).tobytes(),
            bytes(8 * n),
            np.full(n * max(call.replicas, 1), NO_SEGMENT, np.uint16).tobytes(),
        )

    # Requests of clients.

    def _from_client(
        self,
        session: int,
        request_id: int,
        message: m.Message,
        now: float,
        wall_ms: int,
        deadline_ms: int,
    ) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            raise BadInput(f"a client cannot send {type(message).__name__}")
        touches = getattr(message, "touches", None)
        if touches is not None and touches.row:
            self._apply_touches(touches)
        if self.recovering and isinstance(message, m.Reserve):
            self._hold(session, request_id, message, now, wall_ms, deadline_ms)
            return
        if self.recovering and isinstance(message, m.Remove | m.RemovePrefix):
            # A node not heard yet may still be read from: its lease ends with the recovery.
            deadline = now + min(max(message.wait_ms, 0), WAIT_MS_MAX) / 1000
            held = Held(session, request_id, message, deadline)
            if not self._held.add(held):
                self._answer_held(held, now, wall_ms)
            return
        reply = handler(session, request_id, message, now, wall_ms)
        if reply is not None:
            self._outbox.append(Send(session, request_id, reply))

    def _apply_touches(self, touches: m.Touches) -> None:
        rows, sequences = i32(touches.row), u64(touches.sequence)
        if rows.size != sequences.size:
            raise BadInput(f"touches of {rows.size} rows and {sequences.size} sequences")
        self.catalog.touch(rows, sequences)

    def _hold(
        self, session: int, request: int, call: m.Reserve, now: float, wall_ms: int, left_ms: int
    ) -> None:
        put_request(call, session, "")
        found = self.catalog.exists(call.keys.blob, u32(call.keys.ends), wall_ms)
        deadline = now + min(left_ms or DEADLINE_MS, WAIT_MS_MAX) / 1000
        known = bool(found.all()) and not call.replace
        if known or not self._held.add(Held(session, request, call, deadline)):
            self._outbox.append(Send(session, request, self._still_recovering(call, wall_ms)))

    def _reserved(self, status: bytes, row: bytes, attempt: bytes, segments: bytes) -> m.Reserved:
        return m.Reserved(
            self.catalog.term,
            status,
            row,
            attempt,
            segments,
            self.config.reservation_ms,
            self.nodes.topology_version,
        )

    def _reserve(
        self, session: int, request: int, call: m.Reserve, now: float, wall_ms: int
    ) -> m.Reply | None:
        return self._admit(session, call, now, wall_ms)

    def _admit(self, session: int, call: m.Reserve, now: float, wall_ms: int) -> m.Reserved:
        put = put_request(call, session, self._sessions[session].host_id)
        admitted = self.catalog.reserve(put, now, wall_ms)
        if admitted.retirements:
            self.nodes.retire(admitted.retirements)
        return self._reserved(
            admitted.status.tobytes(),
            admitted.rows.tobytes(),
            admitted.attempts.tobytes(),
            admitted.segments.tobytes(),
        )

    def _commit(
        self, session: int, request: int, call: m.Commit, now: float, wall_ms: int
    ) -> m.Reply | None:
        commit = commit_request(call)
        replaced = self._replaced(commit) if commit.rows.size else []
        settled = self.catalog.commit(commit, now, wall_ms)
        self.nodes.expire(settled.expiries)
        if self._waiters and settled.rows.size:
            for key in self._keys(settled.rows):
                self._waiters.committed(key)
        for key in settled.refused_keys:
            self._next_heir(key, now)
        reply = m.Committed(settled.status.tobytes())
        if not settled.retirements and not len(self._orders):
            return reply
        gone = [one for one in replaced if not self._holds(one)]
        wait = RetireWait(session, request, None, reply, None)
        self._orders.join(self._keys(settled.rows), wait)
        self._retire_and_wait(settled.retirements, gone, wait, now)
        return None

    def _replaced(self, commit: CommitRequest) -> list[Removal]:
        """What the rows of this commit hold now, where they hold something."""
        table = self.catalog.table
        rows = commit.rows[(commit.rows >= 0) & (commit.rows < table.rows_max)]
        rows = rows[table.state[rows] == COMMITTED]
        return self.catalog.versions(np.unique(rows)) if rows.size else []

    def _holds(self, one: Removal) -> bool:
        row = self.catalog.table.find(one.key, np.array([len(one.key)], np.uint32))[0]
        return bool(
            row >= 0
            and self.catalog.table.seq[row] == one.sequence
            and self.catalog.table.term[row] == one.term
        )

    def _keys(self, rows: I32) -> list[bytes]:
        return [self.catalog.table.key(row) for row in rows.tolist()]

    def _abort(
        self, session: int, request: int, call: m.Abort, now: float, wall_ms: int
    ) -> m.Reply | None:
        rows, attempts = i32(call.row), u64(call.attempt)
        if rows.size != attempts.size:
            raise BadInput(f"abort of {rows.size} rows and {attempts.size} attempts")
        ended = self.catalog.abort(rows, attempts, now)
        self._ended(ended, now)
        return m.Done(len(ended.keys))

    def _reoffer(
        self, session: int, request: int, call: m.Reoffer, now: float, wall_ms: int
    ) -> m.Reply | None:
        rows, attempts, failed = i32(call.row), u64(call.attempt), u16(call.failed)
        if not rows.size == attempts.size == failed.size:
            raise BadInput(f"reoffer of {rows.size} rows and {attempts.size} attempts")
        host_id = self._sessions[session].host_id
        offers, expiries = self.catalog.reoffer(rows, attempts, failed, host_id)
        self.nodes.expire(expiries)
        return m.Reoffered(offers.tobytes(), self.nodes.topology_version)

    def _ended(self, ended: Ended, now: float) -> None:
        self.nodes.expire(ended.expiries)
        for key in ended.keys:
            self._next_heir(key, now)

    def _next_heir(self, key: bytes, now: float) -> None:
        if key in self._waiters:
            heir = self._waiters.given_up(key)
            if heir is not None:
                self.catalog.bequeath(key, heir, now)

    def _await(
        self, session: int, request: int, call: m.Await, now: float, wall_ms: int
    ) -> m.Reply | None:
        keys = batch_keys(call.keys)
        table = self.catalog.table
        rows = table.find(call.keys.blob, u32(call.keys.ends))
        safe = np.maximum(rows, 0)
        writing = (rows >= 0) & self.catalog.rows.in_flight(safe)
        there = (rows >= 0) & (table.state[safe] == COMMITTED)
        status: list[m.AwaitStatus | None] = []
        for i, key in enumerate(keys):
            heir = self.catalog.heirs.get(key)
            if writing[i] or (heir is not None and heir.owner != session):
                status.append(None)
            else:
                status.append(m.AwaitStatus.COMMITTED if there[i] else m.AwaitStatus.ABSENT)
        deadline = now + min(max(call.wait_ms, 0), WAIT_MS_MAX) / 1000
        self._waiters.add(AwaitCall(session, request, deadline, keys, status, 0))
        return None

    def _lookup(
        self, session: int, request: int, call: m.Lookup, now: float, wall_ms: int
    ) -> m.Reply | None:
        placed = self.catalog.lookup(call.keys.blob, batch_ends(call.keys), call.prefix, wall_ms)
        status = placed.status
        if self.recovering:
            status[status == m.LookupStatus.ABSENT] = m.LookupStatus.RECOVERING
        table = self.catalog.table
        found = placed.rows >= 0
        safe = np.maximum(placed.rows, 0)
        return m.Found(
            status.tobytes(),
            placed.rows.tobytes(),
            (table.term[safe] * found).tobytes(),
            (table.seq[safe] * found).tobytes(),
            (table.size[safe] * found).tobytes(),
            (table.crc[safe] * found).tobytes(),
            m.ReplicaColumn(
                placed.counts.tobytes(),
                table.replica_segment[placed.replicas].tobytes(),
                table.replica_slot[placed.replicas].tobytes(),
                table.replica_generation[placed.replicas].tobytes(),
            ),
            self.nodes.topology_version,
        )

    def _exists(
        self, session: int, request: int, call: m.Exists, now: float, wall_ms: int
    ) -> m.Reply | None:
        found = self.catalog.exists(call.keys.blob, batch_ends(call.keys), wall_ms)
        return m.Existence(found.tobytes())

    def _remove(
        self, session: int, request: int, call: m.Remove, now: float, wall_ms: int
    ) -> m.Reply | None:
        ends = batch_ends(call.keys)
        removed, removals, retirements = self.catalog.remove(call.keys.blob, ends, now, wall_ms)
        absent = m.RemoveStatus.RECOVERING if self.recovering else m.RemoveStatus.ABSENT
        status = np.where(removed, m.RemoveStatus.REMOVED, absent).astype(np.uint8)
        where = {one.key: set(one.segments) for one in removals}
        names = batch_keys(call.keys)

        def late(segments: set[int]) -> m.Reply:
            pending = status.copy()
            for i, key in enumerate(names):
                if where.get(key, set()) & segments:
                    pending[i] = m.RemoveStatus.PENDING
            return m.Removed(pending.tobytes(), self.nodes.names(segments))

        deadline = now + min(max(call.wait_ms, 0), WAIT_MS_MAX) / 1000
        done = m.Removed(status.tobytes())
        wait = RetireWait(session, request, deadline, done, late)
        self._orders.join(names, wait)
        self._retire_and_wait(retirements, removals, wait, now)
        return None

    def _remove_prefix(
        self, session: int, request: int, call: m.RemovePrefix, now: float, wall_ms: int
    ) -> m.Reply | None:
        removals: list[Removal] = []
        retirements: list[Retirement] = []
        cursor = 0
        while cursor >= 0:
            rows, cursor = self.catalog.scan(cursor, LIST_ROWS, call.prefix)
            if rows.size:
                some, more = self.catalog.remove_rows(rows, now, wall_ms)
                removals += some
                retirements += more
        done = m.Done(len(removals))
        deadline = now + min(max(call.wait_ms, 0), WAIT_MS_MAX) / 1000
        wait = RetireWait(session, request, deadline, done, lambda _: done)
        self._retire_and_wait(retirements, removals, wait, now)
        return None

    def _retire_and_wait(
        self,
        retirements: list[Retirement],
        removals: list[Removal],
        wait: RetireWait,
        now: float,
    ) -> None:
        """Answer when every agent has retired, or when its lease has surely passed."""
        joined = bool(wait.orders)
        for one in retirements:
            mine = [
                (gone.key, gone.term, gone.sequence)
                for gone in removals
                if one.segment in gone.segments
            ]
            number = self._orders.new(one.segment, mine, wait)
            self.nodes.retire([one], number)
            link = self.nodes.links[one.segment]
            if not link.heard:
                self.nodes.bury_missed(one.segment, now)
                if link.lost and self.nodes.remembered_without(link):
                    self._orders.finish(number, one.segment)
        if self._strangers(now):
            # A node not heard yet may hold a copy, or an older value, that nobody knows of.
            versions = [(gone.key, gone.term, gone.sequence) for gone in removals]
            self.nodes.bury(versions, None, now)
        if wait.orders or not (retirements or joined):
            self._orders.start(wait)

    def _strangers(self, now: float) -> bool:
        """There may be nodes, older than this master, that it has not heard of."""
        if self.config.grace_ms == 0 or self._recovery_until is None:
            return self.config.grace_ms > 0
        all_known = 0 < self._nodes_expected <= self.nodes.reported
        return not all_known and now < self._recovery_until + self.config.forget_after_s

    def _list(
        self, session: int, request: int, call: m.List, now: float, wall_ms: int
    ) -> m.Reply | None:
        limit = min(max(call.limit, 1), BATCH_MAX)
        cursor, looked = min(max(call.cursor, 0), self.catalog.table.rows_max), 0
        found: list[I32] = []
        count = 0
        while cursor >= 0 and looked < LIST_ROWS and count < limit:
            window = limit - count
            rows, cursor = self.catalog.scan(cursor, window, call.prefix)
            looked += window
            found.append(rows)
            count += rows.size
        rows = np.concatenate(found) if found else np.zeros(0, np.int32)
        table = self.catalog.table
        blob, ends = table.keys(rows)
        counts, _ = table.replicas_of(rows)
        return m.Listed(
            m.KeyColumn(blob, ends.tobytes()),
            table.size[rows].tobytes(),
            counts.tobytes(),
            cursor,
        )

    def _topology(
        self, session: int, request: int, call: m.Topology, now: float, wall_ms: int
    ) -> m.Reply | None:
        return m.TopologyIs(self.nodes.topology_version, self.catalog.term, self.nodes.endpoints())

    def _events_from(
        self, session: int, request: int, call: m.EventsFrom, now: float, wall_ms: int
    ) -> m.Reply | None:
        reply = self._events(call)
        if reply.events or reply.rebase or call.wait_ms <= 0:
            return reply
        deadline = now + min(call.wait_ms, WAIT_MS_MAX) / 1000
        return None if self._followers.add(Held(session, request, call, deadline)) else reply

    def _events(self, call: object) -> m.Events:
        assert isinstance(call, m.EventsFrom), call
        log = self.catalog.events
        limit = min(max(call.limit, 1), BATCH_MAX)
        events, rebase = log.read(call.term, call.sequence, limit)
        following = call.sequence + len(events) if not rebase else log.next_sequence
        return m.Events(events, log.term, following, rebase)

    def _lease(
        self, session: int, request: int, call: m.Lease, now: float, wall_ms: int
    ) -> m.Reply | None:
        rows, sequences = i32(call.row).tolist(), u64(call.sequence)
        if len(rows) != sequences.size:
            raise BadInput(f"lease on {len(rows)} rows and {sequences.size} sequences")
        leases = self.catalog.leases
        if call.ttl_ms <= 0:
            leases.release(session, call.lease)
            return m.Leased(call.lease, bytes(len(rows)), 0)
        if call.lease:
            held, ttl_ms = leases.renew(session, call.lease, rows, sequences, call.ttl_ms, now)
            return m.Leased(call.lease, held.tobytes(), ttl_ms)
        number, granted, ttl_ms = leases.take(session, rows, sequences, call.ttl_ms, now)
        return m.Leased(number, granted.tobytes(), ttl_ms)

    def _touch(
        self, session: int, request: int, call: m.Touch, now: float, wall_ms: int
    ) -> m.Reply | None:
        return m.Done(i32(call.touches.row).size)

    def _report(
        self, session: int, request: int, call: m.Report, now: float, wall_ms: int
    ) -> m.Reply | None:
        """Corrupt replicas are dropped; an object that has no other is gone."""
        rows, sequences, numbers = i32(call.row), u64(call.sequence), u16(call.segment)
        slots, generations = u32(call.slot), u64(call.generation)
        if not rows.size == sequences.size == numbers.size == slots.size == generations.size:
            raise BadInput("report: columns of unequal length")
        table = self.catalog.table
        bad: set[int] = set()
        for row, sequence, number, slot, generation in zip(
            *(rows.tolist(), sequences.tolist(), numbers.tolist(), slots.tolist()),
            generations.tolist(),
            strict=True,
        ):
            if number >= len(self.catalog.segments):
                continue
            segment = self.catalog.segments[number]
            replica = int(segment.by_slot[slot]) if slot < segment.slots else -1
            if (
                replica >= 0
                and table.replica_object[replica] == row
                and table.replica_generation[replica] == generation
                and table.seq[row] == sequence
            ):
                bad.add(replica)
        self.nodes.retire(self.catalog.lose(np.array(sorted(bad), np.int32), now, wall_ms))
        return m.Done(len(bad))

    def _stat(
        self, session: int, request: int, call: m.Stat, now: float, wall_ms: int
    ) -> m.Reply | None:
        catalog = self.catalog
        segments = {
            str(link.segment.id): {
                "node": link.endpoint.node,
                "state": link.state.value,
                "alive": link.segment.alive,
                "capacity_bytes": link.segment.capacity_bytes,
                "committed_bytes": link.segment.committed_bytes,
                "promised_bytes": link.segment.promised_bytes,
                "objects": link.segment.objects,
                "usage": link.usage or {},
            }
            for link in self.nodes.links.values()
        }
        alive = [segment for segment in catalog.segments if segment.alive]
        return m.Status(
            {
                "term": catalog.term,
                "recovering": self.recovering,
                "objects": catalog.rows.objects,
                "rows": len(catalog.table),
                "rows_max": catalog.table.rows_max,
                "replicas": catalog.table.replica_count,
                "table_bytes": catalog.table.memory_bytes(),
                "capacity_bytes": sum(one.capacity_bytes for one in alive),
                "committed_bytes": sum(one.committed_bytes for one in alive),
                "promised_bytes": sum(one.promised_bytes for one in alive),
                "reservations": len(catalog.reservations),
                "evictions": catalog.admission.evictions,
                "evicted_objects": catalog.admission.evicted_objects,
                "events": len(catalog.events),
                "next_event": catalog.events.next_sequence,
                "leases": len(catalog.leases),
                "waiters": self._waiters.pairs,
                "held_puts": len(self._held),
                "retire_orders": len(self._orders),
                "tombstones": len(self.nodes.tombstones),
                "retired_unknown": self.nodes.retired_unknown,
                "refused_chunks": self.nodes.refused_chunks,
                "sessions": len(self._sessions),
                "requests": self.requests,
                "topology_version": self.nodes.topology_version,
                "segments": segments,
            }
        )

    # Messages of nodes.

    def _from_node(self, session: int, message: m.Message, now: float, wall_ms: int) -> None:
        handler = self._node_handlers.get(type(message))
        if handler is None:
            raise BadInput(f"a node cannot send {type(message).__name__}")
        handler(session, message, now, wall_ms)

    def _adopted(self, session: int, call: m.Adopted, now: float, wall_ms: int) -> None:
        tombs = self.nodes.adopted(session, call, now, wall_ms)
        if tombs:
            self._remove_dead(now, wall_ms)

    def _remove_dead(self, now: float, wall_ms: int) -> None:
        """Another node's inventory may have brought back what new tombstones say is removed."""
        table, covers = self.catalog.table, self.nodes.tombstones.covers
        cursor = 0
        while cursor >= 0:
            rows, cursor = self.catalog.scan(cursor, LIST_ROWS, b"")
            gone = [
                row
                for row in rows.tolist()
                if covers(table.key(row), int(table.term[row]), int(table.seq[row]))
            ]
            if gone:
                _, retirements = self.catalog.remove_rows(np.array(gone, np.int32), now, wall_ms)
                self.nodes.retire(retirements)

    def _retire_done(self, session: int, call: m.RetireDone, now: float, wall_ms: int) -> None:
        link = self.nodes.links.get(call.segment)
        if link is not None and link.session == session:
            self._orders.finish(call.id, call.segment)

    def _raise_term(self, term: int, now: float) -> None:
        self._ended(self.catalog.raise_term(term, now), now)


def batch_ends(keys: m.KeyColumn) -> np.ndarray[Any, np.dtype[np.uint32]]:
    ends = u32(keys.ends)
    if ends.size > BATCH_MAX:
        raise BadInput(f"a batch of {ends.size} keys; at most {BATCH_MAX} are taken")
    return ends


def batch_keys(keys: m.KeyColumn) -> list[bytes]:
    batch_ends(keys)
    return unpack_keys(keys)


def put_request(call: m.Reserve, owner: int, host_id: str) -> PutRequest:
    """Checked columns of a reserve call. Raises BadInput."""
    ends, sizes, parent_of = batch_ends(call.keys), u64(call.sizes), i32(call.parent_of)
    if not ends.size == sizes.size == parent_of.size:
        raise BadInput(f"{ends.size} keys, {sizes.size} sizes, {parent_of.size} parents")
    check_ends(call.keys.blob, ends)
    outside = u32(call.outside_parents.ends)
    check_ends(call.outside_parents.blob, outside)
    replicas = call.replicas
    least = call.min_replicas or replicas
    if not 1 <= least <= replicas <= 8:
        raise BadInput(f"{replicas} replicas, at least {least}; 1 to 8 are possible")
    if not 0 <= call.pin <= 2 or not 0 <= call.tenant < 2**32 or not 0 <= call.expiry_ms < 2**62:
        raise BadInput(f"pin {call.pin}, tenant {call.tenant}, expiry {call.expiry_ms}")
    return PutRequest(
        owner=owner,
        blob=call.keys.blob,
        ends=ends,
        sizes=sizes,
        parent_of=parent_of,
        outside_blob=call.outside_parents.blob,
        outside_ends=outside,
        replicas=replicas,
        min_replicas=least,
        pin=call.pin,
        expiry_ms=call.expiry_ms,
        tenant=call.tenant,
        chain=call.chain,
        replace=call.replace,
        prefer_segment=call.prefer_segment,
        host_id=host_id,
    )


def commit_request(call: m.Commit) -> CommitRequest:
    """Checked columns of a commit call. Raises BadInput."""
    rows, attempts, crcs = i32(call.row), u64(call.attempt), u32(call.crc)
    counts, segments = u8(call.replicas.counts), u16(call.replicas.segment)
    slots, generations = u32(call.replicas.slot), u64(call.replicas.generation)
    if not rows.size == attempts.size == crcs.size == counts.size:
        raise BadInput(f"{rows.size} rows, {attempts.size} attempts, {counts.size} counts")
    flat = int(counts.sum())
    if not 0 <= call.term < 2**62:
        raise BadInput(f"commit under term {call.term}")
    if not flat == segments.size == slots.size == generations.size or rows.size > BATCH_MAX:
        raise BadInput(f"{flat} replicas counted, {segments.size} given for {rows.size} rows")
    return CommitRequest(call.term, rows, attempts, crcs, counts, segments, slots, generations)
