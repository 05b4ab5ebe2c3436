"""Chains: contiguous admission, parents, orphans and ghosts (P9)."""

from __future__ import annotations

import pytest

from moonpool.pool.catalog.base import GHOST, ORPHAN
from moonpool.pool.messages import PutStatus as S
from tests.pool.catalog.harness import Pool, status_of

CHAIN = [b"a", b"b", b"c", b"d"]


@pytest.fixture
def pool() -> Pool:
    pool = Pool()
    pool.add_segment(100)
    return pool


def test_a_chain_is_admitted_as_a_prefix(pool: Pool) -> None:
    assert pool.put(CHAIN, [40, 40, 40, 1], chain=True) == [
        S.COMMITTED,
        S.COMMITTED,
        S.FULL,
        S.FULL,
    ]
    assert pool.catalog.segments[0].promised_bytes == 0
    assert len(pool.catalog.table) == 2
    pool.check()


def test_without_a_chain_smaller_keys_still_find_room(pool: Pool) -> None:
    assert pool.put(CHAIN, [40, 40, 40, 1]) == [S.COMMITTED, S.COMMITTED, S.FULL, S.COMMITTED]
    pool.check()


def test_keys_after_one_in_flight_wait(pool: Pool) -> None:
    pool.reserve([b"b"], owner=2)
    assert pool.put(CHAIN, chain=True) == [S.COMMITTED, S.IN_FLIGHT, S.WAIT_PARENT, S.WAIT_PARENT]
    pool.check()


def test_keys_after_one_too_big_are_full(pool: Pool) -> None:
    assert pool.put(CHAIN, [1, 101, 1, 1], chain=True) == [S.COMMITTED, S.TOO_BIG, S.FULL, S.FULL]
    pool.check()


def test_a_known_prefix_exists(pool: Pool) -> None:
    pool.put(CHAIN[:2], chain=True)
    assert pool.put(CHAIN, chain=True) == [S.EXISTS, S.EXISTS, S.COMMITTED, S.COMMITTED]
    pool.check()


def test_a_parent_must_be_committed_or_in_the_batch(pool: Pool) -> None:
    assert pool.put([b"b"], parents=[-2], outside=[b"a"]) == [S.PARENT_MISSING]
    pool.reserve([b"a"], owner=2)
    assert pool.put([b"b", b"c"], parents=[-2, 0], outside=[b"a"]) == [S.PARENT_MISSING] * 2
    assert len(pool.catalog.table) == 1
    pool.check()


def test_an_outside_parent(pool: Pool) -> None:
    pool.put([b"a"])
    assert pool.put([b"b", b"c"], parents=[-2, 0], outside=[b"a"]) == [S.COMMITTED] * 2
    pool.check()


def test_a_parent_later_in_the_batch_or_out_of_it_is_invalid(pool: Pool) -> None:
    assert pool.put([b"a", b"b"], parents=[1, -1]) == [S.INVALID, S.COMMITTED]
    assert pool.put([b"c"], parents=[0]) == [S.INVALID]
    assert pool.put([b"c"], parents=[-9], outside=[b"a"]) == [S.INVALID]
    pool.check()


def test_a_commit_whose_parent_is_gone_is_refused(pool: Pool) -> None:
    pool.put([b"a"])
    admitted = pool.reserve([b"b", b"c"], parents=[-2, 0], outside=[b"a"])
    pool.remove([b"a"])
    settled = pool.commit(pool.sealed(admitted))
    assert settled.status.tolist() == [S.PARENT_MISSING] * 2
    assert sorted(settled.refused_keys) == [b"b", b"c"]
    assert [one.sequences.tolist() for one in settled.expiries] == [admitted.attempts.tolist()]
    assert len(pool.catalog.table) == 0
    pool.check()


def test_a_commit_of_the_tail_alone_is_refused(pool: Pool) -> None:
    admitted = pool.reserve([b"a", b"b"], chain=True)
    assert pool.commit(pool.sealed(admitted, [1])).status.tolist() == [S.PARENT_MISSING]
    assert pool.commit(pool.sealed(admitted, [0])).status.tolist() == [S.COMMITTED]
    pool.check()


def test_a_chain_may_be_committed_in_pieces_in_order(pool: Pool) -> None:
    admitted = pool.reserve([b"a", b"b"], chain=True)
    assert pool.commit(pool.sealed(admitted, [0])).status.tolist() == [S.COMMITTED]
    assert pool.commit(pool.sealed(admitted, [1])).status.tolist() == [S.COMMITTED]
    pool.check()


def test_a_removed_parent_leaves_orphans_that_go_first(pool: Pool) -> None:
    pool.put(CHAIN, 20, chain=True)
    pool.remove([b"b"])
    assert [bool(pool.catalog.table.flags[pool.row(key)] & ORPHAN) for key in b"c d".split()] == [
        True,
        True,
    ]
    assert pool.catalog.table.state[pool.row(b"b")] == GHOST
    pool.touch([b"d"])
    assert pool.put([b"x"], 60) == [S.COMMITTED]
    assert pool.found([*CHAIN, b"x"]) == [b"a", b"c", b"x"]
    pool.check()


def test_orphans_rejoin_when_the_parent_is_put_again(pool: Pool) -> None:
    pool.put(CHAIN, 20, chain=True)
    pool.remove([b"b"])
    assert pool.put([b"b"], 20, parents=[-2], outside=[b"a"]) == [S.COMMITTED]
    assert not any(pool.catalog.table.flags[pool.row(key)] & ORPHAN for key in CHAIN)
    assert pool.catalog.table.list_length(pool.catalog.config.segments_max) == 0
    pool.check()


def test_a_child_of_an_orphan_is_an_orphan(pool: Pool) -> None:
    pool.put(CHAIN[:3], chain=True)
    pool.remove([b"a"])
    assert pool.put([b"d", b"e"], parents=[-2, 0], outside=[b"c"]) == [S.COMMITTED] * 2
    assert all(pool.catalog.table.flags[pool.row(key)] & ORPHAN for key in (b"b", b"c", b"d", b"e"))
    assert pool.put([b"a"]) == [S.COMMITTED]
    assert not any(pool.catalog.table.flags[pool.row(key)] & ORPHAN for key in (*CHAIN, b"e"))
    pool.check()


def test_only_what_hangs_whole_rejoins(pool: Pool) -> None:
    pool.put(CHAIN, chain=True)
    pool.remove([b"a", b"c"])
    pool.put([b"a"])
    orphans = [
        key for key in (b"a", b"b", b"d") if pool.catalog.table.flags[pool.row(key)] & ORPHAN
    ]
    assert orphans == [b"d"]
    pool.check()


def test_ghosts_go_with_their_last_child(pool: Pool) -> None:
    pool.put(CHAIN[:3], chain=True)
    pool.remove([b"a", b"b"])
    assert len(pool.catalog.table) == 3
    pool.remove([b"c"])
    assert len(pool.catalog.table) == 0


def test_a_chain_cannot_become_a_ring(pool: Pool) -> None:
    pool.put([b"a", b"b"], chain=True)
    pool.remove([b"a"])
    assert pool.put([b"a"], parents=[-2], outside=[b"b"]) == [S.INVALID]
    assert pool.put([b"a", b"z"], parents=[-2, 0], outside=[b"b"]) == [S.INVALID, S.PARENT_MISSING]
    pool.check()


def test_a_key_cannot_be_its_own_parent(pool: Pool) -> None:
    assert pool.put([b"a"], parents=[-2], outside=[b"a"]) == [S.PARENT_MISSING]
    pool.check()


def test_a_duplicate_in_a_chain_stops_it(pool: Pool) -> None:
    admitted = pool.reserve([b"a", b"a", b"b"], chain=True)
    assert status_of(admitted) == [S.GRANTED, S.IN_FLIGHT, S.WAIT_PARENT]
    pool.check()


def test_nothing_is_granted_behind_a_hole_even_after_a_known_key(pool: Pool) -> None:
    pool.put([b"b"])
    put = pool.put([b"a", b"b", b"c"], parents=[-2, 0, 1], outside=[b"gone"], chain=True)
    assert put == [S.PARENT_MISSING, S.EXISTS, S.PARENT_MISSING]
    pool.check()
