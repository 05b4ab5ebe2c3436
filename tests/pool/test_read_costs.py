"""What reads of peers took: octaves that stay, are forgotten, and are the same for any size."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.pool.read_costs import (
    FIRST_READS,
    FORGOTTEN_S,
    PEERS_MAX,
    PLAIN_BYTES_PER_S,
    PLAIN_S,
    UNKNOWN,
    ReadCosts,
)

A, B = b"a" * 16, b"b" * 16


def learnt(*times: float, nbytes: int = 4096) -> ReadCosts:
    costs = ReadCosts()
    for took_s in times:
        costs.took(A, nbytes, took_s, 0.0)
    return costs


def test_a_peer_is_not_known_before_it_was_read_a_few_times() -> None:
    assert ReadCosts().octave(A, 0.0) == UNKNOWN
    assert learnt(*[0.001] * (FIRST_READS - 1)).octave(A, 0.0) == UNKNOWN
    assert learnt(*[0.001] * FIRST_READS).octave(A, 0.0) > UNKNOWN


def test_twice_as_long_is_an_octave() -> None:
    quick, slow = learnt(*[0.001] * 9), learnt(*[0.004] * 9)
    assert slow.octave(A, 0.0) == quick.octave(A, 0.0) + 2


def test_batches_of_any_size_are_about_the_same_peer() -> None:
    costs = ReadCosts()
    for nbytes in (4096, 64 << 20, 1 << 20, 4096) * 5:
        took_s = 3 * (PLAIN_S + nbytes / PLAIN_BYTES_PER_S)
        costs.took(A, nbytes, took_s, 0.0)
        costs.took(B, 4096, 3 * (PLAIN_S + 4096 / PLAIN_BYTES_PER_S), 0.0)
    assert costs.octave(A, 0.0) == costs.octave(B, 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_what_wavers_on_an_edge_does_not_flap(seed: int) -> None:
    """Times between two thirds and one and a half of the mean. Without a band it changes some
    fifty times."""
    draw = random.Random(seed)
    costs = ReadCosts()
    edge_s = (PLAIN_S + 4096 / PLAIN_BYTES_PER_S) * 2**0.5
    seen: list[int] = []
    for i in range(500):
        costs.took(A, 4096, edge_s * 1.5 ** draw.uniform(-1, 1), float(i) / 100)
        if i >= 8:
            seen.append(costs.octave(A, float(i) / 100))
    assert sum(a != b for a, b in pairwise(seen)) <= 1


def test_a_peer_that_became_slow_is_known_as_slow_soon() -> None:
    costs = learnt(*[0.001] * 50)
    before = costs.octave(A, 0.0)
    for _ in range(20):
        costs.took(A, 4096, 0.016, 0.0)
    assert costs.octave(A, 0.0) >= before + 3


def test_one_that_was_slow_is_tried_again_after_a_while() -> None:
    costs = learnt(*[1.0] * 9)
    assert costs.octave(A, FORGOTTEN_S) > UNKNOWN
    assert costs.octave(A, FORGOTTEN_S + 0.1) == UNKNOWN
    for _ in range(FIRST_READS):
        costs.took(A, 4096, 0.001, FORGOTTEN_S + 1)
    assert costs.octave(A, FORGOTTEN_S + 1) == learnt(*[0.001] * 9).octave(A, 0.0)


def test_what_is_kept_is_bounded() -> None:
    costs = ReadCosts()
    for number in range(PEERS_MAX + 10):
        costs.took(number.to_bytes(16, "little"), 1, 0.001, 0.0)
    assert len(costs) == PEERS_MAX


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.floats(0, 1e6), st.floats(0, 1e6))))
def test_any_times_are_taken(reads: list[tuple[int, float, float]]) -> None:
    costs = ReadCosts()
    for nbytes, took_s, now in reads:
        costs.took(A, nbytes, took_s, now)
        costs.octave(A, now)
