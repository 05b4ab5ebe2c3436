"""Replays of policies as the pool and the tree run them: ends of chains only."""

from __future__ import annotations

import pytest

from moonpool.planner.policy_replay import replay_policy
from moonpool.planner.traces import Request, load
from moonpool.pool.eviction import policy_named

SLOW = {"s3fifo", "fifo"}  # they look at many parents for each victim


@pytest.mark.soak
@pytest.mark.parametrize(
    ("policy", "ratio", "within"),
    [
        ("lru", 0.1387, 0.00005),
        ("lfu", 0.0988, 0.002),
        ("sieve", 0.0988, 0.002),
        ("arc", 0.147, 0.002),
        ("horizon", 0.181, 0.002),
        ("s3fifo", 0.1555, 0.02),
        ("fifo", 0.139, 0.002),
    ],
)
def test_ends_of_chains_first(
    policy: str, ratio: float, within: float, request: pytest.FixtureRequest
) -> None:
    """Where a parent stays as long as its children, FIFO comes near LRU; and Horizon is ahead."""
    if policy in SLOW and request.config.getoption("--seeds") <= 300:
        pytest.skip("ten seconds each: make soak")
    found = replay_policy(load("conversation").requests, policy_named(policy, 5859), ends_only=True)
    assert abs(found.token_hit_ratio - ratio) <= within


@pytest.mark.parametrize("policy", ["lru", "fifo", "lfu", "s3fifo", "sieve", "arc", "horizon"])
def test_no_block_stays_without_its_parent(policy: str) -> None:
    requests = load("synthetic").head(600).requests
    cache = policy_named(policy, 700)
    replay_policy(requests, cache, ends_only=True)
    parents = {
        block: parent
        for request in requests
        for parent, block in zip([None, *request.hash_ids], request.hash_ids, strict=False)
    }
    kept = [block for block in parents if block in cache]
    assert len(kept) == 700
    assert all(parents[block] is None or parents[block] in cache for block in kept)


def test_a_prompt_longer_than_the_cache_keeps_its_head() -> None:
    cache = policy_named("lru", 3)
    requests = [Request(0, 5 * 512, 0, [1, 2, 3, 4, 5])] * 2
    found = replay_policy(requests, cache, ends_only=True)
    assert (found.prefix_hit_blocks, found.requests) == (3, 2)
    assert found.token_hit_ratio == 3 / 10


def test_nothing_to_replay() -> None:
    assert replay_policy([], policy_named("lru", 1)).token_hit_ratio == 0.0
