"""Priorities and soft pins: what goes first, for how long, and what stands above a child."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moonpool.pool.catalog.standing import ENDS_SPARE
from moonpool.pool.messages import PutStatus as S
from tests.pool.catalog.harness import SMALL, Pool
from tests.pool.catalog.test_catalog_inventory import report, take

SOFT, HARD, LOW, HIGH = 1, 2, 4, 8
POLICIES = ["lru", "lfu", "sieve", "arc"]


@pytest.fixture(params=POLICIES)
def pool(request: pytest.FixtureRequest) -> Pool:
    pool = Pool(replace(SMALL, eviction=request.param))
    pool.add_segment(8)
    return pool


def test_low_goes_first_then_normal_then_high_then_what_is_pinned(pool: Pool) -> None:
    for key, pin in ((b"s", SOFT), (b"h", HIGH), (b"n", 0), (b"l", LOW)):
        pool.put([key], 2, pin=pin)
    pool.touch([b"l", b"n", b"h"])
    for number, left in enumerate(([b"s", b"h", b"n"], [b"s", b"h"], [b"s"])):
        pool.put([b"x%d" % number], 2, pin=SOFT)
        assert pool.found([b"s", b"h", b"n", b"l"]) == left
    pool.check()


def test_when_nothing_else_is_left_soft_pins_go(pool: Pool) -> None:
    pool.put([b"a", b"b", b"c", b"d"], 2, pin=SOFT)
    assert pool.put([b"x"], 2) == [S.COMMITTED]
    assert len(pool.found([b"a", b"b", b"c", b"d"])) == 3
    pool.check()


def test_a_soft_pin_ends_with_its_time(pool: Pool) -> None:
    pool.put([b"a"], 2, pin=SOFT, pin_ttl_ms=1000)
    pool.put([b"b", b"c", b"d"], 2)
    pool.touch([b"b", b"c", b"d"])
    assert pool.catalog.rows.standing.next_deadline == 1.0
    pool.catalog.unpin(0.9)
    pool.put([b"x"], 2)
    assert b"a" in pool.found([b"a"])
    pool.catalog.unpin(1.0)
    assert len(pool.catalog.rows.standing) == 0
    pool.put([b"y", b"z", b"w", b"v"], 2)  # the end of a pin counts as a read
    assert b"a" not in pool.found([b"a"])
    pool.check()


@pytest.mark.parametrize("refresh", [False, True])
def test_a_read_begins_a_soft_pin_anew_if_that_was_asked(pool: Pool, refresh: bool) -> None:
    pool.put([b"p"], 1)
    pool.put(
        [b"a"], 1, parents=[-2], outside=[b"p"], pin=SOFT, pin_ttl_ms=1000, pin_refresh=refresh
    )
    pool.now = 0.8
    pool.touch([b"a"])
    pool.catalog.unpin(1.5)
    flags = pool.catalog.table.flags[[pool.row(b"a"), pool.row(b"p")]] & 64
    assert flags.tolist() == ([64, 64] if refresh else [0, 0])
    pool.catalog.unpin(1.8)
    assert not pool.catalog.table.flags[pool.row(b"a")] & 64


def test_a_parent_stands_as_firmly_as_its_child(pool: Pool) -> None:
    pool.put([b"p"], 2, pin=LOW)
    pool.put([b"c"], 2, parents=[-2], outside=[b"p"], pin=HIGH)
    pool.put([b"n"], 2)
    pool.put([b"m"], 2)
    pool.touch([b"n", b"m"])
    pool.put([b"x"], 4)
    assert pool.found([b"p", b"c", b"n", b"m"]) == [b"p", b"c"]
    pool.check()


def test_a_normal_child_raises_a_low_parent(pool: Pool) -> None:
    pool.put([b"p"], 2, pin=LOW)
    pool.put([b"c"], 2, parents=[-2], outside=[b"p"])
    pool.put([b"l"], 2, pin=LOW)
    pool.put([b"x"], 4)
    assert pool.found([b"p", b"c", b"l"]) == [b"p", b"c"]


def test_a_replaced_value_stands_by_its_new_pin(pool: Pool) -> None:
    pool.put([b"a"], 2, pin=SOFT)
    pool.put([b"a"], 2, replace=True)
    pool.put([b"b"], 2)
    pool.put([b"c"], 2)
    pool.touch([b"b", b"c"])
    pool.put([b"x"], 4)
    assert b"a" not in pool.found([b"a", b"b", b"c"])
    pool.catalog.unpin(10_000.0)  # the end of a pin of a value that is no more changes nothing
    pool.check()


def test_a_soft_pin_of_a_key_put_anew_is_not_the_old_ones() -> None:
    pool = Pool()
    pool.add_segment(8)
    pool.put([b"a"], 2, pin=SOFT, pin_ttl_ms=1000, pin_refresh=True)
    row = pool.row(b"a")
    old = pool.catalog.table.seq[[row]].copy()
    pool.remove([b"a"])
    pool.put([b"b"], 2)
    assert pool.row(b"b") == row
    pool.catalog.touch(np.array([row], np.int32), old, 0.5)
    assert not pool.catalog.table.flags[row] & 64
    pool.catalog.unpin(2.0)
    pool.check()


@pytest.mark.parametrize("policy", POLICIES)
def test_an_inventory_brings_priorities_and_soft_pins_back(policy: str) -> None:
    pool = Pool(replace(SMALL, eviction=policy))
    segment = pool.add_segment(10)
    segment.known = False
    chunk = report([(b"s", b"", 1, 1), (b"l", b"", 2, 1), (b"p", b"", 3, 1), (b"h", b"p", 4, 1)])
    pins = np.array([SOFT, LOW, LOW, HIGH], np.uint8)
    take(pool, segment, replace(chunk, pins=pins, sizes=np.full(4, 2, np.uint64)))
    assert len(pool.catalog.rows.standing) == 1
    pool.put([b"n"], 2)
    pool.put([b"x"], 2, pin=SOFT)
    assert pool.found([b"s", b"l", b"p", b"h", b"n"]) == [b"s", b"p", b"h", b"n"]
    pool.put([b"y"], 2, pin=SOFT)
    assert pool.found([b"s", b"p", b"h", b"n"]) == [b"s", b"p", b"h"]
    pool.catalog.unpin(1800.0)
    assert not pool.catalog.table.flags[pool.row(b"s")] & 64
    pool.check()


def test_an_inventory_of_normal_objects_below_a_low_one_raises_it(pool: Pool) -> None:
    pool.put([b"l"], 2, pin=LOW)
    segment = pool.add_segment(8)
    segment.known = False
    take(pool, segment, report([(b"c", b"l", 90, 1)]))
    assert pool.catalog.table.pin[pool.row(b"l")] == 0


def test_renewals_of_a_soft_pin_leave_nothing_behind() -> None:
    pool = Pool()
    pool.add_segment(8)
    pool.put([b"a"], 2, pin=SOFT, pin_ttl_ms=1000, pin_refresh=True)
    pool.put([b"b"], 2, pin=SOFT, pin_ttl_ms=1_000_000)
    row = pool.row(b"a")
    version = pool.catalog.table.seq[[row]].copy()
    for i in range(1000):
        pool.catalog.touch(np.array([row], np.int32), version, i / 1000)
    assert len(pool.catalog.rows.standing._ends) <= 2 * 2 + ENDS_SPARE
    pool.catalog.unpin(1.5)
    assert pool.catalog.table.flags[row] & 64
    pool.catalog.unpin(2.0)
    assert not pool.catalog.table.flags[row] & 64
    assert pool.catalog.rows.standing.next_deadline == 1000.0
    pool.check()
