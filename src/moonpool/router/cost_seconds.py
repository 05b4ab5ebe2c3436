"""Moonpool's cost: seconds until the first token, and what the request takes from others.

    own    = uncached x (its seconds a token + (locality - 1) x those common to all workers asked)
    pool   = from the pool x locality x its seconds a token
    wait   = booked and not yet prefilled x its seconds a token
    decode = blocks held by active requests x the seconds each adds to a step
    fill   = prompt x locality x common seconds a token x filled part of the device cache
    cost   = own + pool + wait + decode + fill

What is brought in counts `locality` times: computing again what lies elsewhere costs its own time
once, and then it pushes other prefixes out of that worker's cache. With 1, caches copy each other
(a token hit ratio of 0.302 instead of 0.344 on the conversation trace); with 4 to 8 both hits and
balance are near the pooled optimum, because a backlog of the saved work still moves the request
elsewhere. What was pushed out is computed again by anyone, so it counts at the common rate: at the
worker's own a difference of rates would count `locality` times, and one of a sixth outweigh a
prompt that waits.

While caches fill, a new prefix goes to the emptier one as long as the queue there is no longer than
the prompt: what fits into all caches together then fits into each. Room does not make copies any
cheaper (`locality` 1 where there is some gave 0.333): what they take, later prefixes lack. Full
caches all cost the same, and so does one whose fill is not known.

Rates are learnt from few prompts, on machines that others use, too, and the rate of a worker that
nobody asks stays what it was. So a rate within `RATE_KNOWN_TO` of the common one counts as that.
Otherwise whoever seems the fastest gets every new prefix while the caches of the others lie idle.
A worker that is slower by less shows in its wait.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from moonpool.router.cost import Facts
from moonpool.router.index import Weights
from moonpool.router.learner import middle
from moonpool.router.load import Column

RATE_KNOWN_TO: Final = 2.0
"""A learnt rate may be wrong by this factor."""


class SecondsCost(msgspec.Struct, frozen=True, kw_only=True):
    """See the file's head; a priority of p divides `locality` by 1 + p (its own wait matters)."""

    locality: float = 8.0
    decode_block_s: float = 2e-6
    """Seconds that one block held by active requests adds to a step of its target, until a worker's
    own are learnt; 0: none, and none is learnt."""
    host_s: float = 2e-6
    """Seconds a token costs from the worker's own host memory; not learnt."""
    disk_s: float = 2e-5
    """Seconds a token costs from the worker's own disk; not learnt."""

    @property
    def counts_blocks_once(self) -> bool:
        return False

    @property
    def counts_tail(self) -> bool:
        return True

    @property
    def computes_last_block(self) -> bool:
        return True

    def weights(self, facts: Facts) -> Weights:
        weight = max(1.0, self.locality / (1.0 + max(0, facts.priority)))
        common_s, prefill_s = _rates(facts.prefill_s)
        _, transfer_s = _rates(facts.transfer_s)
        fixed = facts.prefill_tokens * prefill_s + facts.decode_blocks * facts.decode_block_s
        if facts.filled.min(initial=1.0) < 1.0:
            fixed += weight * facts.prompt_tokens * common_s * facts.filled
        weights = np.empty((len(fixed), 6))
        weights[:, 0] = fixed
        weights[:, 1] = prefill_s + (weight - 1.0) * common_s
        weights[:, 2] = 0.0
        weights[:, 3] = weight * self.host_s
        weights[:, 4] = weight * self.disk_s
        # The engine recomputes what would come slower from the pool.
        weights[:, 5] = weight * np.minimum(transfer_s, prefill_s)
        return weights * np.exp(-np.tanh(facts.preferred))[:, None]

    def prefill_tokens(self, facts: Facts, chosen: int) -> float:
        held = facts.device_tokens[chosen] + facts.host_tokens[chosen] + facts.disk_tokens[chosen]
        return float(facts.prompt_tokens - held - facts.pool_tokens[chosen])

    def costs(self, facts: Facts) -> Column:
        costs: Column = (self.weights(facts) * facts.amounts).sum(axis=1)
        return costs


def _rates(learnt_s: Column) -> tuple[float, Column | float]:
    """The common seconds a token (the median), and each worker's own or, near to it, that."""
    if not len(learnt_s):
        return 0.0, learnt_s
    in_order = np.sort(learnt_s)
    common = middle(in_order)
    least, most = common / RATE_KNOWN_TO, common * RATE_KNOWN_TO
    if least <= in_order[0] and in_order[-1] <= most:
        return common, common
    return common, np.where((least <= learnt_s) & (learnt_s <= most), common, learnt_s)
