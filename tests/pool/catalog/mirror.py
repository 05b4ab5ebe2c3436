"""What a catalog must hold by what it says that it did, in dictionaries; and the judge of that.

It knows nothing of rows, lists or columns. Never used outside tests.
"""

from __future__ import annotations

from dataclasses import dataclass

from moonpool.pool.catalog.admitted import Admitted
from moonpool.pool.messages import PutStatus
from tests.pool.catalog.harness import Pool

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


class Mirror:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.values: dict[bytes, Value] = {}
        self.ever_evicted: set[bytes] = set()
        self.open: dict[int, Open] = {}
        self.parents: dict[bytes, bytes] = {}  # of keys that have a row
        self.event = 1
        self.down: set[int] = set()

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

    def fitting(self, batch: list[Open]) -> set[bytes]:
        """Keys whose parent is there or comes with them: also where a value was replaced under
        itself or under its own child, and went before its replacement came."""
        done = {one.key for one in batch}
        while True:
            lost = {
                one.key
                for one in batch
                if one.parent is not None and one.parent not in self.values.keys() | done
            }
            if not lost & done:
                return done
            done -= lost

    def ring(self, key: bytes, parent: bytes | None) -> bool:
        return parent is not None and key in self.ancestors(parent)

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
