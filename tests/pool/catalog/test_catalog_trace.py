"""The eviction order is the reference's: exact hit counts of a mini case and of a real trace."""

from __future__ import annotations

import pytest

from moonpool.planner.traces import load
from tests.pool.catalog.replay import replay

MINI = [
    (1536, [1, 2, 3]),
    (1536, [1, 2, 4]),
    (512, [5]),
    (1500, [1, 2, 3]),
    (1024, [5, 6]),
    (2048, [1, 2, 4, 7]),
    (100, [8]),
]


@pytest.mark.parametrize(
    ("blocks", "hits"),
    [(3, (5, 2560)), (4, (7, 3584)), (5, (8, 4060)), (9, (9, 4572))],
)
def test_mini_case(blocks: int, hits: tuple[int, int]) -> None:
    assert replay(blocks, MINI) == hits


def test_conversation_trace_hits_exactly_as_the_reference_lru() -> None:
    trace = load("conversation")
    requests = [(one.input_length, one.hash_ids) for one in trace.requests]
    blocks, tokens = replay(5859, requests)
    assert blocks == 39_258
    total = sum(tokens for tokens, _ in requests)
    assert round(tokens / total, 4) == 0.1387
