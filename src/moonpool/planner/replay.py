"""The accounting of a replay: what was verified becomes hit tokens, ratios and percentiles.

No I/O, no clock: the replayer says what each request verified, moved and took. Nothing here looks
at the trace or at a pool to learn what should have hit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


def hit_tokens(verified_blocks: int, block_tokens: int, input_length: int) -> int:
    """Prompt tokens that `verified_blocks` leading blocks cover.

    The last block of a prompt may be partial, so whole blocks may promise more than was asked.
    """
    return min(verified_blocks * block_tokens, input_length)


class Outcome(NamedTuple):
    """What one request got: leading blocks verified, bytes moved, time in pool calls."""

    input_length: int
    verified_blocks: int
    bytes_read: int
    bytes_written: int
    seconds: float


class Window(NamedTuple):
    """A run of consecutive requests, for a curve: `end` is the number of requests up to it."""

    end: int
    token_hit_ratio: float
    token_hit_ratio_so_far: float
    gb_per_s: float


@dataclass(frozen=True)
class Figures:
    """The result of a replay. Rates are decimal gigabytes over the time spent in pool calls."""

    requests: int
    input_tokens: int
    hit_tokens: int
    token_hit_ratio: float
    prefix_hit_blocks: int
    bytes_read: int
    bytes_written: int
    gb_per_s: float
    p50_us: float
    p99_us: float
    errors: dict[str, int]
    pool_seconds: float


@dataclass
class Ledger:
    """Collects outcomes and errors in request order; `figures` and `windows` sum them up."""

    block_tokens: int
    outcomes: list[Outcome] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def record(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def error(self, reason: str, count: int = 1) -> None:
        self.errors[reason] += count

    def figures(self) -> Figures:
        outcomes = self.outcomes
        tokens = sum(o.input_length for o in outcomes)
        hits = sum(self._hits(o) for o in outcomes)
        moved = sum(o.bytes_read + o.bytes_written for o in outcomes)
        seconds = sum(o.seconds for o in outcomes)
        p50, p99 = _percentiles_us(outcomes)
        return Figures(
            requests=len(outcomes),
            input_tokens=tokens,
            hit_tokens=hits,
            token_hit_ratio=_ratio(hits, tokens),
            prefix_hit_blocks=sum(o.verified_blocks for o in outcomes),
            bytes_read=sum(o.bytes_read for o in outcomes),
            bytes_written=sum(o.bytes_written for o in outcomes),
            gb_per_s=_ratio(moved / 1e9, seconds),
            p50_us=p50,
            p99_us=p99,
            errors=dict(sorted(self.errors.items())),
            pool_seconds=seconds,
        )

    def windows(self, count: int = 60) -> list[Window]:
        """At most `count` windows of equally many requests each (the last may be smaller).

        Requests, not trace time: traces come in batches of equal timestamps.
        """
        size = max(1, -(-len(self.outcomes) // count))
        result: list[Window] = []
        tokens_so_far = hits_so_far = 0
        for start in range(0, len(self.outcomes), size):
            part = self.outcomes[start : start + size]
            tokens = sum(o.input_length for o in part)
            hits = sum(self._hits(o) for o in part)
            moved = sum(o.bytes_read + o.bytes_written for o in part)
            tokens_so_far += tokens
            hits_so_far += hits
            result.append(
                Window(
                    end=start + len(part),
                    token_hit_ratio=_ratio(hits, tokens),
                    token_hit_ratio_so_far=_ratio(hits_so_far, tokens_so_far),
                    gb_per_s=_ratio(moved / 1e9, sum(o.seconds for o in part)),
                )
            )
        return result

    def _hits(self, outcome: Outcome) -> int:
        return hit_tokens(outcome.verified_blocks, self.block_tokens, outcome.input_length)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _percentiles_us(outcomes: list[Outcome]) -> tuple[float, float]:
    if not outcomes:
        return 0.0, 0.0
    p50, p99 = np.percentile([o.seconds for o in outcomes], [50, 99]) * 1e6
    return float(p50), float(p99)
