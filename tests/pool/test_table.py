"""The native row table against its twin: any calls give the same answers and columns."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moonpool._core import Table, TableFullError
from tests.pool.table_twin import TableTwin

ROWS, REPLICAS, LISTS = 12, 16, 3
OBJECT_COLUMNS = (
    *("state", "flags", "tenant", "term", "seq", "size", "crc", "expiry_ms", "attempt", "pin"),
    *("wanted", "parent", "first_child", "next_sibling", "prev_sibling", "children", "replica"),
)
REPLICA_COLUMNS = (
    *("replica_state", "replica_slot", "replica_generation", "replica_object", "replica_segment"),
    *("replica_next", "replica_list"),
)

keys = st.lists(st.sampled_from([b"a", b"ab", b"b" * 80, b"c" * 1024, b"d" * 7]), max_size=5) | (
    st.lists(st.binary(min_size=1, max_size=20), max_size=5)
)
# Small numbers, so that calls often name the same rows; some are never live.
row_lists = st.lists(st.integers(-1, ROWS), max_size=6)
replica_lists = st.lists(st.integers(-1, REPLICAS), max_size=6)
list_ids = st.integers(-1, LISTS)


def array(values: Any, dtype: Any) -> npt.NDArray[Any]:
    return np.array(values, dtype)


def batch(names: list[bytes]) -> tuple[bytes, npt.NDArray[np.uint32]]:
    return b"".join(names), np.cumsum([len(name) for name in names], dtype=np.uint32)


def plain(answer: Any) -> Any:
    """Arrays as (dtype, values), so that answers compare with ==."""
    if isinstance(answer, np.ndarray):
        return str(answer.dtype), answer.tolist()
    return tuple(plain(part) for part in answer) if isinstance(answer, tuple) else answer


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return plain(call())
    except (IndexError, ValueError, TableFullError) as error:
        return type(error)


class TableAgainstTwin(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.native = Table(ROWS, REPLICAS, LISTS)
        self.twin = TableTwin(ROWS, REPLICAS, LISTS)
        self.seq = 1

    def both(self, method: str, *args: Any, **kwargs: Any) -> Any:
        expected = outcome(lambda: getattr(self.twin, method)(*args, **kwargs))
        assert outcome(lambda: getattr(self.native, method)(*args, **kwargs)) == expected
        return expected

    def live_rows(self) -> list[int]:
        rows: list[int] = self.twin.scan(0, ROWS)[0].tolist()
        return rows

    @rule(names=keys)
    def intern(self, names: list[bytes]) -> None:
        self.both("intern", *batch(names))

    @rule(names=keys)
    def find(self, names: list[bytes]) -> None:
        self.both("find", *batch(names))

    @rule(rows=row_lists)
    def erase(self, rows: list[int]) -> None:
        self.both("erase", array(rows, np.int32))

    @precondition(lambda self: len(self.twin) > 0)
    @rule(choice=st.data())
    def erase_trees(self, choice: st.DataObject) -> None:
        row = choice.draw(st.sampled_from(self.live_rows()))
        tree = self.native.descendants(array([row], np.int32))
        self.both("remove_replicas", self.native.replicas_of(tree)[1])
        self.both("erase", tree)

    @rule(rows=row_lists)
    def read_keys(self, rows: list[int]) -> None:
        self.both("keys", array(rows, np.int32))
        for row in rows:
            self.both("key", row)

    @rule(start=st.integers(-1, ROWS + 1), most=st.integers(0, ROWS), prefix=st.binary(max_size=1))
    def scan(self, start: int, most: int, prefix: bytes) -> None:
        self.both("scan", start, most, prefix)

    @rule(links=st.lists(st.tuples(st.integers(0, ROWS), st.integers(-1, ROWS)), max_size=6))
    def set_parent(self, links: list[tuple[int, int]]) -> None:
        rows, parents = [row for row, _ in links], [parent for _, parent in links]
        self.both("set_parent", array(rows, np.int32), array(parents, np.int32))

    @precondition(lambda self: len(self.twin) > 1)
    @rule(choice=st.data())
    def link_live_rows(self, choice: st.DataObject) -> None:
        links = st.lists(st.sampled_from(self.live_rows()), min_size=2, max_size=6)
        chain = choice.draw(links)
        self.both("set_parent", array(chain[1:], np.int32), array(chain[:-1], np.int32))

    @rule(rows=row_lists)
    def walk(self, rows: list[int]) -> None:
        for method in ("descendants", "ancestors_order", "replicas_of"):
            self.both(method, array(rows, np.int32))
            live = [row for row in rows if row in self.live_rows()]
            self.both(method, array(live, np.int32))

    @precondition(lambda self: len(self.twin) > 0)
    @rule(choice=st.data(), segment=st.integers(0, LISTS), slot=st.integers(0, 9))
    def add_replicas(self, choice: st.DataObject, segment: int, slot: int) -> None:
        rows = choice.draw(st.lists(st.sampled_from(self.live_rows()), max_size=4))
        places = array([segment] * len(rows), np.uint16), array([slot] * len(rows), np.uint32)
        generations = array(range(len(rows)), np.uint64)
        self.both("add_replicas", array(rows, np.int32), *places, generations)

    @rule(replicas=replica_lists)
    def remove_replicas(self, replicas: list[int]) -> None:
        self.both("remove_replicas", array(replicas, np.int32))

    @rule(list_id=list_ids, replicas=replica_lists, replica=st.integers(0, REPLICAS - 1))
    def list_push(self, list_id: int, replicas: list[int], replica: int) -> None:
        self.both("list_push", list_id, array(replicas, np.int32))
        self.both("list_push", list_id, array([replica], np.int32))

    @rule(replicas=replica_lists)
    def list_remove(self, replicas: list[int]) -> None:
        self.both("list_remove", array(replicas, np.int32))

    @rule(replicas=replica_lists, replica=st.integers(0, REPLICAS - 1))
    def list_touch(self, replicas: list[int], replica: int) -> None:
        self.both("list_touch", array(replicas, np.int32))
        self.both("list_touch", array([replica], np.int32))

    @rule(list_id=list_ids, n=st.integers(-1, 5), skip=st.integers(-1, 5))
    def list_tail(self, list_id: int, n: int, skip: int) -> None:
        self.both("list_tail", list_id, n, skip)
        self.both("list_length", list_id)

    @rule(rows=row_lists, other=st.booleans())
    def touch_objects(self, rows: list[int], other: bool) -> None:
        seqs = [int(self.twin.seq[row]) + other if 0 <= row < ROWS else 0 for row in rows]
        self.both("touch_objects", array(rows, np.int32), array(seqs, np.uint64))

    @precondition(lambda self: len(self.twin) > 0)
    @rule(choice=st.data(), state=st.integers(1, 2), wanted=st.integers(1, 3))
    def reserve(self, choice: st.DataObject, state: int, wanted: int) -> None:
        rows = choice.draw(st.lists(st.sampled_from([-1, *self.live_rows()]), max_size=4))
        self.both(
            "reserve_batch",
            array(rows, np.int32),
            array(range(len(rows)), np.uint64),
            state=state,
            tenant=7,
            term=3,
            first_seq=self.seq,
            first_attempt=self.seq,
            expiry_ms=-5,
            wanted=wanted,
            pin=1,
        )
        self.seq += len(rows)

    @rule(
        rows=st.lists(st.integers(-1, ROWS), max_size=6),
        stale=st.booleans(),
        segment=st.integers(0, LISTS),
        ancestors=st.booleans(),
    )
    def commit(self, rows: list[int], stale: bool, segment: int, ancestors: bool) -> None:
        attempts = [int(self.twin.attempt[row]) + stale if 0 <= row < ROWS else 0 for row in rows]
        count = len(rows)
        self.both(
            "commit_batch",
            array(rows, np.int32),
            array(attempts, np.uint64),
            array([segment] * count, np.uint16),
            array(range(count), np.uint32),
            array(range(count), np.uint64),
            array(range(count), np.uint32),
            state_from=1,
            state_to=2,
            touch_ancestors=ancestors,
        )

    @invariant()
    def same_contents(self) -> None:
        assert len(self.native) == len(self.twin)
        assert self.native.replica_count == self.twin.replica_count
        rows = self.native.scan(0, ROWS)[0]
        assert plain(rows) == plain(self.twin.scan(0, ROWS)[0])
        self.compare(OBJECT_COLUMNS, rows)
        replicas = self.native.replicas_of(rows)[1]
        assert plain(replicas) == plain(self.twin.replicas_of(rows)[1])
        self.compare(REPLICA_COLUMNS, replicas)
        for list_id in range(LISTS):
            assert plain(self.native.list_iter(list_id)) == plain(self.twin.list_iter(list_id))

    def compare(self, columns: tuple[str, ...], rows: npt.NDArray[np.int32]) -> None:
        for name in columns:
            expected = plain(getattr(self.twin, name)[rows])
            assert plain(getattr(self.native, name)[rows]) == expected, name


TestTableAgainstTwin = TableAgainstTwin.TestCase
TestTableAgainstTwin.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
