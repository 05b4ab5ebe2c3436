"""The usual batch: granted as a whole, committed as a whole, and what happens when it is not."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest

from moonpool.pool.catalog.admitted import Admitted, Whole
from moonpool.pool.messages import LookupStatus, PutStatus
from tests.pool.catalog.harness import SMALL, Pool

KEYS = [b"a", b"b", b"c"]


@pytest.fixture
def pool() -> Pool:
    pool = Pool()
    pool.add_segment(100)
    return pool


def grant(pool: Pool, keys: list[bytes], sizes: int = 1, replicas: int = 1) -> Whole | Admitted:
    put = pool.request(keys, sizes, replicas=replicas)
    return pool.catalog.grant(put, pool.now, pool.wall_ms)


def test_a_whole_grant_says_the_same_key_by_key(pool: Pool) -> None:
    whole = grant(pool, KEYS)
    assert isinstance(whole, Whole)
    told = whole.admitted([])
    other = Pool()
    other.add_segment(100)
    same = other.reserve(KEYS)
    for name in ("status", "rows", "attempts", "segments"):
        mine, theirs = getattr(told, name), getattr(same, name)
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        assert mine.tolist() == theirs.tolist()
    pool.commit(pool.sealed(told))
    assert pool.look(KEYS) == [LookupStatus.FOUND] * 3
    pool.check()


@pytest.mark.parametrize("case", ["known", "two copies", "no room"])
def test_what_is_not_usual_is_told_key_by_key(pool: Pool, case: str) -> None:
    if case == "known":
        pool.put(KEYS[:1])
        granted = grant(pool, KEYS)
    elif case == "two copies":
        pool.add_segment(100)
        granted = grant(pool, KEYS, replicas=2)
    else:
        granted = grant(pool, KEYS, sizes=101)
    assert isinstance(granted, Admitted)


def test_room_that_was_made_is_told() -> None:
    small = Pool(dataclasses.replace(SMALL, rows_max=4, replica_rows_max=4))
    small.add_segment(100)
    small.put([b"1", b"2", b"3"])
    granted = grant(small, [b"x", b"y"])
    assert isinstance(granted, Admitted) and granted.retirements


def test_columns_of_a_whole_grant_are_made_when_they_are_asked_for(pool: Pool) -> None:
    whole = grant(pool, KEYS)
    assert isinstance(whole, Whole)
    batch = pool.catalog.reservations.get(whole.first)
    assert batch is not None and batch.whole
    made = (batch.made_segments, batch.made_open, batch.made_replacing)
    assert made == (None, None, None)
    assert batch.segments.tolist() == [[whole.segment]] * 3
    assert batch.open.tolist() == [True] * 3 and batch.replacing.tolist() == [False] * 3


def test_a_part_that_is_aborted_takes_the_whole_commit_away(pool: Pool) -> None:
    admitted = pool.reserve(KEYS)
    call = pool.sealed(admitted)
    pool.catalog.abort(admitted.rows[1:2], admitted.attempts[1:2], pool.now)
    assert not pool.catalog.commit_usual(call, pool.now, pool.wall_ms)
    assert pool.look(KEYS) == [LookupStatus.IN_FLIGHT, LookupStatus.ABSENT, LookupStatus.IN_FLIGHT]
    good, gone = PutStatus.COMMITTED, PutStatus.GONE
    assert pool.commit(call).status.tolist() == [good, gone, good]
    pool.check()


@pytest.mark.parametrize("wrong", ["term", "rows", "segments", "counts", "part"])
def test_a_commit_that_is_not_the_usual_one_changes_nothing(pool: Pool, wrong: str) -> None:
    call = pool.sealed(pool.reserve(KEYS))
    replace = msgspec.structs.replace
    bad = {
        "term": lambda: replace(call, term=call.term + 1),
        "rows": lambda: replace(call, rows=call.rows[::-1].copy()),
        "segments": lambda: replace(call, segments=np.array([0, 1, 0], np.uint16)),
        "counts": lambda: replace(call, counts=np.array([1, 0, 2], np.uint8)),
        "part": lambda: replace(call, rows=call.rows[:2], attempts=call.attempts[:2]),
    }[wrong]()
    assert not pool.catalog.commit_usual(bad, pool.now, pool.wall_ms)
    assert pool.look(KEYS) == [LookupStatus.IN_FLIGHT] * 3
    assert pool.catalog.commit_usual(call, pool.now, pool.wall_ms)
    assert pool.look(KEYS) == [LookupStatus.FOUND] * 3
    pool.check()
