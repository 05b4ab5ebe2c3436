"""The scheduler alone: moments are arguments, and each step says what it wants."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.core.errors import BadInput, TooManyOps
from moonpool.transfer.rails import RailCost, RailLimits, RailScheduler, RailState
from moonpool.transfer.rails.base import Ending
from moonpool.transfer.rails.model import CostModel
from moonpool.transfer.rails.slices import cut

SECOND = RailCost(1.0, 0.0, 0.0)


def scheduler(rails: int = 1, **limits: Any) -> RailScheduler:
    made = RailScheduler(1, RailLimits(**{"probe_share": 0.0, **limits}))
    for at in range(rails):
        made.add_rail("p", f"r{at}", SECOND)
    return made


def test_priority_then_deadline_then_age() -> None:
    one = scheduler(rail_slices_max=1)
    late, soon, urgent = (
        one.submit("p", [(1, 1)], deadline_s, priority)
        for deadline_s, priority in [(90.0, 0), (50.0, 0), (99.0, 1)]
    )
    order, now_s = [], 0.0
    while posts := one.step(now_s).posts:
        now_s += 1.0
        order.append(posts[0].piece.op)
        one.done(posts[0].ticket, now_s)
    assert order == [urgent, soon, late]


def test_credits_per_rail_and_per_peer() -> None:
    assert len(_posts(scheduler(3, rail_slices_max=2), 20)) == 6
    assert len(_posts(scheduler(3, rail_slices_max=2, peer_slices_max=4), 20)) == 4


def _posts(one: RailScheduler, slices: int) -> list[Any]:
    one.submit("p", [(1, 1)] * slices, 99.0)
    return one.step(0.0).posts


def test_the_last_slice_waits_for_the_fast_rail() -> None:
    one = RailScheduler(1, RailLimits(rail_slices_max=1, probe_share=0.0))
    one.add_rail("p", "fast", SECOND)
    one.add_rail("p", "slow", RailCost(10.0, 0.0, 0.0))
    one.submit("p", [(1, 1)] * 3, 99.0)
    assert [post.rail for post in one.step(0.0).posts] == ["fast"]


def test_an_empty_op_is_over_at_once() -> None:
    one = scheduler()
    number = one.submit("p", [], 9.0)
    assert one.step(0.0).ended == [(number, Ending.DONE, "")] and one.wake_s() == math.inf


def test_slices_that_arrived_are_not_open_any_more() -> None:
    one = scheduler(slices_max=4)
    for _ in range(3):
        number = one.submit("p", [(1, 1)] * 3, 99.0)
        for post in (posts := one.step(0.0).posts):
            one.done(post.ticket, 0.0)
        assert len(posts) == 3 and one.step(0.0).ended == [(number, Ending.DONE, "")]
    # Of one that is cancelled half-way, the rest is given back, too.
    number = one.submit("p", [(1, 1)] * 4, 99.0)
    first, *others = one.step(0.0).posts
    one.done(first.ticket, 0.0)
    one.cancel(number)
    for post in others:
        one.failed(post.ticket, 0.0, "cancelled")
    assert [ended.ending for ended in one.step(0.0).ended] == [Ending.CANCELLED]
    one.submit("p", [(1, 1)] * 4, 99.0)
    with pytest.raises(TooManyOps, match="slices_max"):
        one.submit("p", [(1, 1)], 99.0)


def test_what_no_rail_can_help_fails_at_once() -> None:
    one = scheduler(2)
    one.submit("p", [(1, 1)] * 3, 9.0)
    first, *others = one.step(0.0).posts
    one.failed(first.ticket, 0.1, "refused", rail_fault=False)
    step = one.step(0.1)
    assert sorted(step.drops) == sorted(post.ticket for post in others) and not step.ended
    one.failed(others[0].ticket, 0.2, "stopped")
    one.done(others[1].ticket, 0.2)
    assert one.step(0.2).ended == [(0, Ending.FAILED, "refused")]
    assert {view.state for view in one.views()} == {RailState.UP}


def test_a_slice_that_fails_too_often_ends_its_op() -> None:
    one = scheduler(attempts_max=3, backoff_s=1.0, backoff_max_s=2.0)
    one.submit("p", [(1, 1)], 99.0)
    moments = []
    now_s = 0.0
    while posts := one.step(now_s).posts:
        moments.append(now_s)
        one.failed(posts[0].ticket, now_s, "dead")
        assert not one.step(now_s).posts
        now_s = min(one.wake_s(), 1e6)
    assert moments == [0.0, 1.0, 3.0] and one.open_ops == 0


def test_a_probe_that_hangs_goes_back_and_the_last_rail_is_kept() -> None:
    one = scheduler(2, rail_slices_max=1, backoff_s=1.0)
    one.submit("p", [(1, 1)] * 4, 1000.0)
    a, b = one.step(0.0).posts
    one.done(a.ticket, 1.0)
    one.failed(b.ticket, 1.0, "dead")
    assert [post.rail for post in one.step(1.0).posts] == ["r0"]
    (probe,) = one.step(2.0).posts
    assert probe.rail == "r1" and one.views()[1].state is RailState.PROBING
    # r0 is late too, but it is the only one that is up; the unknown r1 had a second.
    assert one.wake_s() == 3.0 and one.step(3.0).drops == [probe.ticket]
    assert one.views()[1].state is RailState.DEMOTED and one.views()[0].state is RailState.UP
    one.failed(probe.ticket, 3.0, "stopped")
    one.step(3.0)
    assert one.wake_s() == 5.0


def test_what_arrives_after_it_was_stopped_counts_but_readmits_nobody() -> None:
    one = scheduler(2, rail_slices_max=1)
    one.submit("p", [(1, 1)] * 2, 99.0)
    a, b = one.step(0.0).posts
    assert one.step(1.0).drops == [a.ticket]  # neither had finished one: r0 goes, r1 is kept
    one.done(a.ticket, 1.5)
    one.done(b.ticket, 1.5)
    assert one.step(1.5).ended[0].ending is Ending.DONE
    assert one.views()[0].state is RailState.DEMOTED


def test_cancel_twice_and_after_the_end() -> None:
    one = scheduler()
    number = one.submit("p", [(1, 1)] * 9, 9.0)
    posts = one.step(0.0).posts
    one.cancel(number)
    one.cancel(number)
    assert len(one.step(0.0).drops) == len(posts) == 4
    assert one.wake_s() == math.inf
    for post in posts:
        one.failed(post.ticket, 0.1, "stopped")
    assert one.step(0.1).ended == [(number, Ending.CANCELLED, "cancelled by the caller")]
    one.cancel(number)
    assert not one.step(0.2).ended


def test_what_ended_ops_leave_behind_is_bounded() -> None:
    """They wait behind one that is under way, and it does not let them through."""
    one = scheduler(rail_slices_max=1, ops_max=2, slices_max=20)
    one.submit("p", [(1, 1)] * 2, 50.0, 1)
    assert len(one.step(0.0).posts) == 1
    for at in range(100):
        one.cancel(one.submit("p", [(1, 1)] * 10, 99.0 + at))
        assert len(one.step(0.0).ended) == 1 and one.wake_s() == 50.0
    assert len(one._deadlines) <= 3 * 2 and len(one._queues["p"]) <= 3 * 20


def test_probing_sends_some_slices_elsewhere() -> None:
    one = RailScheduler(5, RailLimits(probe_share=0.1, rail_slices_max=9))
    one.add_rail("p", "good", RailCost(1e-6, 0.0, 0.0))
    one.add_rail("p", "bad", RailCost(10.0, 0.0, 0.0))
    went = {"good": 0, "bad": 0}
    for turn in range(300):
        one.submit("p", [(1, 1)], 1e9)
        (post,) = one.step(float(turn)).posts
        went[post.rail] += 1
        one.done(post.ticket, turn + (1e-6 if post.rail == "good" else 10.0))
    assert 3 < went["bad"] < 40


def test_a_lost_rail_gets_nothing_until_it_is_back_and_then_one_slice() -> None:
    one = scheduler(2, rail_slices_max=1)
    one.submit("p", [(1, 1)] * 4, 1e6)
    a, b = one.step(0.0).posts
    one.lose_rail("p", b.rail, "the card is gone", 0.5)
    one.lose_rail("p", b.rail, "again", 0.5)
    assert one.step(0.5).drops == [b.ticket]
    one.failed(b.ticket, 0.6, "gone")
    one.done(a.ticket, 1.0)
    assert [post.rail for post in one.step(1.0).posts] == [a.rail]
    assert one.views()[1].state is RailState.DOWN and "the card" in one.views()[1].why
    assert [post.rail for post in one.step(500.0).posts] == []
    one.regain_rail("p", b.rail, 500.0)
    (probe,) = one.step(500.0).posts
    assert probe.rail == b.rail
    one.done(probe.ticket, 501.0)
    assert one.views()[1].state is RailState.UP


def test_ops_without_a_rail_left_fail_and_others_go_on() -> None:
    one = scheduler(2)
    pinned = one.submit("p", [(1, 1)], 99.0, ranks={"r1": 0})
    free = one.submit("p", [(1, 1)], 99.0)
    posts = one.step(0.0).posts
    one.lose_rail("p", "r1", "cut", 0.1)
    late = one.submit("p", [(1, 1)], 99.0, ranks={"r1": 0})
    for post in posts:
        if post.rail == "r1":
            one.failed(post.ticket, 0.1, "cut")
    ended = {end.op: end for end in one.step(0.1).ended}
    assert ended[pinned].ending is Ending.FAILED and ended[pinned].why == "cut"
    assert ended[late].why == "no rail is left (r0: ; r1: cut)" and free not in ended


def test_a_higher_rank_waits_for_the_lower_ones_to_be_lost() -> None:
    one = scheduler(3, rail_slices_max=2)
    one.submit("p", [(1, 1)] * 20, 1e6, ranks={"r0": 1, "r1": 0})
    posts = one.step(0.0).posts
    assert [post.rail for post in posts] == ["r1", "r1"]
    one.lose_rail("p", "r1", "cut", 0.1)
    for post in posts:
        one.failed(post.ticket, 0.1, "cut")
    assert [post.rail for post in one.step(0.1).posts] == ["r0", "r0"]


def test_an_attempt_that_is_not_quiet_ends_its_op() -> None:
    one = scheduler(2)
    number = one.submit("p", [(1, 1)], 99.0)
    (post,) = one.step(0.0).posts
    assert one.wants(post.ticket)
    one.failed(post.ticket, 0.1, "cut; it may still arrive", quiet=False)
    (ended,) = one.step(0.1).ended
    assert (ended.op, ended.ending) == (number, Ending.FAILED)


def test_a_forgotten_peer_leaves_nothing() -> None:
    one = scheduler(2)
    number = one.submit("p", [(1, 1)] * 9, 99.0)
    posts = one.step(0.0).posts
    one.forget("p")
    step = one.step(0.1)
    assert sorted(step.drops) == sorted(post.ticket for post in posts) and not step.ended
    for post in posts:
        one.failed(post.ticket, 0.2, "stopped")
    assert one.step(0.2).ended == [(number, Ending.FAILED, "the peer was closed")]
    assert not one.views() and not one._queues and one.wake_s() == math.inf
    with pytest.raises(BadInput, match="no rail leads to p"):
        one.submit("p", [(1, 1)], 99.0)
    one.forget("never there")
    one.lose_rail("p", "r0", "late news", 0.3)
    one.regain_rail("p", "r0", 0.3)


def test_a_rested_rail_that_no_slice_may_use_wakes_nobody() -> None:
    one = scheduler(2, backoff_s=1.0, rail_slices_max=1)
    one.submit("p", [(1, 1)], 1e6, ranks={"r0": 0})
    (post,) = one.step(0.0).posts
    one.failed(post.ticket, 0.0, "dead")
    one.cancel(post.piece.op)
    one.submit("p", [(1, 1)] * 9, 1e6, ranks={"r1": 0})
    one.step(0.0)
    assert one.wake_s() == 1.0
    one.step(1.5)
    assert one.wake_s() > 1.5


def test_limits_are_named() -> None:
    one = scheduler(slices_max=10, ops_max=1)
    with pytest.raises(TooManyOps, match="slices_max is 10"):
        one.submit("p", [(1, 1)] * 11, 1.0)
    one.submit("p", [(1, 1)], 1.0)
    with pytest.raises(TooManyOps, match="ops_max is 1"):
        one.submit("p", [(1, 1)], 1.0)
    with pytest.raises(BadInput, match="rail 'r0' already"):
        one.add_rail("p", "r0")
    for bad in ({"ops_max": 0}, {"learn": 0.0}, {"overdue_factor": 0.5}, {"backoff_s": 99.0}):
        with pytest.raises(BadInput):
            RailLimits(**bad)


@given(st.floats(0, 1e-3), st.floats(1e-9, 1e-5), st.floats(1e-11, 1e-8))
def test_the_model_learns_what_it_sees(fixed: float, block: float, byte: float) -> None:
    model = CostModel(RailCost(), 0.25)
    for blocks, nbytes in [(1, 1 << 20), (256, 1 << 20), (1, 4096)] * 60:
        model.observe(blocks, nbytes, fixed + block * blocks + byte * nbytes)
    want = RailCost(fixed, block, byte).of(256, 1 << 20)
    assert model.predict(256, 1 << 20) == pytest.approx(want, rel=0.25, abs=1e-4)


def test_a_prior_of_zeros_still_learns() -> None:
    model = CostModel(RailCost(0.0, 0.0, 0.0), 0.5)
    model.observe(3, 100, 2.0)
    assert model.predict(1, 1) == 2.0


@given(st.lists(st.integers(0, 5000), max_size=60), st.integers(1, 3000), st.integers(1, 9))
def test_cuts_cover_each_byte_once(lengths: list[int], most: int, blocks_max: int) -> None:
    seen = [0] * len(lengths)
    for one in cut(np.array(lengths, dtype=np.uint64), most, blocks_max):
        assert one.nbytes <= most and 1 <= one.stop - one.start <= blocks_max
        for block in range(one.start, one.stop):
            whole = one.stop - one.start > 1 or one.offset == 0
            assert whole or one.offset == seen[block]
            seen[block] += one.nbytes if one.stop - one.start == 1 else lengths[block]
    assert seen == lengths
