"""The row table at its edges: bad arguments, full tables, memory under churn, kept views."""

import gc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from moonpool._core import Table, TableFullError

I32 = npt.NDArray[np.int32]


def ints(*values: int) -> I32:
    return np.array(values, np.int32)


def batch(names: list[bytes]) -> tuple[bytes, npt.NDArray[np.uint32]]:
    return b"".join(names), np.cumsum([len(name) for name in names], dtype=np.uint32)


def with_rows(count: int, **limits: int) -> tuple[Table, I32]:
    table = Table(limits.get("rows_max", 100), limits.get("replicas_max", 100), 4)
    rows, fresh = table.intern(*batch([b"key-%d" % i for i in range(count)]))
    assert fresh.all()
    return table, rows


def add(table: Table, rows: I32, segment: int = 0) -> I32:
    count = len(rows)
    return table.add_replicas(
        rows, np.full(count, segment, np.uint16), np.zeros(count, np.uint32), np.zeros(count, "u8")
    )


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros(3, np.int64),
        np.zeros((3, 1), np.int32),
        np.zeros(6, np.int32)[::2],
        np.zeros(3, np.uint32),
        np.zeros(3, np.float32),
        np.zeros(3, ">i4"),
        [0, 1, 2],
    ],
    ids=["int64", "2-d", "strided", "unsigned", "float", "big-endian", "list"],
)
def test_a_column_of_another_kind_is_a_type_error(rows: Any) -> None:
    table, _ = with_rows(3)
    with pytest.raises(TypeError, match="rows: a"):
        table.descendants(rows)


@pytest.mark.parametrize("row", [-1, 3, 99, 100, 2**31 - 1, -(2**31)])
def test_an_unknown_row_is_an_index_error(row: int) -> None:
    table, rows = with_rows(3)
    bad = np.append(rows, np.int32(row))
    calls = [table.keys, table.erase, table.descendants, table.ancestors_order, table.replicas_of]
    for call in calls:
        with pytest.raises(IndexError):
            call(bad)
    with pytest.raises(IndexError):
        table.key(row)
    with pytest.raises(IndexError):
        table.set_parent(bad[-1:], rows[:1])
    with pytest.raises(IndexError):
        add(table, bad)
    assert len(table) == 3 and table.replica_count == 0


def test_freeing_twice_is_refused_and_changes_nothing() -> None:
    table, rows = with_rows(2)
    with pytest.raises(IndexError, match="twice"):
        table.erase(ints(rows[0], rows[0]))
    assert len(table) == 2
    table.erase(rows[:1])
    with pytest.raises(IndexError, match="not a live row"):
        table.erase(rows)
    assert table.key(rows[1]) == b"key-1"


def test_a_replica_is_freed_once() -> None:
    table, rows = with_rows(1)
    replicas = add(table, rows)
    with pytest.raises(IndexError, match="twice"):
        table.remove_replicas(ints(replicas[0], replicas[0]))
    table.remove_replicas(replicas)
    with pytest.raises(IndexError, match="not a live replica"):
        table.remove_replicas(replicas)


def test_a_row_in_use_is_not_erased() -> None:
    table, rows = with_rows(3)
    table.set_parent(rows[1:2], rows[:1])
    add(table, rows[2:])
    with pytest.raises(ValueError, match="children"):
        table.erase(rows[:1])
    with pytest.raises(ValueError, match="replica"):
        table.erase(rows[2:])
    table.erase(ints(rows[1], rows[0]))
    assert len(table) == 1


def test_a_cycle_is_refused() -> None:
    table, rows = with_rows(3)
    assert table.set_parent(rows[1:], rows[:-1]).all()
    linked = table.set_parent(ints(rows[0], rows[1]), ints(rows[2], rows[1]))
    assert linked.tolist() == [False, False]
    assert table.parent[rows].tolist() == [-1, rows[0], rows[1]]


def test_a_list_that_does_not_exist_is_an_index_error() -> None:
    table, rows = with_rows(1)
    replicas = add(table, rows)
    for list_id in (-1, 4, 2**40):
        with pytest.raises(IndexError, match="there are 4"):
            table.list_push(list_id, replicas)
        with pytest.raises(IndexError, match="there are 4"):
            table.list_tail(list_id, 1)


def test_a_replica_is_on_one_list_at_most() -> None:
    table, rows = with_rows(1)
    replicas = add(table, rows)
    with pytest.raises(ValueError, match="no list"):
        table.list_touch(replicas)
    table.list_push(1, replicas)
    with pytest.raises(ValueError, match="a list"):
        table.list_push(2, replicas)
    table.list_remove(replicas)
    with pytest.raises(ValueError, match="no list"):
        table.list_remove(replicas)


def test_a_full_table_says_so_and_keeps_what_it_had() -> None:
    table, rows = with_rows(3, rows_max=4, replicas_max=2)
    with pytest.raises(TableFullError, match="all 4 rows"):
        table.intern(*batch([b"new", b"key-1", b"newer"]))
    assert len(table) == 3
    assert table.find(*batch([b"new", b"newer", b"key-1"])).tolist() == [-1, -1, rows[1]]
    with pytest.raises(TableFullError, match="all 2 replica rows"):
        add(table, rows)
    assert table.replica_count == 0


def test_an_object_has_at_most_255_replicas() -> None:
    table, rows = with_rows(1, replicas_max=300)
    with pytest.raises(ValueError, match="255"):
        add(table, np.repeat(rows, 256))
    assert table.replica_count == 0
    assert add(table, np.repeat(rows, 255)).tolist() == list(range(255))
    assert table.replicas_of(rows)[0].tolist() == [255]


@pytest.mark.parametrize(
    ("blob", "ends"),
    [
        (b"abc", [1, 2]),
        (b"abc", [1, 4]),
        (b"abc", [2, 1, 3]),
        (b"abc", [1, 1, 3]),
        (b"x" * 1025, [1025]),
    ],
    ids=["rest", "beyond", "backwards", "empty key", "long key"],
)
def test_ends_that_do_not_cut_the_blob_into_keys_are_refused(blob: bytes, ends: list[int]) -> None:
    table = Table(8, 8, 1)
    for call in (table.find, table.intern):
        with pytest.raises(ValueError):
            call(blob, np.array(ends, np.uint32))
    assert len(table) == 0


def test_columns_of_different_lengths_are_refused() -> None:
    table, rows = with_rows(3)
    with pytest.raises(ValueError, match="length: 3, 2"):
        table.set_parent(rows, rows[:2])


@pytest.mark.parametrize("limits", [(2**31, 1, 1), (1, 2**31, 1), (1, 1, 2**15)])
def test_limits_that_row_numbers_cannot_hold_are_refused(limits: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="limit"):
        Table(*limits)


def test_links_are_read_only_and_policy_columns_are_not() -> None:
    table, rows = with_rows(1)
    with pytest.raises(ValueError, match="read-only"):
        table.parent[rows] = 0
    table.state[rows] = 9
    assert table.state[rows].tolist() == [9]


def test_a_view_outlives_the_table() -> None:
    table, rows = with_rows(1)
    state = table.state
    state[rows] = 5
    del table
    gc.collect()
    assert state[rows].tolist() == [5]


def test_churn_of_keys_does_not_grow_the_table() -> None:
    """Ten times as many keys as fit at once, of changing lengths, some staying all the time."""
    table = Table(20_000, 1, 1)
    rng = np.random.default_rng(7)
    stay = [b"stay-%d" % i + b"s" * (i % 50) for i in range(2_000)]
    table.intern(*batch(stay))
    kept: list[I32] = []
    peak = 0
    for round_number in range(45):
        length = int(rng.integers(1, 200))
        fresh = [b"%d-%d-" % (round_number, i) + b"x" * length for i in range(4_000)]
        kept.append(table.intern(*batch(fresh))[0])
        if len(kept) == 4:
            table.erase(rng.permutation(kept.pop(int(rng.integers(4)))))
        peak = max(peak, table.memory_bytes())
    live = sum(len(table.key(row)) + 8 for row in table.scan(0, 20_000)[0].tolist())
    assert len(table) == 2_000 + 3 * 4_000
    assert (table.find(*batch(stay)) >= 0).all()
    # Rows and index of 20,000 are under 3.5 MB; keys may hold half as much again as holes.
    assert peak < 3_500_000 + 1.5 * 20_000 * 220
    assert table.memory_bytes() < 3_500_000 + 1.5 * live + 1_000_000
