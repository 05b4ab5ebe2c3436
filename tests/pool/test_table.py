"""The native row table against its twin: any calls give the same answers and columns."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from moonpool._core import Table, TableFullError
from tests.pool.table_twin import TableTwin

ROWS, REPLICAS, LISTS = 12, 30, 3
OBJECT_COLUMNS = (
    *("state", "flags", "tenant", "term", "seq", "size", "crc", "expiry_ms", "attempt", "pin"),
    *("wanted", "parent", "first_child", "next_sibling", "prev_sibling", "children", "replica"),
)
REPLICA_COLUMNS = (
    *("replica_state", "replica_slot", "replica_generation", "replica_object", "replica_segment"),
    *("replica_next", "replica_list"),
)

keys = st.lists(st.sampled_from([b"%d" % i * 9 for i in range(16)]), max_size=6) | (
    st.lists(st.binary(min_size=1, max_size=20) | st.just(b"long" * 256), max_size=3)
)
list_ids = st.sampled_from([0, 0, 1, 1, 2, LISTS, -1])
data = st.data()


def array(values: Any, dtype: Any) -> npt.NDArray[Any]:
    return np.array(values, dtype)


def batch(names: list[bytes]) -> tuple[bytes, npt.NDArray[np.uint32]]:
    return b"".join(names), np.cumsum([len(name) for name in names], dtype=np.uint32)


def some(
    draw: st.DataObject, good: npt.NDArray[np.int32], end: int, most: int, wrong: bool
) -> npt.NDArray[np.int32]:
    """Up to `most` of the good numbers, or any number at times; in any order, some twice."""
    one = st.sampled_from(good.tolist()) if len(good) else st.just(0)
    once = st.lists(one, max_size=most, unique=True)
    many = [once, once, once, st.lists(one, max_size=most)]
    if wrong:
        many.append(st.lists(st.integers(-1, end), max_size=most))
    elif not len(good):
        return array([], np.int32)
    return array(draw.draw(st.one_of(many)), np.int32)


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

    def live_rows(self) -> npt.NDArray[np.int32]:
        return self.twin.scan(0, ROWS)[0]

    def rows(self, draw: st.DataObject, most: int = 5, wrong: bool = True) -> npt.NDArray[np.int32]:
        """Mostly live rows, as calls with a wrong one do nothing."""
        return some(draw, self.live_rows(), ROWS, most, wrong)

    def replicas(self, draw: st.DataObject, listed: bool) -> npt.NDArray[np.int32]:
        replicas = self.twin.replicas_of(self.live_rows())[1]
        fitting = replicas[(self.twin.replica_list[replicas] >= 0) == listed]
        return some(draw, fitting, REPLICAS, 4, True)

    @initialize(names=st.just([b"%d" % i * 9 for i in range(8)]), two_trees=st.booleans())
    def populate(self, names: list[bytes], two_trees: bool) -> None:
        """A chain or two of listed objects, so that every rule finds something to act on."""
        self.both("intern", *batch(names))
        rows = np.arange(8, dtype=np.int32)
        self.both("set_parent", rows[1:], rows[:-1].copy())
        if two_trees:
            self.both("set_parent", rows[4:5], array([1], np.int32))
        self.add(rows, 0)
        self.both("list_push", 0, rows)

    def add(self, rows: npt.NDArray[np.int32], segment: int) -> None:
        count = len(rows)
        places = np.full(count, segment, np.uint16), np.arange(count, dtype=np.uint32)
        self.both("add_replicas", rows, *places, np.arange(count, dtype=np.uint64))

    @rule(names=keys)
    def intern(self, names: list[bytes]) -> None:
        self.both("intern", *batch(names))

    @rule(names=keys)
    def find(self, names: list[bytes]) -> None:
        self.both("find", *batch(names))

    @rule(draw=data)
    def erase(self, draw: st.DataObject) -> None:
        self.both("erase", self.rows(draw))

    @rule(draw=data)
    def erase_tree(self, draw: st.DataObject) -> None:
        tree = self.twin.descendants(self.rows(draw, 2, wrong=False))
        self.both("remove_replicas", self.twin.replicas_of(tree)[1])
        self.both("erase", tree)

    @rule(draw=data)
    def read_keys(self, draw: st.DataObject) -> None:
        rows = self.rows(draw)
        self.both("keys", rows)
        self.both("parent_keys", rows)
        for row in rows.tolist():
            self.both("key", row)

    @rule(start=st.integers(-1, ROWS + 1), most=st.integers(0, ROWS), prefix=st.binary(max_size=1))
    def scan(self, start: int, most: int, prefix: bytes) -> None:
        self.both("scan", start, most, prefix)

    @rule(draw=data)
    def set_parent(self, draw: st.DataObject) -> None:
        rows, parents = self.rows(draw), self.rows(draw)
        count = min(len(rows), len(parents))
        self.both("set_parent", rows[:count], parents[:count])

    @rule(draw=data)
    def link_a_chain(self, draw: st.DataObject) -> None:
        rows = self.rows(draw, wrong=False)
        self.both("set_parent", rows[1:], rows[:-1].copy())

    @rule(draw=data)
    def walk(self, draw: st.DataObject) -> None:
        rows = self.rows(draw)
        for method in ("descendants", "ancestors_order", "replicas_of"):
            self.both(method, rows)

    @rule(draw=data, segment=st.integers(0, LISTS), listed=st.booleans())
    def add_replicas(self, draw: st.DataObject, segment: int, listed: bool) -> None:
        self.add(self.rows(draw, 3), segment)
        if listed:
            replicas = self.twin.replicas_of(self.live_rows())[1]
            self.both("list_push", segment, replicas[self.twin.replica_list[replicas] < 0])

    @rule(draw=data, listed=st.booleans())
    def remove_replicas(self, draw: st.DataObject, listed: bool) -> None:
        self.both("remove_replicas", self.replicas(draw, listed))

    @rule(draw=data, list_id=list_ids)
    def list_push(self, draw: st.DataObject, list_id: int) -> None:
        self.both("list_push", list_id, self.replicas(draw, listed=False))

    @rule(draw=data)
    def list_remove(self, draw: st.DataObject) -> None:
        self.both("list_remove", self.replicas(draw, listed=True))

    @rule(draw=data)
    def list_touch(self, draw: st.DataObject) -> None:
        self.both("list_touch", self.replicas(draw, listed=True))

    @rule(list_id=list_ids, n=st.integers(-1, 5), skip=st.integers(-1, 5))
    def list_tail(self, list_id: int, n: int, skip: int) -> None:
        self.both("list_tail", list_id, n, skip)

    @rule(draw=data, other=st.integers(0, 3))
    def touch_objects(self, draw: st.DataObject, other: int) -> None:
        rows = self.rows(draw)
        seqs = self.twin.seq[np.clip(rows, 0, ROWS - 1)]
        seqs[:1] += np.uint64(other == 1)
        self.both("touch_objects", rows, seqs)

    @rule(row=st.integers(0, ROWS - 1), name=st.sampled_from(OBJECT_COLUMNS[:11]))
    def write(self, row: int, name: str) -> None:
        for table in (self.native, self.twin):
            getattr(table, name)[row] = 200 - row

    @rule(draw=data, state=st.sampled_from([1, 1, 2]))
    def reserve(self, draw: st.DataObject, state: int) -> None:
        rows = self.rows(draw)
        self.both(
            "reserve_batch",
            rows,
            np.arange(len(rows), dtype=np.uint64),
            state=state,
            tenant=7,
            term=3,
            first_seq=self.seq,
            first_attempt=self.seq,
            expiry_ms=-5,
            wanted=2,
            pin=1,
        )
        self.seq += len(rows)

    @rule(draw=data, segment=st.integers(0, LISTS), other=st.integers(0, 3), above=st.booleans())
    def commit(self, draw: st.DataObject, segment: int, other: int, above: bool) -> None:
        rows = self.rows(draw)
        if draw.draw(st.booleans()):
            rows = np.concatenate([rows, rows[:2]])  # second replicas
        attempts = self.twin.attempt[np.clip(rows, 0, ROWS - 1)]
        attempts[:1] += np.uint64(other == 1)
        numbers = np.arange(len(rows), dtype=np.uint32)
        segments = np.full(len(rows), segment, np.uint16)
        self.both(
            "commit_batch",
            *(rows, attempts, segments, numbers, numbers.astype(np.uint64), numbers),
            state_from=int(self.twin.state[np.clip(rows[0], 0, ROWS - 1)]) if len(rows) else 0,
            state_to=2,
            touch_ancestors=above,
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
            assert self.native.list_length(list_id) == self.twin.list_length(list_id)

    def compare(self, columns: tuple[str, ...], rows: npt.NDArray[np.int32]) -> None:
        for name in columns:
            expected = plain(getattr(self.twin, name)[rows])
            assert plain(getattr(self.native, name)[rows]) == expected, name


TestTableAgainstTwin = TableAgainstTwin.TestCase
TestTableAgainstTwin.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
