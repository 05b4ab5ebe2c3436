import pytest

from moonpool.core.errors import BadInput
from moonpool.sparse import SparseLayout
from moonpool.sparse.policy import (
    COSTS,
    Costs,
    Expected,
    advise,
    break_even_tokens,
    miss_ratio,
)

FP8 = SparseLayout(61, 656)


def test_the_published_miss_curve() -> None:
    points = [miss_ratio(rows, 2048) for rows in (0, 2047, 2048, 4096, 8192, 99999)]
    assert points == pytest.approx([1, 1, 0.30, 0.134, 0.067, 0.067])
    assert miss_ratio(6144, 2048) == pytest.approx((0.134 + 0.067) / 2)


def test_times_are_bytes_over_rates() -> None:
    costs = Costs(full_bytes_per_s=1e9, gather_bytes_per_s=0.5e9, round_trip_s=1e-3)
    advice = advise(FP8, 131072, Expected(2048, 11, 4096), costs)
    assert advice.full_s == pytest.approx(131072 * 656 * 61 / 1e9)
    assert advice.first_step_s == pytest.approx(0.061 + 2048 * 656 * 61 / 0.5e9)
    assert advice.step_s == pytest.approx(0.061 + 0.134 * 2048 * 656 * 61 / 0.5e9)
    assert advice.on_demand_s == pytest.approx(advice.first_step_s + 10 * advice.step_s)


@pytest.mark.parametrize(
    ("tokens", "output", "buffer", "kind", "full"),
    [
        (131072, 128, 4096, "shm", False),
        (131072, 16, 0, "tcp", False),
        (131072, 1024, 0, "tcp", True),  # without a buffer the rows are moved over and over
        (2048, 100, 0, "shm", True),
        (2048, 100, 0, "tcp", True),
        (131072, 1024, 0, "file", True),  # a cold disk streams, it does not seek
    ],
)
def test_what_is_advised(tokens: int, output: int, buffer: int, kind: str, full: bool) -> None:
    assert advise(FP8, tokens, Expected(2048, output, buffer), COSTS[kind]).full is full


def test_what_does_not_fit_is_not_fetched() -> None:
    expected = Expected(2048, 1024, 0, local_bytes_max=1 << 30)
    advice = advise(FP8, 131072, expected, COSTS["tcp"])
    assert not advice.full
    assert "does not fit" in advice.reason


def test_break_even_is_where_both_cost_the_same() -> None:
    expected = Expected(2048, 1)
    even = break_even_tokens(FP8, 131072, expected, COSTS["tcp"])
    below, above = (
        advise(FP8, 131072, expected._replace(output_tokens=int(even) + more), COSTS["tcp"])
        for more in (0, 2)
    )
    assert not below.full
    assert above.full


def test_input_that_means_nothing() -> None:
    for expected in (Expected(0, 1), Expected(1, 0)):
        with pytest.raises(BadInput):
            advise(FP8, 10, expected, COSTS["shm"])
