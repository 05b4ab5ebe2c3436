"""Writing as the master sees it: reserve, commit, abort, and who waits for a key in flight."""

from __future__ import annotations

import numpy as np

from moonpool.core.errors import BadInput
from moonpool.pool import messages as m
from moonpool.pool.catalog.admitted import Whole
from moonpool.pool.catalog.base import COMMITTED, I32, NO_SEGMENT, RESERVED
from moonpool.pool.catalog.catalog import Catalog, Removal
from moonpool.pool.catalog.commits import CommitRequest
from moonpool.pool.catalog.distinct import distinct
from moonpool.pool.catalog.endings import Ended
from moonpool.pool.columns import i32, u16, u32, u64
from moonpool.pool.master_agents import Agents
from moonpool.pool.master_limits import wait_until
from moonpool.pool.master_links import Links
from moonpool.pool.master_orders import RetireWait
from moonpool.pool.master_removals import Removals
from moonpool.pool.master_requests import Asked, batch_keys, commit_request, put_request
from moonpool.pool.master_waits import AwaitCall, KeyWaiters

_COMMITTED = bytes([m.PutStatus.COMMITTED])


class Writing:
    """Puts from the reservation to their end. A key whose writer gives up goes to who waits."""

    def __init__(
        self,
        catalog: Catalog,
        links: Links,
        agents: Agents,
        removals: Removals,
        waiters: KeyWaiters,
        reservation_ms: int,
    ) -> None:
        self._catalog = catalog
        self._links = links
        self._agents = agents
        self._removals = removals
        self._waiters = waiters
        self._reservation_ms = reservation_ms

    # Reservations.

    def reserve(self, asked: Asked, call: m.Reserve) -> m.Reserved:
        put = put_request(call, asked)
        before = self._catalog.events.next_sequence
        admitted = self._catalog.grant(put, asked.now, asked.wall_ms)
        if isinstance(admitted, Whole):
            n = admitted.rows.size
            rows, attempts = admitted.rows.tobytes(), admitted.attempts.tobytes()
            segments = admitted.segment.to_bytes(2, "little") * n
            return self._reserved(bytes(n), rows, attempts, segments)
        if admitted.retirements:
            self._removals.follow(admitted.retirements, self._catalog.events.keys_since(before))
        return self._reserved(
            admitted.status.tobytes(),
            admitted.rows.tobytes(),
            admitted.attempts.tobytes(),
            admitted.segments.tobytes(),
        )

    def recovering(self, call: m.Reserve, wall_ms: int) -> m.Reserved:
        """The answer to a put that the end of a recovery did not reach in time."""
        found = self._catalog.exists(call.keys.blob, u32(call.keys.ends), wall_ms)
        status = np.where(found, m.PutStatus.EXISTS, m.PutStatus.RECOVERING).astype(np.uint8)
        n = status.size
        return self._reserved(
            status.tobytes(),
            np.full(n, -1, np.int32).tobytes(),
            bytes(8 * n),
            np.full(n * max(call.replicas, 1), NO_SEGMENT, np.uint16).tobytes(),
        )

    def throttled(self, call: m.Reserve) -> m.Reserved:
        """The answer to a put whose tenant's turn did not come in time."""
        n = len(call.keys.ends) // 4
        return self._reserved(
            bytes([m.PutStatus.THROTTLED]) * n,
            np.full(n, -1, np.int32).tobytes(),
            bytes(8 * n),
            np.full(n * max(call.replicas, 1), NO_SEGMENT, np.uint16).tobytes(),
        )

    def _reserved(self, status: bytes, row: bytes, attempt: bytes, segments: bytes) -> m.Reserved:
        return m.Reserved(
            self._catalog.term,
            status,
            row,
            attempt,
            segments,
            self._reservation_ms,
            self._links.topology_version,
        )

    def reoffer(self, asked: Asked, call: m.Reoffer) -> m.Reoffered:
        rows, attempts, failed = i32(call.row), u64(call.attempt), u16(call.failed)
        if not rows.size == attempts.size == failed.size:
            raise BadInput(f"reoffer of {rows.size} rows and {attempts.size} attempts")
        offers, expiries = self._catalog.reoffer(rows, attempts, failed, asked.host_id, asked.now)
        self._agents.expire(expiries)
        return m.Reoffered(offers.tobytes(), self._links.topology_version)

    # Ends.

    def commit(self, asked: Asked, call: m.Commit) -> m.Reply | None:
        """None: answered when no older value of these keys may be read any more."""
        commit = commit_request(call)
        if not (self._removals.waiting or self._waiters or len(self._agents.unheard)):
            if self._catalog.commit_usual(commit, asked.now, asked.wall_ms):
                return m.Committed(_COMMITTED * commit.rows.size)
        replaced = self._replaced(commit) if commit.rows.size else []
        if self._removals.full and self._must_wait(commit, replaced):
            return self._refuse(asked, commit)
        settled = self._catalog.commit(commit, asked.now, asked.wall_ms)
        self._agents.expire(settled.expiries)
        if self._waiters and settled.rows.size:
            for key in self._keys(settled.rows):
                self._waiters.committed(key)
        for key in settled.refused_keys:
            self._next_heir(key, asked.now)
        if len(self._agents.unheard):
            self._supersede(commit.rows[settled.status == m.PutStatus.COMMITTED], asked.now)
        reply = m.Committed(settled.status.tobytes())
        if not settled.retirements and not self._removals.waiting:
            return reply
        # Also what an earlier call committed, whose answer was lost: it may still wait itself.
        committed = commit.rows[settled.status == m.PutStatus.COMMITTED]
        gone = [one for one in replaced if not self._holds(one)]
        wait = RetireWait(asked.session, asked.request, None, reply, None)
        self._removals.wait_for(
            settled.retirements, gone, wait, asked.now, also=self._keys(committed)
        )
        return None

    def _supersede(self, rows: I32, now: float) -> None:
        """What a node that is away may have of these keys is older than what they hold now."""
        table = self._catalog.table
        versions = zip(table.term[rows].tolist(), table.seq[rows].tolist(), strict=True)
        for key, (term, sequence) in zip(self._keys(rows), versions, strict=True):
            self._agents.supersede(key, term, sequence - 1, now)

    def _must_wait(self, commit: CommitRequest, replaced: list[Removal]) -> bool:
        attempts = set(commit.attempts.tolist())
        if any(one.sequence not in attempts for one in replaced):
            return True
        table = self._catalog.table
        rows = commit.rows[(commit.rows >= 0) & (commit.rows < table.rows_max)]
        return self._removals.concern(self._keys(rows[table.state[rows] == RESERVED]))

    def _refuse(self, asked: Asked, commit: CommitRequest) -> m.Committed:
        """No room to wait in: these attempts end, and may be made again."""
        self._removals.refused()
        self.ended(self._catalog.abort(commit.rows, commit.attempts, asked.now), asked.now)
        return m.Committed(bytes([m.PutStatus.GONE]) * commit.rows.size)

    def _replaced(self, commit: CommitRequest) -> list[Removal]:
        """What the rows of this commit hold now, where they hold something."""
        if self._catalog.commits_whole(commit):
            return []
        table = self._catalog.table
        rows = commit.rows[(commit.rows >= 0) & (commit.rows < table.rows_max)]
        rows = rows[table.state[rows] == COMMITTED]
        return self._catalog.versions(distinct(rows)) if rows.size else []

    def _holds(self, one: Removal) -> bool:
        table = self._catalog.table
        row = table.find(one.key, np.array([len(one.key)], np.uint32))[0]
        return bool(row >= 0 and table.seq[row] == one.sequence and table.term[row] == one.term)

    def _keys(self, rows: I32) -> list[bytes]:
        return [self._catalog.table.key(row) for row in rows.tolist()]

    def abort(self, asked: Asked, call: m.Abort) -> m.Done:
        rows, attempts = i32(call.row), u64(call.attempt)
        if rows.size != attempts.size:
            raise BadInput(f"abort of {rows.size} rows and {attempts.size} attempts")
        ended = self._catalog.abort(rows, attempts, asked.now)
        self.ended(ended, asked.now)
        return m.Done(len(ended.keys))

    def ended(self, ended: Ended, now: float) -> None:
        """These reservations ended without a value."""
        self._agents.expire(ended.expiries)
        for key in ended.keys:
            self._next_heir(key, now)

    def tick(self, now: float) -> None:
        self.ended(self._catalog.expire(now), now)
        for key in self._catalog.lapsed(now):
            self._next_heir(key, now)
        self._waiters.expire(now)

    def next_deadline(self) -> float | None:
        heirs = (heir.until for heir in self._catalog.heirs.values())
        moments = [
            self._catalog.reservations.next_deadline,
            min(heirs, default=None),
            self._waiters.next_deadline,
        ]
        return min((moment for moment in moments if moment is not None), default=None)

    # Waiting for a key in flight.

    def wait(self, asked: Asked, call: m.Await) -> None:
        keys = batch_keys(call.keys)
        table = self._catalog.table
        rows = table.find(call.keys.blob, u32(call.keys.ends))
        safe = np.maximum(rows, 0)
        writing = (rows >= 0) & self._catalog.rows.in_flight(safe)
        there = (rows >= 0) & (table.state[safe] == COMMITTED)
        status: list[m.AwaitStatus | None] = []
        for i, key in enumerate(keys):
            heir = self._catalog.heirs.get(key)
            if writing[i] or (heir is not None and heir.owner != asked.session):
                status.append(None)
            else:
                status.append(m.AwaitStatus.COMMITTED if there[i] else m.AwaitStatus.ABSENT)
        deadline = wait_until(asked.now, call.wait_ms)
        self._waiters.add(AwaitCall(asked.session, asked.request, deadline, keys, status, 0))

    def _next_heir(self, key: bytes, now: float) -> None:
        if key in self._waiters:
            heir = self._waiters.given_up(key)
            if heir is not None:
                self._catalog.bequeath(key, heir, now)
