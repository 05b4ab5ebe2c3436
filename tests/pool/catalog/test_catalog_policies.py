"""The shared eviction policies inside the catalog: P9 above them, their figures kept."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from moonpool.core.sections import PolicyName
from moonpool.planner.policy_replay import replay_policy
from moonpool.planner.traces import load
from moonpool.pool.catalog.base import NO_SEGMENT
from moonpool.pool.catalog.policy_order import PolicyOrder
from moonpool.pool.eviction import POLICIES, policy_named
from moonpool.pool.messages import PutStatus as S
from tests.pool.catalog.harness import SMALL, Pool
from tests.pool.catalog.replay import replay

SHARED = [name for name in POLICIES if name != "lru"]
KEYS = [b"a", b"b", b"c", b"d", b"e"]


def pool_of(policy: str, capacity: int = 10, **limits: object) -> Pool:
    pool = Pool(replace(SMALL, eviction=policy, **limits))  # type: ignore[arg-type]
    pool.add_segment(capacity)
    return pool


def order_of(pool: Pool) -> PolicyOrder:
    order = pool.catalog.rows.order
    assert isinstance(order, PolicyOrder)
    return order


@pytest.mark.parametrize("policy", POLICIES)
def test_a_short_trace_hits_as_the_policy_among_ends_of_chains(policy: str) -> None:
    trace = load("conversation").head(300)
    requests = [(one.input_length, one.hash_ids) for one in trace.requests]
    expected = replay_policy(trace.requests, policy_named(policy, 300), ends_only=True)
    blocks, _ = replay(300, requests, policy)
    assert abs(blocks - expected.prefix_hit_blocks) <= 0.02 * expected.prefix_hit_blocks


@pytest.mark.soak
@pytest.mark.parametrize(
    ("policy", "ratio", "within"),
    [
        ("lfu", 0.0988, 0.002),
        ("sieve", 0.0988, 0.002),
        ("arc", 0.147, 0.002),
        ("s3fifo", 0.1555, 0.02),
        ("fifo", 0.139, 0.002),
        ("horizon", 0.1814, 0.002),
    ],
)
def test_the_conversation_trace(
    policy: str, ratio: float, within: float, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--seeds") <= 300:
        pytest.skip("twenty seconds each: make soak")
    requests = [(one.input_length, one.hash_ids) for one in load("conversation").requests]
    _, tokens = replay(5859, requests, policy)
    assert abs(tokens / sum(tokens for tokens, _ in requests) - ratio) <= within


@pytest.mark.parametrize("policy", SHARED)
def test_children_go_before_their_parents(policy: str) -> None:
    pool = pool_of(policy)
    pool.put(KEYS, 2, chain=True)
    assert pool.put([b"x"], 4) == [S.COMMITTED]
    assert pool.found(KEYS) == KEYS[:3]
    pool.check()


@pytest.mark.parametrize("policy", SHARED)
def test_pinned_leased_and_in_flight_objects_stay(policy: str) -> None:
    pool = pool_of(policy)
    pool.put([b"a"], 2, pin=2)
    pool.put([b"b", b"c"], 2)
    row = pool.row(b"b")
    pool.catalog.leases.take(1, [row], pool.catalog.table.seq[[row]], 1000, 0.0)
    pool.reserve([b"c"], 2, replace=True)
    assert pool.put([b"x"], 4) == [S.HELD]
    assert pool.put([b"y"], 2) == [S.COMMITTED]
    assert pool.found([b"a", b"b", b"c"]) == [b"a", b"b", b"c"]
    pool.check()


@pytest.mark.parametrize("policy", SHARED)
def test_a_parent_whose_children_lie_elsewhere_takes_them_along(policy: str) -> None:
    pool = pool_of(policy)
    pool.add_segment(10)
    pool.put([b"a"], 6, prefer=0)
    pool.put([b"b"], 6, prefer=1, parents=[-2], outside=[b"a"])
    assert pool.put([b"x"], 6, prefer=0) == [S.COMMITTED]
    assert pool.found([b"a", b"b", b"x"]) == [b"x"]
    pool.check()


@pytest.mark.parametrize("policy", SHARED)
def test_orphans_go_first(policy: str) -> None:
    pool = pool_of(policy)
    pool.put([b"a", b"b"], 2, chain=True)
    pool.put([b"c"], 2)
    pool.touch([b"b"])
    pool.remove([b"a"])
    assert pool.put([b"x"], 8) == [S.COMMITTED]
    assert pool.found([b"b", b"c"]) == [b"c"]
    pool.check()


@pytest.mark.parametrize("policy", SHARED)
def test_a_copy_on_each_of_two_segments_goes_with_the_other(policy: str) -> None:
    pool = pool_of(policy)
    pool.add_segment(10)
    for key in KEYS:
        pool.put([key], 2, replicas=2)
    assert pool.put([b"x", b"y"], 2, replicas=2) == [S.COMMITTED, S.COMMITTED]
    assert len(pool.found(KEYS)) == 3
    pool.check()


def test_reads_count_once_for_each_and_once_for_ancestors() -> None:
    pool = pool_of("lfu")
    pool.put([b"a", b"b"], 2, chain=True)
    pool.put([b"c", b"d", b"e"], 2)
    pool.touch([b"c", b"c", b"d"])
    pool.touch([b"b"])
    assert pool.put([b"x"], 2) == [S.COMMITTED]
    assert b"e" not in pool.found(KEYS)
    assert pool.put([b"y"], 4) == [S.COMMITTED]  # x, then d or b: used as often, b more lately
    assert pool.found([*KEYS, b"x"]) == [b"a", b"b", b"c"]
    assert pool.catalog.touch(np.array([-1, 9999], np.int32), np.zeros(2, np.uint64)) == 0


def test_what_was_promised_and_given_up_is_forgotten() -> None:
    pool = pool_of("arc")
    pool.put(KEYS, 2)
    admitted = pool.reserve([b"x", b"y"], 2)
    book = order_of(pool)._books[0]
    assert len(book.promised) == 1  # the last one's room was the end of the search
    pool.catalog.abort(admitted.rows, admitted.attempts, 0.0)
    assert not book.promised and len(book.policy) == len(pool.found(KEYS)) == 3
    pool.check()


def check_books(pool: Pool) -> None:
    """Nothing is in flight: the orders know what is there, and nothing else."""
    for number, book in order_of(pool)._books.items():
        assert not book.promised
        assert len(book.policy) == len(book.replicas) == pool.catalog.segments[number].objects
    pool.check()


def full_pool_of_two(policy: str) -> Pool:
    pool = pool_of(policy)
    pool.add_segment(10)
    for i in range(5):
        pool.put([b"0%d" % i], 2, prefer=0)
        pool.put([b"1%d" % i], 2, prefer=1)
    return pool


@pytest.mark.parametrize("policy", SHARED)
def test_a_promise_that_moved_to_another_segment_is_forgotten(policy: str) -> None:
    pool = full_pool_of_two(policy)
    admitted = pool.reserve([b"x", b"y", b"z"], 2, prefer=0)
    assert set(admitted.segments[:, 0].tolist()) == {0} and order_of(pool)._books[0].promised
    pool.remove([b"10", b"11", b"12"])
    failed = np.zeros(3, np.uint16)
    offers, _ = pool.catalog.reoffer(admitted.rows, admitted.attempts, failed, "h0", 0.0)
    assert offers.tolist() == [1, 1, 1]
    admitted.segments[:, 0] = offers
    pool.commit(pool.sealed(admitted))
    assert pool.found([b"x", b"y", b"z"]) == [b"x", b"y", b"z"]
    check_books(pool)


@pytest.mark.parametrize("policy", SHARED)
def test_a_promise_of_a_copy_that_did_not_come_is_forgotten(policy: str) -> None:
    pool = full_pool_of_two(policy)
    admitted = pool.reserve([b"x", b"y"], 2, replicas=2, min_replicas=1)
    assert any(book.promised for book in order_of(pool)._books.values())
    for missing in range(2):
        admitted.segments[missing][admitted.segments[missing] == missing] = NO_SEGMENT
    pool.commit(pool.sealed(admitted))
    assert pool.found([b"x", b"y"]) == [b"x", b"y"]
    check_books(pool)


@pytest.mark.parametrize("policy", SHARED)
def test_what_found_room_for_one_of_its_copies_only_is_forgotten(policy: str) -> None:
    pool = pool_of(policy)
    pool.add_segment(10)
    for i in range(5):
        pool.put([b"0%d" % i], 2, prefer=0)
        pool.put([b"1%d" % i], 2, prefer=1, pin=2 if i else 0)
    assert pool.put([b"x", b"y", b"z"], 2, replicas=2).count(S.COMMITTED) == 1
    check_books(pool)


def test_what_a_plan_took_in_vain_stays_in_the_order() -> None:
    pool = pool_of("fifo")
    pool.put([b"a"], 2, pin=2)
    pool.put(KEYS[1:], 2)
    assert pool.put([b"x"], 9) == [S.FULL]
    assert pool.put([b"x", b"y"], 6) == [S.COMMITTED, S.FULL]
    assert pool.found([*KEYS, b"x"]) == [b"a", b"b", b"x"]  # the last of a batch is the oldest
    pool.check()


@pytest.mark.parametrize("policy", ["lru", "sieve"])
def test_beyond_the_high_watermark_a_segment_is_emptied_to_the_low_one(policy: str) -> None:
    pool = pool_of(policy, high_watermark=0.8, low_watermark=0.5)
    pool.put(KEYS[:4], 2)
    assert pool.found(KEYS) == KEYS[:4]
    pool.put([b"e"], 2)
    assert pool.catalog.segments[0].committed_bytes == 4
    assert len(pool.found(KEYS)) == 2
    pool.check()


def test_the_master_knows_the_policies_that_there_are() -> None:
    assert get_args(PolicyName) == tuple(POLICIES)


@pytest.mark.parametrize("policy", ["fifo", "lfu", "arc"])
def test_a_parent_that_came_first_outlives_its_child(policy: str) -> None:
    pool = pool_of(policy)
    pool.put([b"a"], 2)
    pool.put([b"b"], 2, parents=[-2], outside=[b"a"])
    for key in KEYS[2:]:
        pool.put([key], 2)
    pool.put([b"x"], 2)
    assert pool.found(KEYS) == [b"a", b"c", b"d", b"e"]
    pool.check()


@pytest.mark.parametrize("policy", SHARED)
def test_a_pinned_child_elsewhere_keeps_its_parent_and_the_search_ends(policy: str) -> None:
    pool = pool_of(policy)
    pool.add_segment(10)
    pool.put([b"a"], 6, prefer=0)
    pool.put([b"b"], 2, prefer=1, parents=[-2], outside=[b"a"], pin=2)
    pool.put([b"p"], 8, prefer=1, pin=2)
    assert pool.put([b"x"], 6, prefer=0) == [S.HELD]
    pool.remove([b"b"])
    assert pool.put([b"x"], 6, prefer=0) == [S.COMMITTED]
    pool.check()


def test_orphans_that_may_not_go_are_passed_over() -> None:
    pool = pool_of("lfu")
    pool.put([b"a", b"b"], 2, chain=True, pin=2)
    pool.put([b"c"], 2)
    pool.remove([b"a"])
    assert pool.put([b"x"], 8) == [S.COMMITTED]
    assert pool.found([b"b", b"c"]) == [b"b"]
    pool.check()
