"""Routing a trace through the real brain and real caches: what holds whatever the machine."""

import pytest

from moonpool.core.errors import BadInput
from moonpool.planner.routing import simulate, tokens_per_s
from moonpool.planner.traces import Request, Trace, load
from moonpool.router import BrainConfig, DynamoCost

MINI = Trace(
    "mini",
    tuple(
        Request(timestamp=1000 * i, input_length=tokens, output_length=1, hash_ids=ids)
        for i, (tokens, ids) in enumerate(
            [
                (1536, [1, 2, 3]),
                (1536, [1, 2, 4]),
                (512, [5]),
                (1500, [1, 2, 3]),
                (1024, [5, 6]),
                (2048, [1, 2, 4, 7]),
                (100, [8]),
            ]
        )
    ),
)


@pytest.mark.parametrize(("blocks", "hits"), [(4, 7), (5, 8), (6, 9)])
def test_one_worker_is_the_one_cache_of_the_reference(blocks: int, hits: int) -> None:
    """Its mini case, the last blocks used first."""
    assert simulate(MINI, 1, blocks).prefix_hit_blocks == hits


def test_the_rate_keeps_an_unbounded_fleet_as_busy_as_asked() -> None:
    uncached = 1536 + 512 + 512 + 0 + 512 + 512 + 100
    assert tokens_per_s(MINI, 2, 0.5) == pytest.approx(uncached / (0.5 * 2 * 6.0))


def test_a_pool_serves_whatever_worker_was_chosen() -> None:
    figures = simulate(MINI, 2, 6, pooled=True)
    assert figures.prefix_hit_blocks == 9


def test_chat_over_eight_workers() -> None:
    """The head of the trace: no worker gets it all because everybody shares the first block."""
    trace = load("conversation").head(3000)
    ours = simulate(trace, 8, 5859)
    assert ours.work_imbalance < 1.1
    assert ours.token_hit_ratio > 0.94 * simulate(trace, 8, 5859, pooled=True).token_hit_ratio
    assert ours.predicted_hit_ratio == pytest.approx(ours.token_hit_ratio, rel=0.02)


def test_the_baseline_runs_on_the_same_trace() -> None:
    trace = load("synthetic").head(400)
    figures = simulate(trace, 4, 5859, config=BrainConfig(cost=DynamoCost()))
    assert figures.token_hit_ratio > 0.03
    assert figures.work_imbalance < 1.1


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "workers", "ratio", "imbalance", "pooled"),
    [
        ("conversation", 8, 0.343, 1.10, False),
        ("conversation", 16, 0.352, 1.15, False),
        ("synthetic", 8, 0.645, 1.15, False),
        ("conversation", 8, 0.359, 1.10, True),
        ("synthetic", 8, 0.650, 1.15, True),
    ],
)
def test_whole_traces(
    name: str, workers: int, ratio: float, imbalance: float, pooled: bool
) -> None:
    figures = simulate(load(name), workers, 5859, pooled=pooled)
    assert figures.token_hit_ratio >= ratio
    assert figures.work_imbalance <= imbalance


def test_nothing_to_route_is_refused() -> None:
    with pytest.raises(BadInput, match="0 requests"):
        simulate(Trace("empty", ()), 8, 100)
