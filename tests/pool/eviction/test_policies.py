"""What every policy keeps, whatever it prefers; and what each one prefers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.core.errors import BadConfig, BadInput
from moonpool.pool.eviction import (
    POLICIES,
    Arc,
    EvictionPolicy,
    Horizon,
    S3Fifo,
    Sieve,
    policy_named,
)
from moonpool.pool.eviction.base import LOOKED_AT_MAX
from moonpool.pool.eviction.horizon import GHOSTS_PER_KEY

NAMES = sorted(POLICIES)


def filled(name: str, *keys: int, capacity: int = 4) -> EvictionPolicy[int]:
    policy: EvictionPolicy[int] = policy_named(name, capacity)
    for key in keys:
        policy.access(key)
    return policy


def drained(policy: EvictionPolicy[int]) -> list[int]:
    """The order in which its keys go."""
    keys = []
    while len(policy):
        key = policy.victim()
        assert key is not None
        keys.append(key)
    return keys


@pytest.mark.parametrize("name", NAMES)
@given(steps=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 9)), max_size=120))
def test_it_holds_what_a_set_would(name: str, steps: list[tuple[int, int]]) -> None:
    policy: EvictionPolicy[int] = policy_named(name, 5)
    held: set[int] = set()
    for key, how in steps:
        if how == 0 and key in held:
            policy.remove(key)
            held.remove(key)
        elif how == 1:
            allowed = {one for one in held if one % 2 == key % 2}
            victim = policy.victim(allowed.__contains__, incoming=key)
            assert (victim is None) == (not allowed)
            if victim is not None:
                assert victim in allowed
                held.remove(victim)
        elif how == 2 and len(held) == 5 and key not in held:
            victim = policy.victim(incoming=key)
            assert victim in held
            held.discard(victim)
            policy.add(key, depth=key)
            held.add(key)
        else:
            assert policy.access(key) == (key in held)
            held.add(key)
            held = {one for one in held if one in policy}
        assert len(policy) == len(held) <= 5
        assert all(one in policy for one in held)
        assert not any(one in policy for one in set(range(12)) - held)
    assert sorted(drained(policy)) == sorted(held)
    assert policy.victim() is None


@pytest.mark.parametrize("name", NAMES)
def test_the_same_accesses_give_the_same_victims(name: str) -> None:
    def run() -> list[int | None]:
        accesses, policy = random.Random(3), policy_named(name, 50)
        victims: list[int | None] = []
        for _ in range(2000):
            key = int(accesses.expovariate(1 / 40))
            if key not in policy and len(policy) >= 50:
                victims.append(policy.victim(incoming=key))
            policy.access(key)
        return victims

    assert run() == run()


class Only:
    """Lets one key go; with `among` it says so beforehand."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.among: set[int] | None = {key}
        self.refused = 0

    def __call__(self, key: int) -> bool:
        self.refused += key != self.key
        return key == self.key


@pytest.mark.parametrize("name", NAMES)
def test_a_search_among_some_keys_is_bounded(name: str) -> None:
    count = LOOKED_AT_MAX + 1000
    policy: EvictionPolicy[int] = policy_named(name, 2 * count)
    for key in range(count):
        policy.add(key)
    only = Only(count - 1)
    assert policy.victim(only) is None
    assert only.refused <= LOOKED_AT_MAX and len(policy) == count
    only.among = None
    assert policy.victim(only) == count - 1


def test_lru_goes_by_use_and_fifo_by_arrival() -> None:
    assert drained(filled("lru", 1, 2, 3, 1)) == [2, 3, 1]
    assert drained(filled("fifo", 1, 2, 3, 1)) == [1, 2, 3]


def test_lfu_goes_by_count_then_by_use() -> None:
    assert drained(filled("lfu", 1, 2, 3, 4, 1, 3, 3, 2, 1)) == [4, 2, 3, 1]


def test_sieve_spares_what_was_used_once_round() -> None:
    policy = filled("sieve", 1, 2, 3, 4, 1, 3)
    assert [policy.victim(), policy.victim()] == [2, 4]
    policy.access(5)
    assert policy.victim() == 1  # its mark was cleared as the hand passed


def test_the_hand_waits_at_a_key_that_may_not_go() -> None:
    policy: Sieve[int] = Sieve(4)
    for key in (1, 2, 3):
        policy.add(key)
    assert policy.victim(lambda key: key != 1) == 2
    assert policy.victim() == 1


def test_s3fifo_moves_what_was_used_twice_and_remembers_the_rest() -> None:
    policy: S3Fifo[int] = S3Fifo(10)
    for key in range(10):
        policy.access(key)
    for key in (0, 0, 1):
        policy.access(key)
    assert policy.victim() == 1  # once is not enough
    policy.access(1)  # back from the ghosts, into the main queue
    assert drained(policy) == [2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_arc_learns_from_its_ghosts() -> None:
    policy: Arc[int] = Arc(4)
    for key in (1, 2, 1, 2, 3, 4, 5):
        policy.access(key)
    assert 3 not in policy  # the oldest of those seen once
    policy.access(3)
    assert (3 in policy, 4 in policy) == (True, False)


def test_horizon_learns_that_some_keys_never_return() -> None:
    """Half of the accesses scan keys once, the others go round 60 keys: LRU keeps few of these."""
    hits = {}
    for name in ("lru", "horizon"):
        policy: EvictionPolicy[int] = policy_named(name, 100)
        hits[name] = 0
        for step in range(10_000):
            policy.access(1000 + step)
            hits[name] += policy.access(step % 60)
    assert hits["lru"] == 0
    assert hits["horizon"] > 5000


def test_horizon_prefers_to_keep_what_is_dear_to_compute() -> None:
    policy: Horizon[int] = Horizon(4)
    policy.add(1, depth=100_000)
    for key in (2, 3, 4):
        policy.add(key)
    assert drained(policy)[-1] == 1


def test_ghosts_are_bounded() -> None:
    horizon: Horizon[int] = Horizon(10)
    s3fifo: S3Fifo[int] = S3Fifo(10)
    arc: Arc[int] = Arc(10)
    for key in range(1000):
        for policy in (horizon, s3fifo, arc):
            policy.access(key)
    assert len(horizon._ghosts) == GHOSTS_PER_KEY * 10
    assert len(s3fifo._ghosts) == 9
    assert len(arc._once_ghosts) + len(arc._again_ghosts) <= 10


def test_bad_arguments() -> None:
    with pytest.raises(BadConfig, match="Did you mean 'sieve'"):
        policy_named("seive", 4)
    with pytest.raises(BadInput, match="not 0"):
        policy_named("lru", 0)
