"""Reading as the master sees it: where objects lie, who keeps them, which copies are bad."""

from __future__ import annotations

import numpy as np

from moonpool.core.errors import BadInput
from moonpool.pool import messages as m
from moonpool.pool.catalog.base import I32
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.columns import i32, u16, u32, u64, unpack_keys
from moonpool.pool.master_agents import Agents
from moonpool.pool.master_limits import BATCH_MAX, LIST_ROWS
from moonpool.pool.master_links import Links
from moonpool.pool.master_recovery import Recovery
from moonpool.pool.master_requests import Asked, batch_ends
from moonpool.pool.tenancy.scope import listed, reachable


class Reading:
    """Answers that change no object, but for bad copies that a reader reports."""

    def __init__(self, catalog: Catalog, links: Links, agents: Agents, recovery: Recovery) -> None:
        self._catalog = catalog
        self._links = links
        self._agents = agents
        self._recovery = recovery

    def lookup(self, asked: Asked, call: m.Lookup) -> m.Found:
        placed = self._catalog.lookup(
            call.keys.blob, batch_ends(call.keys), call.prefix, asked.wall_ms
        )
        status = placed.status
        if self._recovery.going_on:
            status[status == m.LookupStatus.ABSENT] = m.LookupStatus.RECOVERING
        table = self._catalog.table
        # Whatever row -1 says is multiplied by zero.
        rows, found = placed.rows, placed.rows >= 0
        return m.Found(
            status.tobytes(),
            rows.tobytes(),
            (table.term[rows] * found).tobytes(),
            (table.seq[rows] * found).tobytes(),
            (table.size[rows] * found).tobytes(),
            (table.crc[rows] * found).tobytes(),
            m.ReplicaColumn(
                placed.counts.tobytes(),
                table.replica_segment[placed.replicas].tobytes(),
                table.replica_slot[placed.replicas].tobytes(),
                table.replica_generation[placed.replicas].tobytes(),
            ),
            self._links.topology_version,
        )

    def exists(self, asked: Asked, call: m.Exists) -> m.Existence:
        found = self._catalog.exists(call.keys.blob, batch_ends(call.keys), asked.wall_ms)
        return m.Existence(found.tobytes())

    def list_objects(self, asked: Asked, call: m.List) -> m.Listed:
        limit = min(max(call.limit, 1), BATCH_MAX)
        cursor, looked = min(max(call.cursor, 0), self._catalog.table.rows_max), 0
        found: list[I32] = []
        count = 0
        while cursor >= 0 and looked < LIST_ROWS and count < limit:
            window = limit - count
            rows, cursor = self._catalog.scan(cursor, window, call.prefix, asked.visitor.only)
            looked += window
            found.append(rows)
            count += rows.size
        rows = np.concatenate(found) if found else np.zeros(0, np.int32)
        table = self._catalog.table
        blob, ends = table.keys(rows)
        keys = m.KeyColumn(blob, ends.tobytes())
        if asked.visitor.scope:
            keys = listed(asked.visitor, unpack_keys(keys))
        counts, _ = table.replicas_of(rows)
        return m.Listed(
            keys,
            table.size[rows].tobytes(),
            counts.tobytes(),
            cursor,
        )

    def topology(self, asked: Asked, call: m.Topology) -> m.TopologyIs:
        links = self._links
        endpoints = reachable(asked.visitor, links.endpoints())
        return m.TopologyIs(links.topology_version, self._catalog.term, endpoints)

    def lease(self, asked: Asked, call: m.Lease) -> m.Leased:
        rows, sequences = i32(call.row).tolist(), u64(call.sequence)
        if len(rows) != sequences.size:
            raise BadInput(f"lease on {len(rows)} rows and {sequences.size} sequences")
        session, leases = asked.session, self._catalog.leases
        if call.ttl_ms <= 0:
            leases.release(session, call.lease)
            return m.Leased(call.lease, bytes(len(rows)), 0)
        if call.lease:
            held, ttl_ms = leases.renew(
                session, call.lease, rows, sequences, call.ttl_ms, asked.now
            )
            return m.Leased(call.lease, held.tobytes(), ttl_ms)
        number, granted, ttl_ms = leases.take(session, rows, sequences, call.ttl_ms, asked.now)
        return m.Leased(number, granted.tobytes(), ttl_ms)

    def apply(self, touches: m.Touches, host_id: str, now: float) -> tuple[int, int]:
        """The reads that clients report count for recency; how many, and of how many bytes."""
        rows, sequences = i32(touches.row), u64(touches.sequence)
        if rows.size != sequences.size:
            raise BadInput(f"touches of {rows.size} rows and {sequences.size} sequences")
        self._catalog.touch(rows, sequences, now, host_id)
        table = self._catalog.table
        known = rows[(rows >= 0) & (rows < table.size.size)]
        return rows.size, int(table.size[known].sum())

    def report(self, asked: Asked, call: m.Report) -> m.Done:
        """Corrupt replicas are dropped; an object that has no other is gone."""
        rows, sequences, numbers = i32(call.row), u64(call.sequence), u16(call.segment)
        slots, generations = u32(call.slot), u64(call.generation)
        if not rows.size == sequences.size == numbers.size == slots.size == generations.size:
            raise BadInput("report: columns of unequal length")
        table = self._catalog.table
        bad: set[int] = set()
        for row, sequence, number, slot, generation in zip(
            *(rows.tolist(), sequences.tolist(), numbers.tolist(), slots.tolist()),
            generations.tolist(),
            strict=True,
        ):
            replica = self._replica(number, slot)
            if (
                replica >= 0
                and table.replica_object[replica] == row
                and table.replica_generation[replica] == generation
                and table.seq[row] == sequence
            ):
                bad.add(replica)
        replicas = np.array(sorted(bad), np.int32)
        self._agents.retire(self._catalog.lose(replicas, asked.now, asked.wall_ms))
        return m.Done(len(bad))

    def _replica(self, number: int, slot: int) -> int:
        """The replica row in this slot, -1 for none."""
        segments = self._catalog.segments
        if number >= len(segments) or slot >= segments[number].slots:
            return -1
        return int(segments[number].by_slot[slot])
