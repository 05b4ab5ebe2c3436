"""Rows without a value: kept while children name them, moved with care, gone when nothing does."""

from __future__ import annotations

import pytest

from moonpool.pool.catalog.base import CatalogConfig
from moonpool.pool.messages import PutStatus
from tests.pool.catalog.harness import Pool, status_of

CHAIN = [b"root", b"middle", b"leaf"]


@pytest.fixture
def pool() -> Pool:
    pool = Pool()
    pool.add_segment(100)
    assert pool.put(CHAIN, 10, chain=True) == [PutStatus.COMMITTED] * 3
    return pool


def rows_in(pool: Pool) -> int:
    return len(pool.catalog.table)


def test_a_ghost_lives_as_long_as_its_children(pool: Pool) -> None:
    pool.remove([b"root"])
    assert rows_in(pool) == 3
    pool.remove([b"middle", b"leaf"])
    assert rows_in(pool) == 0


def test_a_replaced_child_that_moves_away_takes_its_ghost_along(pool: Pool) -> None:
    pool.remove([b"middle"])
    assert pool.put([b"leaf"], 10, replace=True) == [PutStatus.COMMITTED]
    pool.check()
    assert rows_in(pool) == 2


def test_a_ghost_put_again_elsewhere_leaves_no_ghost_behind(pool: Pool) -> None:
    pool.remove([b"root", b"middle"])
    assert pool.put([b"middle"], 10) == [PutStatus.COMMITTED]
    pool.check()
    assert rows_in(pool) == 2


def test_a_ghost_that_is_not_granted_stays_where_it_was(pool: Pool) -> None:
    pool.remove([b"root"])
    admitted = pool.reserve([b"new", b"root"], 10, chain=True, replicas=2)
    assert status_of(admitted) == [PutStatus.NO_NODE] * 2
    pool.check()
    assert rows_in(pool) == 3
    assert pool.catalog.table.parent[pool.row(b"root")] == -1


def test_a_ghost_of_the_batch_outlives_its_children_that_go_for_it(pool: Pool) -> None:
    pool.remove([b"middle"])
    pool.remove([b"root"])
    # All that is left is evicted for the batch, and with it the last child of its own ghosts.
    assert pool.put([b"middle", b"root"], [95, 5]) == [PutStatus.COMMITTED] * 2
    pool.check()
    assert rows_in(pool) == 2
    assert pool.found([b"leaf"]) == []


def test_a_ghost_whose_children_went_in_vain_goes_too(pool: Pool) -> None:
    pool.remove([b"middle"])
    admitted = pool.reserve([b"middle", b"other"], [101, 90], parents=[-1, -1])
    assert status_of(admitted) == [PutStatus.TOO_BIG, PutStatus.GRANTED]
    pool.check()
    assert rows_in(pool) == 2
    assert pool.found([b"root", b"leaf"]) == [b"root"]


def test_a_full_row_table_leaves_no_ghost_without_children() -> None:
    pool = Pool(CatalogConfig(rows_max=4, segments_max=2))
    pool.add_segment(100)
    pool.put(CHAIN, 10, chain=True)
    pool.remove([b"root", b"middle"])
    pool.reserve([b"root", b"a", b"b", b"c", b"d"])
    pool.check()
    assert pool.put([b"root", b"a", b"b"], 1) == [PutStatus.COMMITTED] * 3
    pool.check()


@pytest.mark.parametrize("back", [False, True])
def test_a_replacement_whose_new_parent_went_is_not_put_under_another_key(
    pool: Pool, back: bool
) -> None:
    pool.put([b"parent", b"child"], 1)
    call = pool.sealed(pool.reserve([b"child"], outside=[b"parent"], parents=[-2], replace=True))
    row = pool.row(b"parent")
    pool.remove([b"parent"])
    pool.put([b"other", *([b"parent"] if back else [])], 1)
    assert pool.row(b"other") == row
    settled = pool.commit(call)
    pool.check()
    expected = PutStatus.COMMITTED if back else PutStatus.PARENT_MISSING
    assert settled.status.tolist() == [expected]
    assert pool.catalog.table.parent[pool.row(b"child")] == (pool.row(b"parent") if back else -1)
    assert pool.found([b"child"]) == [b"child"]
