"""The policies against a reference computed by others: exact hits on real traces.

`rev`: a request's blocks are accessed last block first. The figures were checked by the makers of
the reference against libcachesim and kvcache-simulator; S3-FIFO's are a ratio only.
"""

from __future__ import annotations

from functools import cache

import pytest

from moonpool.planner.policy_replay import AccessOrder, PolicyFigures, replay_policy
from moonpool.planner.traces import Request, Trace, load
from moonpool.pool.eviction import policy_named

MINI = [
    Request(0, tokens, 0, blocks)
    for tokens, blocks in (
        (1536, [1, 2, 3]),
        (1536, [1, 2, 4]),
        (512, [5]),
        (1500, [1, 2, 3]),
        (1024, [5, 6]),
        (2048, [1, 2, 4, 7]),
        (100, [8]),
    )
]

CAPACITIES = [
    *(19, 195, 1000, 1953, 3906, 5859, 7812, 9765, 15_625, 19_531, 30_000, 50_000, 58_593),
    *(97_656, 195_312),
]

# Prefix-hit blocks at these capacities.
EXACT = {
    ("conversation", "lru"): "12030 12084 12847 15370 24467 39258 50456 59742 75335 82273 93978"
    " 102290 103511 104870 105710",
    ("conversation", "fifo"): "12030 12084 12840 15145 23243 36168 45255 51820 66774 73944 85101"
    " 96231 98487 102710 105710",
    ("conversation", "lfu"): "12030 12930 13871 16983 24507 27961 33304 37734 50915 59619 79655"
    " 99199 101605 104755 105710",
    ("conversation", "arc"): "12030 12940 15275 19619 27414 41608 54423 63680 77669 82974 89740"
    " 99154 101672 104755 105710",
    ("synthetic", "lru"): "216 2050 10252 17351 27850 37703 44859 51256 64113 69059 76077 77953"
    " 77953 77953 77953",
    ("synthetic", "fifo"): "216 2041 9966 17230 28186 36754 42007 48175 59633 64477 72411 77953"
    " 77953 77953 77953",
    ("synthetic", "lfu"): "285 833 5075 11344 18863 29678 35859 43093 65292 71670 76290 77953"
    " 77953 77953 77953",
    ("synthetic", "arc"): "313 1678 11371 17525 29701 39472 47010 51995 67477 71646 76290 77953"
    " 77953 77953 77953",
}
EXACT |= {(trace, "sieve"): EXACT[trace, "lfu"] for trace in ("conversation", "synthetic")}
TABLE = [
    (trace, policy, capacity, int(blocks))
    for (trace, policy), row in EXACT.items()
    for capacity, blocks in zip(CAPACITIES, row.split(), strict=True)
]

# Token hit ratios: where no exact count is known, and of the other order.
RATIOS: list[tuple[str, str, int, AccessOrder, float]] = [
    ("conversation", "s3fifo", 195, "rev", 0.0458),
    ("conversation", "s3fifo", 5859, "rev", 0.1555),
    ("synthetic", "s3fifo", 1953, "rev", 0.1461),
    ("conversation", "lru", 5859, "fwd", 0.1382),
    ("conversation", "arc", 5859, "fwd", 0.1453),
    ("synthetic", "lfu", 5859, "fwd", 0.2475),
    ("synthetic", "sieve", 195, "fwd", 0.0060),
    ("synthetic", "s3fifo", 195, "fwd", 0.0068),
    ("synthetic", "fifo", 1953, "fwd", 0.1416),
]


@cache
def trace_named(name: str) -> Trace:
    return load(name)


def figures(name: str, policy: str, capacity: int, order: AccessOrder = "rev") -> PolicyFigures:
    requests = trace_named(name).requests
    return replay_policy(requests, policy_named(policy, capacity), order=order)


@pytest.mark.parametrize(
    ("policy", "capacity", "order", "hits"),
    [
        ("lru", 3, "fwd", (2, 1024)),
        ("lru", 3, "rev", (5, 2560)),
        ("lfu", 3, "rev", (6, 3072)),
        ("lru", 4, "fwd", (5, 2560)),
        ("lru", 4, "rev", (7, 3584)),
        ("lru", 5, "rev", (8, 4060)),
        ("fifo", 5, "fwd", (6, 3036)),
        ("fifo", 5, "rev", (9, 4572)),
        ("horizon", 9, "rev", (9, 4572)),
    ],
)
def test_the_mini_case(
    policy: str, capacity: int, order: AccessOrder, hits: tuple[int, int]
) -> None:
    found = replay_policy(MINI, policy_named(policy, capacity), order=order)
    assert (found.prefix_hit_blocks, found.hit_tokens) == hits


@pytest.mark.parametrize(
    ("trace", "policy", "capacity", "blocks"), [row for row in TABLE if row[2] in (195, 5859)]
)
def test_exact_blocks(trace: str, policy: str, capacity: int, blocks: int) -> None:
    assert figures(trace, policy, capacity).prefix_hit_blocks == blocks


@pytest.mark.parametrize(("trace", "policy", "capacity", "order", "ratio"), RATIOS)
def test_token_ratios(
    trace: str, policy: str, capacity: int, order: AccessOrder, ratio: float
) -> None:
    assert round(figures(trace, policy, capacity, order).token_hit_ratio, 4) == ratio


@pytest.mark.soak
def test_the_table(request: pytest.FixtureRequest) -> None:
    """All of it in a soak, its smallest caches otherwise."""
    whole = request.config.getoption("--seeds") > 300
    for trace, policy, capacity, blocks in TABLE:
        if whole or capacity <= 19:
            found = figures(trace, policy, capacity).prefix_hit_blocks
            assert found == blocks, (trace, policy, capacity)
