"""Choosing tokens: greedy, temperature, top-k, top-p, seeds."""

from collections import Counter

import pytest
import torch

from moonpool.core.errors import BadInput
from moonpool.engine.model.sampling import draw, sample
from moonpool.engine.request import Sampling

SHARES = torch.tensor([0.1, 0.4, 0.2, 0.3])
LOGITS = SHARES.log()


def counted(sampling: Sampling, draws: int = 4000) -> dict[int, float]:
    seen = Counter(sample(LOGITS, sampling, draw(7, i)) for i in range(draws))
    return {token: count / draws for token, count in seen.items()}


def test_greedy() -> None:
    assert sample(LOGITS, Sampling(temperature=0), 0.99) == 1
    assert sample(LOGITS, Sampling(temperature=5.0, top_k=1), 0.99) == 1
    assert sample(torch.tensor([1.0, 2.0, 2.0]), Sampling(temperature=0), 0.5) == 1


def test_shares_are_those_of_the_logits() -> None:
    seen = counted(Sampling())
    assert all(abs(seen[token] - share) < 0.03 for token, share in enumerate(SHARES.tolist()))


def test_temperature_flattens_and_sharpens() -> None:
    assert counted(Sampling(temperature=0.5))[1] > 0.5 > counted(Sampling())[1]
    assert counted(Sampling(temperature=50.0))[0] > 0.2


def test_top_k() -> None:
    assert set(counted(Sampling(top_k=2))) == {1, 3}
    assert set(counted(Sampling(top_k=9))) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("top_p", "tokens"),
    [(0.01, {1}), (0.4, {1}), (0.41, {1, 3}), (0.75, {1, 2, 3}), (1.0, {0, 1, 2, 3})],
)
def test_top_p_is_the_shortest_run_that_reaches_it(top_p: float, tokens: set[int]) -> None:
    assert set(counted(Sampling(top_p=top_p))) == tokens


def test_the_last_place_is_still_a_token() -> None:
    assert sample(LOGITS, Sampling(), 1.0 - 2**-53) == 0
    assert sample(torch.tensor([0.0]), Sampling(), 1.0 - 2**-53) == 0


def test_draws_depend_on_seed_and_number_alone() -> None:
    row = [draw(3, i) for i in range(1000)]
    assert row == [draw(3, i) for i in range(1000)]
    assert row != [draw(4, i) for i in range(1000)]
    assert len(set(row)) == 1000 and 0.0 <= min(row) and max(row) < 1.0
    assert abs(sum(row) / 1000 - 0.5) < 0.05
    assert draw(-1, 0) == draw(2**64 - 1, 0)


@pytest.mark.parametrize(
    "wrong", [{"temperature": -0.1}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_k": -1}]
)
def test_values_that_mean_nothing(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Sampling(**wrong)  # type: ignore[arg-type]
