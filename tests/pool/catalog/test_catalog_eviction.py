"""Eviction: just what is needed, in the policy's order, descendants along, pinned ones spared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moonpool.core.errors import BadConfig
from moonpool.pool.catalog.base import CatalogConfig
from moonpool.pool.catalog.eviction import SPARED_MAX, order_named
from moonpool.pool.messages import PutStatus as S
from tests.pool.catalog.harness import SMALL, Pool, make_catalog

KEYS = [b"a", b"b", b"c", b"d", b"e"]


@pytest.fixture
def pool() -> Pool:
    pool = Pool()
    pool.add_segment(10)
    return pool


def test_nothing_goes_while_there_is_room(pool: Pool) -> None:
    pool.put(KEYS, 2)
    assert pool.found(KEYS) == KEYS
    assert pool.catalog.room.evictions == 0


def test_just_what_is_needed_goes_least_recent_first(pool: Pool) -> None:
    for key in KEYS:
        pool.put([key], 2)
    pool.touch([b"a"])
    assert pool.put([b"x"], 3) == [S.COMMITTED]
    assert pool.found([*KEYS, b"x"]) == [b"a", b"d", b"e", b"x"]
    pool.check()


def test_a_batch_is_committed_last_block_least_recent(pool: Pool) -> None:
    pool.put(KEYS, 2, chain=True)
    pool.put([b"x"], 4)
    assert pool.found(KEYS) == KEYS[:3]
    pool.check()


def test_a_touch_of_a_child_is_a_touch_of_its_ancestors(pool: Pool) -> None:
    pool.put([b"a", b"b"], 2, chain=True)
    pool.put([b"c", b"d", b"e"], 2)
    pool.touch([b"b"])
    pool.put([b"x"], 6)
    assert pool.found(KEYS) == [b"a", b"b"]


def test_a_touch_of_another_version_is_ignored(pool: Pool) -> None:
    pool.put([b"a"], 2)
    row = np.array([pool.row(b"a")], np.int32)
    assert pool.catalog.touch(row, np.array([99], np.uint64)) == 0
    assert pool.catalog.touch(np.array([-1, 2**30], np.int32), np.array([1, 1], np.uint64)) == 0


def test_descendants_go_along_on_whatever_segment() -> None:
    pool = Pool()
    pool.add_segment(10)
    pool.add_segment(10)
    pool.put([b"a"], 6, prefer=0)
    pool.put([b"b"], 6, prefer=1, parents=[-2], outside=[b"a"])
    pool.catalog.table.list_touch(pool.catalog.table.list_iter(1))
    assert pool.put([b"x"], 6, prefer=0) == [S.COMMITTED]
    kinds = [(event.kind, event.key) for event in pool.catalog.events.read(1, 1, 99)[0]]
    assert kinds[2:4] == [("evict", b"b"), ("evict", b"a")]
    assert [segment.committed_bytes for segment in pool.catalog.segments] == [6, 0]
    pool.check()


@pytest.mark.parametrize("how", ["pin", "lease", "flight"])
def test_a_kept_descendant_protects_its_ancestors(pool: Pool, how: str) -> None:
    pool.put([b"a"], 4)
    if how == "flight":
        pool.reserve([b"b"], 4, parents=[-2], outside=[b"a"])
    else:
        pool.put([b"b"], 4, parents=[-2], outside=[b"a"], pin=2 if how == "pin" else 0)
    if how == "lease":
        row = pool.row(b"b")
        sequences = pool.catalog.table.seq[[row]]
        pool.catalog.leases.take(1, [row], sequences, 1000, pool.now)
    assert pool.put([b"x"], 4) == [S.HELD]
    assert pool.put([b"x"], 2) == [S.COMMITTED]
    pool.check()


def test_a_soft_pin_does_not_stop_eviction(pool: Pool) -> None:
    pool.put([b"a"], 10, pin=1)
    assert pool.put([b"x"], 1) == [S.COMMITTED]


def test_parents_and_known_keys_of_the_batch_are_no_victims(pool: Pool) -> None:
    pool.put([b"a", b"b"], 3, chain=True)
    assert pool.put([b"b", b"x"], 6, parents=[-1, -2], outside=[b"a"]) == [S.EXISTS, S.HELD]
    assert pool.put([b"b", b"x"], 4, parents=[-1, -2], outside=[b"a"]) == [S.EXISTS, S.COMMITTED]
    pool.check()


def test_promised_bytes_are_no_victims_and_count(pool: Pool) -> None:
    pool.reserve([b"a"], 6)
    assert pool.put([b"x"], 5) == [S.FULL]
    pool.check()


def test_nothing_is_evicted_for_what_cannot_be_admitted(pool: Pool) -> None:
    pool.put([b"a"], 3)
    pool.put([b"p"], 5, pin=2)
    assert pool.put([b"x"], 6) == [S.FULL]
    assert pool.found([b"a"]) == [b"a"]


def test_slots_are_capacity_too() -> None:
    pool = Pool()
    pool.add_segment(1000, slots=2)
    pool.put([b"a"], 0)
    pool.put([b"b"], 0)
    assert pool.put([b"x"], 0) == [S.COMMITTED]
    assert pool.found([b"a", b"b", b"x"]) == [b"b", b"x"]
    pool.check()


def test_two_copies_need_room_on_two_segments() -> None:
    pool = Pool()
    for _ in range(2):
        pool.add_segment(10)
    assert pool.put([b"a", b"b"], 4, replicas=2) == [S.COMMITTED] * 2
    assert pool.put([b"x"], 8, replicas=2) == [S.COMMITTED]
    assert pool.found([b"a", b"b", b"x"]) == [b"x"]
    pool.check()


def test_fewer_copies_where_there_is_room_for_fewer() -> None:
    pool = Pool()
    for _ in range(2):
        pool.add_segment(10)
    pool.put([b"p"], 10, pin=2, prefer=1)
    assert pool.put([b"x"], 4, replicas=2) == [S.HELD]
    admitted = pool.reserve([b"x"], 4, replicas=2, min_replicas=1)
    assert admitted.segments.tolist() == [[0, 0xFFFF]]
    assert pool.commit(pool.sealed(admitted)).status.tolist() == [S.COMMITTED]
    pool.check()


def test_another_segment_is_tried_when_one_holds_only_kept_objects() -> None:
    pool = Pool()
    for _ in range(2):
        pool.add_segment(10)
    pool.put([b"p"], 10, pin=2, prefer=0)
    pool.put([b"a"], 10, prefer=1)
    for _ in range(4):
        assert pool.put([b"x"], 10, prefer=0) in ([S.COMMITTED], [S.EXISTS])
    pool.check()


def test_room_elsewhere_comes_before_eviction() -> None:
    pool = Pool()
    pool.add_segment(10)
    pool.add_segment(10, host="far")
    for i in range(10):
        assert pool.put([b"%d" % i], 2) == [S.COMMITTED]
    assert pool.catalog.room.evicted_objects == 0
    pool.check()


def test_many_kept_objects_do_not_hide_the_others() -> None:
    config = CatalogConfig(rows_max=1024, segments_max=2, reservations_max=999, events_max=16)
    pool = Pool(config)
    pool.add_segment(300)
    pool.put([b"p%d" % i for i in range(200)], pin=2)
    pool.put([b"a%d" % i for i in range(100)])
    assert pool.put([b"x%d" % i for i in range(60)]) == [S.COMMITTED] * 60
    pool.check()


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(BadConfig, match="fifo"):
        order_named("fi", make_catalog(SMALL).table, 8, make_catalog(SMALL).rows.standing)


def test_leases_end_and_eviction_goes_on(pool: Pool) -> None:
    pool.put([b"a"], 10)
    row = pool.row(b"a")
    pool.catalog.leases.take(1, [row], pool.catalog.table.seq[[row]], 1000, pool.now)
    assert pool.put([b"x"], 5) == [S.HELD]
    pool.catalog.leases.expire(pool.now + 2)
    assert pool.put([b"x"], 5) == [S.COMMITTED]
    pool.check()


def test_a_futile_search_is_said_counted_and_not_repeated_until_something_changes() -> None:
    pool = Pool()
    pool.add_segment(10)
    pool.put(KEYS, 2, pin=2)
    evictor = pool.catalog.rows.evictor
    for again in range(3):
        assert pool.put([b"x"], 2) == [S.HELD]
        assert (evictor.futile, evictor.futile_skipped) == (1, again)
    pool.remove([b"a"])
    assert pool.put([b"x"], 2) == [S.COMMITTED]
    assert pool.put([b"y"], 4) == [S.FULL]  # x may go, but is too little
    assert evictor.futile == 1
    pool.check()


def test_the_end_of_a_lease_makes_a_search_worth_while_again() -> None:
    pool = Pool()
    pool.add_segment(10)
    pool.put([b"a"], 10)
    row = pool.row(b"a")
    sequence = pool.catalog.table.seq[[row]]
    number, _, _ = pool.catalog.leases.take(1, [row], sequence, 1000, 0.0)
    assert pool.put([b"x"], 2) == [S.HELD]
    pool.catalog.leases.release(1, number)
    assert pool.put([b"x"], 2) == [S.COMMITTED]


def test_a_search_that_broke_off_is_not_the_last_word() -> None:
    """Many that may not go are passed over in several searches, though nothing changes between."""
    count = SPARED_MAX + 500
    pool = Pool(replace(SMALL, rows_max=4 * count, reservations_max=4 * count))
    pool.add_segment(count + 1, slots=2 * count)
    pool.put([b"p%d" % i for i in range(count)], 1, pin=2)
    pool.put([b"a"], 1)
    assert pool.put([b"x"], 1) == [S.FULL]
    assert pool.put([b"x"], 1) == [S.COMMITTED]
    assert pool.found([b"a", b"x"]) == [b"x"]
    pool.check()
