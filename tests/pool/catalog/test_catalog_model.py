"""The catalog against a model of dictionaries that knows nothing of rows, lists or columns.

The model mirrors what the catalog says it did and judges it: P2 (visible from commit on, nothing
left behind), P3 (no second writer, no false success), P5 (the old value until the new one), P9
(prefixes, parents with their descendants), capacity, and rows that leak.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moonpool.pool.catalog.admission import Admitted
from moonpool.pool.messages import LookupStatus, PutStatus
from tests.pool.catalog.harness import SMALL, Pool

KEYS = [b"k%d" % i for i in range(10)]
key_lists = st.lists(st.sampled_from(KEYS), min_size=1, max_size=5)
SPREAD = (PutStatus.GRANTED, PutStatus.EXISTS)


@dataclass
class Value:
    attempt: int
    size: int
    pinned: bool
    segments: frozenset[int]
    leased: bool = False


@dataclass
class Open:
    key: bytes
    size: int
    parent: bytes | None
    owner: int
    pin: int
    admitted: Admitted
    place: int


class CatalogModel(RuleBasedStateMachine):
    policy = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(replace(SMALL, eviction=self.policy))
        self.values: dict[bytes, Value] = {}
        self.ever_evicted: set[bytes] = set()
        self.open: dict[int, Open] = {}
        self.parents: dict[bytes, bytes] = {}  # of keys that have a row
        self.event = 1
        self.down: set[int] = set()

    @initialize(capacities=st.lists(st.integers(0, 40), min_size=1, max_size=3))
    def start(self, capacities: list[int]) -> None:
        for capacity in capacities:
            self.pool.add_segment(capacity, slots=6)

    # What the catalog says it did.

    def consume(self) -> list[tuple[str, bytes]]:
        events, rebase = self.pool.catalog.events.read(1, self.event, 10_000)
        assert not rebase
        self.event += len(events)
        return [(event.kind, event.key) for event in events]

    def closure(self, key: bytes) -> set[bytes]:
        below = {key}
        while True:
            more = {child for child, parent in self.parents.items() if parent in below} - below
            if not more:
                return below
            below |= more

    def ancestors(self, key: bytes) -> set[bytes]:
        above: set[bytes] = set()
        at: bytes | None = key
        while at is not None and at not in above:
            above.add(at)
            at = self.parents.get(at)
        return above

    def in_flight(self) -> set[bytes]:
        return {one.key for one in self.open.values()}

    def evicted(self, sheltered: set[bytes]) -> None:
        """Check and mirror the evictions of one decision."""
        gone = [key for kind, key in self.consume() if kind == "evict"]
        self.ever_evicted.update(gone)
        for key in gone:
            family = self.closure(key)
            assert not family & sheltered, f"{key!r} belongs to the batch"
            assert not family & self.in_flight(), f"{key!r} has a child in flight"
            for member in family & self.values.keys():
                assert not self.values[member].pinned and not self.values[member].leased
                assert member in gone, f"{member!r} stayed without its ancestor {key!r}"
        order = {key: i for i, key in enumerate(gone)}
        for key in gone:
            parent = self.parents.get(key)
            assert parent not in order or order[key] < order[parent], "children go first"
            del self.values[key]
        self.prune()

    def prune(self) -> None:
        """Keys without value, writer or child have no row."""
        while True:
            named = set(self.parents.values())
            idle = [
                key
                for key in self.parents
                if key not in self.values and key not in self.in_flight() and key not in named
            ]
            if not idle:
                return
            for key in idle:
                del self.parents[key]

    def rows(self) -> set[bytes]:
        live = self.values.keys() | self.in_flight()
        ghosts = set(self.parents.values())
        return live | ghosts | self.parents.keys()

    # Rules.

    @rule(
        keys=key_lists,
        sizes=st.lists(st.integers(0, 15), min_size=5, max_size=5),
        chain=st.booleans(),
        replace=st.booleans(),
        replicas=st.integers(1, 2),
        pin=st.sampled_from([0, 0, 0, 2]),
        outside=st.sampled_from([None, *KEYS]),
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

    def ghostly(self, keys: list[bytes], status: list[PutStatus]) -> set[bytes]:
        """Ancestors by an old link of keys that were put under another parent meanwhile."""
        return set().union(*(self.ancestors(k) - {k} for k in keys if k not in self.values), set())

    def link(self, key: bytes, parent: bytes | None) -> None:
        self.parents.pop(key, None)
        if parent is not None:
            self.parents[key] = parent
        self.prune()

    def judge(
        self,
        keys: list[bytes],
        status: list[PutStatus],
        names: list[bytes | None],
        chain: bool,
        replace: bool,
        busy: set[bytes],
    ) -> None:
        granted: set[bytes] = set()
        stopped = False
        for key, one, parent in zip(keys, status, names, strict=True):
            if one is PutStatus.GRANTED:
                assert not (chain and stopped), f"a hole before {key!r}: {status}"
                assert key not in busy and key not in granted
                assert replace or key not in self.values or self.unreachable(key)
                assert parent is None or parent in granted or parent in self.values
                granted.add(key)
            elif one is PutStatus.EXISTS:
                assert key in self.values and not replace
            elif one is PutStatus.IN_FLIGHT:
                assert key in busy or keys.count(key) > 1
            stopped = stopped or one not in SPREAD

    def unreachable(self, key: bytes) -> bool:
        return self.values[key].segments <= self.down

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(1, 4))
    def commit(self, data: st.DataObject, count: int) -> None:
        first = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        batch = [one for one in self.open.values() if one.admitted is first.admitted]
        batch = sorted(batch, key=lambda one: one.place)[:count]
        call = self.pool.sealed(first.admitted, [one.place for one in batch])
        settled = self.pool.commit(call)
        done: set[bytes] = set()
        for one, byte in zip(batch, settled.status.tolist(), strict=True):
            attempt = int(one.admitted.attempts[one.place])
            del self.open[attempt]
            fits = one.parent is None or one.parent in self.values or one.parent in done
            assert (byte == PutStatus.COMMITTED) == fits, (one, byte)
            if fits:
                done.add(one.key)
                where = frozenset(
                    s for s in one.admitted.segments[one.place].tolist() if s != 0xFFFF
                )
                replaced = one.key in self.values
                self.values[one.key] = Value(attempt, one.size, one.pin == 2, where)
                if replaced and not self.ring(one.key, one.parent):
                    self.link(one.key, one.parent)
        self.prune()
        assert {kind for kind, _ in self.consume()} <= {"put", "replace"}

    def ring(self, key: bytes, parent: bytes | None) -> bool:
        return parent is not None and key in self.ancestors(parent)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.open)))
        one = self.open.pop(attempt)
        at = [one.place]
        ended = self.pool.catalog.abort(
            one.admitted.rows[at], one.admitted.attempts[at], self.pool.now
        )
        assert ended.keys == [one.key]
        self.prune()

    @rule(seconds=st.sampled_from([1.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.pool.now += seconds
        for key in self.pool.catalog.expire(self.pool.now).keys:
            attempt = next(a for a, one in self.open.items() if one.key == key)
            del self.open[attempt]
        for segment in self.pool.catalog.segments:
            segment.settle(self.pool.now + 1, self.pool.now + 1)
        self.prune()

    @rule(owner=st.integers(1, 2))
    def owner_leaves(self, owner: int) -> None:
        ended = self.pool.catalog.end_owner(owner, self.pool.now)
        mine = {a: one for a, one in self.open.items() if one.owner == owner}
        assert sorted(ended.keys) == sorted(one.key for one in mine.values())
        for attempt in mine:
            del self.open[attempt]
        if owner == 1:
            for value in self.values.values():
                value.leased = False
        for segment in self.pool.catalog.segments:
            segment.settle(self.pool.now + 1, self.pool.now + 1)
        self.prune()

    @rule(keys=key_lists)
    def remove(self, keys: list[bytes]) -> None:
        assert self.pool.remove(keys) == [key in self.values for key in keys]
        for key in set(keys) & self.values.keys():
            del self.values[key]
        assert {kind for kind, _ in self.consume()} <= {"remove"}
        self.prune()

    @rule(keys=key_lists)
    def touch(self, keys: list[bytes]) -> None:
        known = [key for key in keys if key in self.values]
        if known:
            assert self.pool.touch(known) == len(known)

    @rule(key=st.sampled_from(KEYS))
    def lease(self, key: bytes) -> None:
        if key in self.values:
            row = self.pool.row(key)
            sequences = self.pool.catalog.table.seq[[row]]
            # So long that only owner 1's leaving or the object's end ends it here.
            leases = self.pool.catalog.leases
            leases.take(1, [row], sequences, SMALL.lease_ms_max, self.pool.now)
            self.values[key].leased = True

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


CatalogModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCatalogModel = CatalogModel.TestCase


class SieveModel(CatalogModel):
    policy = "sieve"


class ArcModel(CatalogModel):
    policy = "arc"


class S3FifoModel(CatalogModel):
    policy = "s3fifo"


FEWER = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestSieve = SieveModel.TestCase
TestArc = ArcModel.TestCase
TestS3Fifo = S3FifoModel.TestCase
TestSieve.settings = TestArc.settings = TestS3Fifo.settings = FEWER
