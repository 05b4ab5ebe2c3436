"""A catalog with obedient agents: claims get slots, retired and expired ones come back at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from moonpool._core import Table
from moonpool.pool.catalog.admitted import Admitted
from moonpool.pool.catalog.base import NO_SEGMENT, CatalogConfig, Expiry, Retirement
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.catalog.commits import CommitRequest
from moonpool.pool.catalog.reservations import PutRequest
from moonpool.pool.catalog.segments import Segment
from moonpool.pool.catalog.settlement import Settled
from moonpool.pool.catalog.standing import LISTS_PER_SEGMENT
from moonpool.pool.columns import pack_keys, u32
from moonpool.pool.messages import LookupStatus, PutStatus

SMALL = CatalogConfig(rows_max=4096, segments_max=8, reservations_max=2048, events_max=512)


def make_catalog(config: CatalogConfig = SMALL, seed: int = 1) -> Catalog:
    table = Table(config.rows_max, 2 * config.rows_max, LISTS_PER_SEGMENT * config.segments_max)
    return Catalog(config, table, seed=seed)


def status_of(admitted: Admitted) -> list[PutStatus]:
    return [PutStatus(s) for s in admitted.status.tolist()]


@dataclass
class Agent:
    """Hands out slots of one segment."""

    segment: Segment
    free: list[int]
    generation: int = 1
    held: dict[int, int] = field(default_factory=dict)  # slot -> generation
    claimed: dict[int, tuple[int, int]] = field(default_factory=dict)  # by attempt

    def claim(self, attempt: int) -> tuple[int, int]:
        slot = self.free.pop()
        self.generation += 2
        self.held[slot] = self.generation
        self.claimed[attempt] = slot, self.generation
        return self.claimed[attempt]

    def expire(self, attempts: Sequence[int]) -> None:
        """What was claimed for these counts nowhere."""
        for attempt in attempts:
            if attempt in self.claimed:
                self.retire(*self.claimed.pop(attempt))

    def retire(self, slot: int, generation: int) -> None:
        if self.held.get(slot) == generation:
            del self.held[slot]
            self.free.append(slot)


class Pool:
    """Drives one catalog the way clients and agents do."""

    def __init__(self, config: CatalogConfig = SMALL, seed: int = 1) -> None:
        self.catalog = make_catalog(config, seed)
        self.agents: list[Agent] = []
        self.now = 0.0
        self.wall_ms = 1_000_000

    def add_segment(
        self, capacity: int, *, slots: int = 1024, node: str = "", host: str = "h0"
    ) -> Segment:
        number = len(self.agents)
        segment = self.catalog.segments.add(
            number.to_bytes(16, "big"), node or f"n{number}", host, capacity, slots
        )
        segment.open = segment.known = True
        self.agents.append(Agent(segment, list(range(slots))))
        return segment

    def request(
        self,
        keys: Sequence[bytes],
        sizes: Sequence[int] | int = 1,
        *,
        parents: Sequence[int] | None = None,
        outside: Sequence[bytes] = (),
        owner: int = 1,
        replicas: int = 1,
        min_replicas: int = 0,
        pin: int = 0,
        pin_ttl_ms: int = 0,
        pin_refresh: bool = False,
        group: bytes = b"",
        tenant: int = 0,
        expiry_ms: int = 0,
        chain: bool = False,
        replace: bool = False,
        prefer: int = -1,
        host: str = "h0",
    ) -> PutRequest:
        n = len(keys)
        if parents is None:
            parents = [i - 1 if chain else -1 for i in range(n)]
        column, others = pack_keys(keys), pack_keys(outside)
        sizes = [sizes] * n if isinstance(sizes, int) else sizes
        return PutRequest(
            owner=owner,
            blob=column.blob,
            ends=u32(column.ends),
            sizes=np.array(sizes, np.uint64),
            parent_of=np.array(parents, np.int32),
            outside_blob=others.blob,
            outside_ends=u32(others.ends),
            replicas=replicas,
            min_replicas=min_replicas or replicas,
            pin=pin,
            pin_ttl_ms=pin_ttl_ms,
            pin_refresh=pin_refresh,
            group=group,
            tenant=tenant,
            expiry_ms=expiry_ms,
            chain=chain,
            replace=replace,
            prefer_segment=prefer,
            host_id=host,
        )

    def reserve(
        self, keys: Sequence[bytes], sizes: Sequence[int] | int = 1, **how: object
    ) -> Admitted:
        admitted = self.catalog.reserve(
            self.request(keys, sizes, **how),  # type: ignore[arg-type]
            self.now,
            self.wall_ms,
        )
        self.retire(admitted.retirements)
        return admitted

    def retire(self, retirements: Sequence[Retirement]) -> None:
        for one in retirements:
            for slot, generation in zip(one.slots.tolist(), one.generations.tolist(), strict=True):
                self.agents[one.segment].retire(slot, generation)

    def expire(self, expiries: Sequence[Expiry]) -> None:
        for one in expiries:
            self.agents[one.segment].expire(one.sequences.tolist())

    def sealed(self, admitted: Admitted, places: Sequence[int] | None = None) -> CommitRequest:
        """Claim and seal every promised replica of the granted keys."""
        if places is None:
            places = np.flatnonzero(admitted.attempts).tolist()
        counts, segments, slots, generations = [], [], [], []
        for place in places:
            mine = [s for s in admitted.segments[place].tolist() if s != NO_SEGMENT]
            counts.append(len(mine))
            for segment in mine:
                slot, generation = self.agents[segment].claim(int(admitted.attempts[place]))
                segments.append(segment)
                slots.append(slot)
                generations.append(generation)
        at = np.array(places, np.int64)
        return CommitRequest(
            self.catalog.term,
            admitted.rows[at],
            admitted.attempts[at],
            np.arange(len(places), dtype=np.uint32),
            np.array(counts, np.uint8),
            np.array(segments, np.uint16),
            np.array(slots, np.uint32),
            np.array(generations, np.uint64),
        )

    def commit(self, call: CommitRequest) -> Settled:
        settled = self.catalog.commit(call, self.now, self.wall_ms)
        self.retire(settled.retirements)
        self.expire(settled.expiries)
        return settled

    def put(
        self, keys: Sequence[bytes], sizes: Sequence[int] | int = 1, **how: object
    ) -> list[PutStatus]:
        """Reserve, seal, commit: what became of each key."""
        admitted = self.reserve(keys, sizes, **how)
        status = [PutStatus(s) for s in admitted.status.tolist()]
        call = self.sealed(admitted)
        if call.rows.size:
            settled = self.commit(call)
            for place, byte in zip(
                np.flatnonzero(admitted.attempts).tolist(), settled.status.tolist(), strict=True
            ):
                status[place] = PutStatus(byte)
        return status

    def look(self, keys: Sequence[bytes], prefix: bool = False) -> list[LookupStatus]:
        column = pack_keys(keys)
        placed = self.catalog.lookup(column.blob, u32(column.ends), prefix, self.wall_ms)
        return [LookupStatus(s) for s in placed.status.tolist()]

    def found(self, keys: Sequence[bytes]) -> list[bytes]:
        return [
            key
            for key, status in zip(keys, self.look(keys), strict=True)
            if status is LookupStatus.FOUND
        ]

    def row(self, key: bytes) -> int:
        return int(self.catalog.table.find(key, np.array([len(key)], np.uint32))[0])

    def touch(self, keys: Sequence[bytes]) -> int:
        rows = np.array([self.row(key) for key in keys], np.int32)
        return self.catalog.touch(rows, self.catalog.table.seq[rows], self.now)

    def remove(self, keys: Sequence[bytes]) -> list[bool]:
        column = pack_keys(keys)
        removed, _, retirements = self.catalog.remove(
            column.blob, u32(column.ends), self.now, self.wall_ms
        )
        self.retire(retirements)
        return [bool(one) for one in removed]

    def check(self) -> None:
        """What must hold after every step."""
        table, catalog = self.catalog.table, self.catalog
        rows, cursor = table.scan(0, table.rows_max)
        assert cursor == -1
        committed = rows[table.state[rows] == 2]
        assert committed.size == catalog.rows.objects
        counts, replicas = table.replicas_of(committed)
        assert (counts > 0).all()
        for segment in catalog.segments:
            mine = replicas[table.replica_segment[replicas] == segment.id]
            sizes = table.size[table.replica_object[mine]]
            assert segment.committed_bytes == int(sizes.sum())
            assert segment.objects == mine.size
            assert segment.committed_bytes + segment.promised_bytes <= segment.capacity_bytes
            assert sorted(segment.by_slot[segment.by_slot >= 0].tolist()) == sorted(mine.tolist())
            promised = sum(late.size for late in segment.late)
            for batch in catalog.reservations:
                where = (batch.segments == segment.id) & batch.open[:, None]
                promised += int((batch.sizes * where.sum(axis=1).astype(np.uint64)).sum())
            assert segment.promised_bytes == promised
        assert set(catalog.table.list_iter(0).tolist()) <= set(replicas.tolist())
        ghosts = rows[table.state[rows] == 3]
        assert (table.children[ghosts] > 0).all(), "a ghost without children leaked"
        assert not (table.state[rows] == 0).any()
        assert not (table.flags[rows] & (4 | 32)).any()
