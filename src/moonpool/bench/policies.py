"""Eviction policies on real traces: what each would hit, and what it costs a block.

Hits are exact and the same on every machine; only the rate depends on it. "alone" are the rules of
published comparisons, "ends of chains" those of the pool and the prefix tree.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from moonpool.bench.runner import Row, Settings, make_row
from moonpool.planner.policy_replay import replay_policy
from moonpool.planner.traces import PACKAGED, Trace, load
from moonpool.pool.eviction import POLICIES, policy_named

BENCH: Final = "policies"
BLOCKS: Final = (5859,)
BLOCKS_FULL: Final = (1953, 5859, 9765, 19_531)
REQUESTS_MAX: Final = 1_000_000


def rows(settings: Settings) -> Iterator[Row]:
    """One replay each; a second one would give the same."""
    for name in PACKAGED:
        trace = load(name).head(REQUESTS_MAX)
        for blocks in BLOCKS_FULL if settings.full else BLOCKS:
            for policy in POLICIES:
                for ends_only in (True, False) if settings.full else (True,):
                    yield _row(trace, policy, blocks, ends_only)


def _row(trace: Trace, policy: str, blocks: int, ends_only: bool) -> Row:
    start = time.process_time()
    found = replay_policy(trace.requests, policy_named(policy, blocks), ends_only=ends_only)
    seconds = time.process_time() - start
    rules = "ends of chains" if ends_only else "alone"
    figures = {
        "prefix_hit_blocks": found.prefix_hit_blocks,
        "hit_tokens": found.hit_tokens,
        "token_hit_ratio": found.token_hit_ratio,
        "ops_per_s": trace.summary.blocks / max(seconds, 1e-9),
    }
    return make_row(BENCH, f"{policy}, {trace.name}, {blocks} blocks, {rules}", 1, figures)
