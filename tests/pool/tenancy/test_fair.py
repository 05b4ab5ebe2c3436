"""Turns by weight, on the pure class: no clock, no pool, exact counts."""

from __future__ import annotations

import random

import pytest

from moonpool.pool.tenancy.fair import FairQueue

A, B = 1, 3  # tenants, and their weights


def queue(waiting_max: int = 10_000) -> FairQueue[int]:
    return FairQueue(float, waiting_max)


def served(fair: FairQueue[int], turns: int, size: dict[int, int]) -> dict[int, list[int]]:
    """Both always want more: bytes that each was given, turn by turn."""
    given: dict[int, list[int]] = {A: [], B: []}
    for _ in range(turns):
        for tenant in given:
            while fair.waiting(tenant) < 4:
                assert fair.add(tenant, size[tenant])
        turn = fair.take()
        assert turn is not None
        tenant, cost = turn
        given[tenant].append(cost)
        fair.charge(tenant, cost)
    return given


def test_bytes_and_operations_one_to_three() -> None:
    given = served(queue(), 4000, {A: 64, B: 64})
    assert len(given[B]) == 3 * len(given[A])
    assert sum(given[B]) == 3 * sum(given[A])


@pytest.mark.parametrize("sizes", [{A: 1000, B: 10}, {A: 10, B: 1000}])
def test_unequal_sizes_share_bytes(sizes: dict[int, int]) -> None:
    given = served(queue(), 20_000, sizes)
    assert sum(given[B]) / sum(given[A]) == pytest.approx(3, rel=0.01)


def test_any_mix_of_sizes() -> None:
    draw = random.Random(7)
    fair, given = queue(), {A: 0, B: 0}
    for _ in range(8000):
        for tenant in given:
            while fair.waiting(tenant) < 2:
                fair.add(tenant, draw.randint(1, 1 << draw.randint(0, 16)))
        turn = fair.take()
        assert turn is not None
        fair.charge(*turn)
        given[turn[0]] += turn[1]
    assert given[B] / given[A] == pytest.approx(3, rel=0.01)


def test_who_was_away_has_saved_nothing_up_and_owes_nothing() -> None:
    fair = queue()
    for _ in range(1000):  # alone, without having to wait
        fair.charge(B, 64)
    given = served(fair, 400, {A: 64, B: 64})
    assert len(given[B]) == pytest.approx(3 * len(given[A]), abs=4)


def test_a_full_line_takes_no_more() -> None:
    fair = queue(2)
    assert [fair.add(A, i) for i in range(3)] == [True, True, False]
    assert fair.add(B, 9)
    assert len(fair) == 3


def test_what_leaves_its_line_costs_nothing() -> None:
    fair = queue()
    for size in range(10):
        fair.add(A, size)
    assert fair.drop(lambda size: size % 2 == 0) == [(A, size) for size in range(0, 10, 2)]
    assert fair.first() == [1] and len(fair) == 5
    assert fair.drop(lambda size: True) and len(fair) == 0
    given = served(fair, 400, {A: 64, B: 64})
    assert len(given[B]) == pytest.approx(3 * len(given[A]), abs=8)


def test_a_line_is_bounded_by_size_too() -> None:
    fair: FairQueue[int] = FairQueue(float, 100, size=lambda item: item, bytes_max=10)
    assert [fair.add(A, size) for size in (6, 4, 1)] == [True, True, False]
    assert fair.add(B, 20)  # alone, whatever its size: else it could never be asked for
    assert fair.take() is not None  # one of A's goes, and makes room
    assert fair.add(A, 5)
    assert fair.drop(lambda item: item == 5) == [(A, 5)]
    assert fair.add(A, 6) and not fair.add(A, 1)
    assert fair.drop_first(lambda item: item == 4) == [(A, 4)]
    assert fair.add(A, 4)


def test_of_each_line_only_what_is_first_is_looked_at() -> None:
    fair = queue()
    for item in (1, 2, 9, 3):
        fair.add(A, item)
    fair.add(B, 2)
    looked: list[int] = []

    def gone(item: int) -> bool:
        looked.append(item)
        return item < 5

    assert fair.drop_first(gone) == [(A, 1), (A, 2), (B, 2)]
    assert looked == [1, 2, 9, 2]
    assert fair.first() == [9] and len(fair) == 2


def test_nobody_waits() -> None:
    assert queue().take() is None
