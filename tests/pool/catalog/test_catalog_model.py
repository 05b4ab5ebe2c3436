"""The catalog against a model of dictionaries that knows nothing of rows, lists or columns.

The model mirrors what the catalog says it did and judges it: P2 (visible from commit on, nothing
left behind), P3 (no second writer, no false success), P5 (the old value until the new one), P9
(prefixes, parents with their descendants), capacity, and rows that leak.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moonpool.pool.messages import LookupStatus, PutStatus
from tests.pool.catalog.harness import SMALL, Pool
from tests.pool.catalog.mirror import Mirror, Open, Value

# They take seconds; but a failure is made smaller for up to five minutes before it is told.
pytestmark = pytest.mark.timeout(480)
KEYS = [b"k%d" % i for i in range(8)]
key_lists = st.lists(st.sampled_from(KEYS), min_size=1, max_size=5)


class CatalogModel(Mirror, RuleBasedStateMachine):
    policy = "lru"

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        Mirror.__init__(self, Pool(replace(SMALL, eviction=self.policy)))

    @initialize(capacities=st.lists(st.sampled_from([30, 20, 40, 8, 0]), min_size=1, max_size=3))
    def start(self, capacities: list[int]) -> None:
        for capacity in capacities:
            self.pool.add_segment(capacity, slots=6)

    @rule(
        keys=key_lists,
        sizes=st.lists(st.integers(0, 15), min_size=5, max_size=5),
        chain=st.booleans(),
        replace=st.booleans(),
        replicas=st.integers(1, 2),
        pin=st.sampled_from([0, 0, 0, 2]),
        outside=st.none() | st.sampled_from(KEYS),
        owner=st.integers(1, 2),
    )
    def reserve(
        self,
        keys: list[bytes],
        sizes: list[int],
        chain: bool,
        replace: bool,
        replicas: int,
        pin: int,
        outside: bytes | None,
        owner: int,
    ) -> None:
        n = len(keys)
        parents = [i - 1 if chain and i else -1 for i in range(n)]
        others: list[bytes] = []
        if outside is not None:
            parents[0], others = -2, [outside]
        before = set(self.values)
        busy = self.in_flight()
        admitted = self.pool.reserve(
            keys,
            sizes[:n],
            parents=parents,
            outside=others,
            chain=chain,
            replace=replace,
            replicas=replicas,
            min_replicas=1,
            pin=pin,
            owner=owner,
        )
        status = [PutStatus(byte) for byte in admitted.status.tolist()]
        names = [keys[p] if p >= 0 else (outside if p == -2 else None) for p in parents]
        sheltered = set().union(*(self.ancestors(k) for k in keys))
        sheltered |= self.ancestors(outside) if outside in self.values else set()
        self.evicted({key for key in sheltered if key in before} - self.ghostly(keys, status))
        self.judge(keys, status, names, chain, replace, busy)
        for i, key in enumerate(keys):
            if status[i] is PutStatus.GRANTED:
                attempt = int(admitted.attempts[i])
                self.open[attempt] = Open(key, sizes[i], names[i], owner, pin, admitted, i)
                if key not in self.values:
                    self.link(key, names[i])

    @rule(
        keys=key_lists,
        size=st.integers(1, 12),
        chain=st.booleans(),
        replace=st.booleans(),
        outside=st.none() | st.sampled_from(KEYS),
        meanwhile=st.sampled_from(["", "", "", "its parent goes", "its old value goes"]),
    )
    def put(
        self,
        keys: list[bytes],
        size: int,
        chain: bool,
        replace: bool,
        outside: bytes | None,
        meanwhile: str,
    ) -> None:
        """Reserved and committed at once: most other rules need values."""
        before = set(self.open)
        self.reserve(keys, [size] * 5, chain, replace, 1, 0, outside, 1)
        match meanwhile:
            case "its parent goes" if outside is not None:
                self.remove([outside])
            case "its old value goes":
                self.remove(keys)
        if fresh := sorted(self.open.keys() - before):
            self.commit(fresh[0], len(fresh))

    @precondition(lambda self: self.open)
    @rule(attempt=st.integers(0, 7), count=st.integers(1, 4))
    def commit_some(self, attempt: int, count: int) -> None:
        self.commit(sorted(self.open)[attempt % len(self.open)], count)

    def commit(self, attempt: int, count: int) -> None:
        """The leading `count` of what is open of the batch of `attempt`."""
        first = self.open[attempt]
        batch = [one for one in self.open.values() if one.admitted is first.admitted]
        batch = sorted(batch, key=lambda one: one.place)[:count]
        call = self.pool.sealed(first.admitted, [one.place for one in batch])
        settled = self.pool.commit(call)
        done = self.fitting(batch)
        for one, byte in zip(batch, settled.status.tolist(), strict=True):
            attempt = int(one.admitted.attempts[one.place])
            del self.open[attempt]
            assert (byte == PutStatus.COMMITTED) == (one.key in done), (one, byte)
            if one.key in done:
                where = frozenset(
                    s for s in one.admitted.segments[one.place].tolist() if s != 0xFFFF
                )
                self.values[one.key] = Value(attempt, one.size, one.pin == 2, where)
                if not self.ring(one.key, one.parent):
                    self.link(one.key, one.parent)
        self.prune()
        assert {kind for kind, _ in self.consume()} <= {"put", "replace"}

    # One rule for all of these: each has as many turns, and most of them should be puts.
    @rule(
        how=st.sampled_from(["abort", "abort", "expire", "leave"]),
        which=st.integers(0, 7),
        seconds=st.sampled_from([1.0, 31.0]),
        owner=st.integers(1, 2),
    )
    def reservations_end(self, how: str, which: int, seconds: float, owner: int) -> None:
        match how:
            case "abort" if self.open:
                self.abort(sorted(self.open)[which % len(self.open)])
            case "expire":
                self.time_passes(seconds)
            case "leave":
                self.owner_leaves(owner)
        for segment in self.pool.catalog.segments:
            segment.settle(self.pool.now + 1, self.pool.now + 1)
        self.prune()

    def abort(self, attempt: int) -> None:
        one = self.open.pop(attempt)
        at = [one.place]
        ended = self.pool.catalog.abort(
            one.admitted.rows[at], one.admitted.attempts[at], self.pool.now
        )
        assert ended.keys == [one.key]

    def time_passes(self, seconds: float) -> None:
        self.pool.now += seconds
        for key in self.pool.catalog.expire(self.pool.now).keys:
            attempt = next(a for a, one in self.open.items() if one.key == key)
            del self.open[attempt]

    def owner_leaves(self, owner: int) -> None:
        ended = self.pool.catalog.end_owner(owner, self.pool.now)
        mine = {a: one for a, one in self.open.items() if one.owner == owner}
        assert sorted(ended.keys) == sorted(one.key for one in mine.values())
        for attempt in mine:
            del self.open[attempt]
        if owner == 1:
            for value in self.values.values():
                value.leased = False

    @rule(keys=key_lists)
    def remove(self, keys: list[bytes]) -> None:
        assert self.pool.remove(keys) == [key in self.values for key in keys]
        for key in set(keys) & self.values.keys():
            del self.values[key]
        assert {kind for kind, _ in self.consume()} <= {"remove"}
        self.prune()

    @rule(keys=key_lists, lease=st.booleans())
    def use(self, keys: list[bytes], lease: bool) -> None:
        known = [key for key in keys if key in self.values]
        if not known:
            return
        assert self.pool.touch(known) == len(known)
        if lease:
            row = self.pool.row(known[0])
            sequences = self.pool.catalog.table.seq[[row]]
            # So long that only owner 1's leaving or the object's end ends it here.
            leases = self.pool.catalog.leases
            leases.take(1, [row], sequences, SMALL.lease_ms_max, self.pool.now)
            self.values[known[0]].leased = True

    @rule(segment=st.integers(0, 2), alive=st.booleans())
    def node(self, segment: int, alive: bool) -> None:
        segments = self.pool.catalog.segments
        if segment < len(segments):
            segments.set_alive(segments[segment], alive)
            segments[segment].open = alive
            (self.down.discard if alive else self.down.add)(segment)

    # What must hold always.

    @invariant()
    def visible_is_what_was_committed(self) -> None:
        found = self.pool.look(KEYS)
        for key, status in zip(KEYS, found, strict=True):
            if key in self.values:
                expected = LookupStatus.UNREACHABLE if self.unreachable(key) else LookupStatus.FOUND
            elif key in self.in_flight():
                expected = LookupStatus.IN_FLIGHT
            else:
                expected = LookupStatus.ABSENT
                if status is LookupStatus.EVICTED and key in self.ever_evicted:
                    continue
            assert status is expected, (key, status, expected)
        table = self.pool.catalog.table
        for key, value in self.values.items():
            row = self.pool.row(key)
            assert int(table.seq[row]) == value.attempt and int(table.size[row]) == value.size

    @invariant()
    def columns_agree_and_capacity_holds(self) -> None:
        self.pool.check()

    @invariant()
    def no_row_leaks(self) -> None:
        assert len(self.pool.catalog.table) == len(self.rows())

    def teardown(self) -> None:
        for owner in (1, 2):
            self.pool.catalog.end_owner(owner, self.pool.now)
        self.pool.remove(KEYS)
        assert len(self.pool.catalog.table) == 0
        assert self.pool.catalog.table.replica_count == 0
        for segment in self.pool.catalog.segments:
            segment.settle(self.pool.now + 1, self.pool.now + 1)
            assert segment.free_bytes == segment.capacity_bytes
            assert segment.free_slots == segment.slots


CatalogModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestCatalogModel = CatalogModel.TestCase


class SieveModel(CatalogModel):
    policy = "sieve"


class ArcModel(CatalogModel):
    policy = "arc"


class S3FifoModel(CatalogModel):
    policy = "s3fifo"


FEWER = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestSieve = SieveModel.TestCase
TestArc = ArcModel.TestCase
TestS3Fifo = S3FifoModel.TestCase
TestSieve.settings = TestArc.settings = TestS3Fifo.settings = FEWER
