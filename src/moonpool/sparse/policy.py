"""Whether to fetch a prefix whole or read rows on demand: a stated cost model, pure.

    full       n * E * L / full_rate                                   once, before the first step
    on demand  L * round_trip + k * E * L / gather_rate                the first step
               L * round_trip + miss * k * E * L / gather_rate         every further step

n tokens, E bytes a row, L layers, k rows a step. `miss` is what a hot buffer of B rows misses at
the published curve (HiSparse, GLM-5.1, LRU): 1 without a buffer, 0.30 at B = k, 0.134 at 2k, 0.067
at 4k. Index keys are needed either way and stand in neither. What is compared is the time spent
moving rows over the whole answer; whole prefixes must fit into local memory.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from moonpool.core.errors import BadInput
from moonpool.sparse.layout import SparseLayout

MISS_CURVE: Final = ((0.0, 1.0), (1.0, 0.30), (2.0, 0.134), (4.0, 0.067))


class Costs(NamedTuple):
    """Of one transport. The defaults are estimates, not measured: give those of your machine."""

    full_bytes_per_s: float
    gather_bytes_per_s: float
    round_trip_s: float


COSTS: Final = {
    "shm": Costs(4.0e9, 2.0e9, 0.0),
    "tcp": Costs(2.5e9, 1.0e9, 100e-6),
    "file": Costs(1.0e9, 9.0e6, 0.0),  # cold: every row or two waits for its page from the disk
}


class Expected(NamedTuple):
    """What a request will ask: `top_k` rows a step and layer, for `output_tokens` steps, with a hot
    buffer of `buffer_rows` rows a layer; it may keep `local_bytes_max` bytes of rows (0: any)."""

    top_k: int
    output_tokens: int
    buffer_rows: int = 0
    local_bytes_max: int = 0


class Advice(NamedTuple):
    """`full` or on demand, and what each would cost, in seconds of moving rows."""

    full: bool
    reason: str
    full_s: float
    first_step_s: float
    step_s: float
    on_demand_s: float
    """Of the whole answer."""

    @property
    def first_step_ratio(self) -> float:
        return self.full_s / self.first_step_s


def miss_ratio(buffer_rows: int, top_k: int) -> float:
    """At the published curve; between its points, a straight line over the buffer's size."""
    size = buffer_rows / top_k
    if size < 1:  # a buffer smaller than one step's rows is none
        return 1.0
    for (low, at_low), (high, at_high) in zip(MISS_CURVE[1:], MISS_CURVE[2:], strict=False):
        if size <= high:
            return at_low + (at_high - at_low) * (size - low) / (high - low)
    return MISS_CURVE[-1][1]


def advise(layout: SparseLayout, tokens: int, expected: Expected, costs: Costs) -> Advice:
    """Raises BadInput for what no request asks."""
    if expected.top_k < 1 or expected.output_tokens < 1 or tokens < 1:
        raise BadInput(f"at least one row, one step and one token are wanted, not {expected}")
    rows = min(expected.top_k, tokens)
    row_bytes = layout.entry_bytes * layout.layers
    waits_s = layout.layers * costs.round_trip_s
    full_s = tokens * row_bytes / costs.full_bytes_per_s
    first_s = waits_s + rows * row_bytes / costs.gather_bytes_per_s
    miss = miss_ratio(expected.buffer_rows, rows)
    step_s = waits_s + miss * rows * row_bytes / costs.gather_bytes_per_s
    on_demand_s = first_s + (expected.output_tokens - 1) * step_s
    fits = not expected.local_bytes_max or tokens * row_bytes <= expected.local_bytes_max
    if not fits:
        full, reason = False, "the whole prefix does not fit into local memory"
    elif full_s < on_demand_s:
        full, reason = True, f"{expected.output_tokens} steps on demand would move rows for longer"
    else:
        full, reason = False, "the steps move rows for a shorter time than the whole prefix takes"
    return Advice(full, reason, full_s, first_s, step_s, on_demand_s)


def break_even_tokens(layout: SparseLayout, tokens: int, expected: Expected, costs: Costs) -> float:
    """Output tokens up to which on-demand moves rows for a shorter time; inf: always."""
    advice = advise(layout, tokens, expected, costs)
    if advice.step_s == 0:
        return math.inf
    return max(0.0, 1 + (advice.full_s - advice.first_step_s) / advice.step_s)
