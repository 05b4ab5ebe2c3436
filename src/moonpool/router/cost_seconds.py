"""Moonpool's cost: seconds until the first token, and what the request takes from others.

    own    = uncached / rate + from the pool x its seconds a token
    wait   = booked and not yet prefilled / rate
    decode = blocks held by active requests x the seconds each adds to a step
    cost   = locality x own + wait + decode

`own` counts `locality` times: computing again what lies elsewhere costs its own time once, and then
it pushes other prefixes out of that worker's cache. With 1, caches copy each other (a token hit
ratio of 0.302 instead of 0.344 on the conversation trace); with 4 to 8 both hits and balance are
near the pooled optimum, because a backlog of the saved work still moves the request elsewhere.
"""

from __future__ import annotations

import msgspec
import numpy as np

from moonpool.router.cost import Facts
from moonpool.router.index import Weights
from moonpool.router.load import Column


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
        # The engine recomputes what would come slower from the pool.
        from_pool = np.minimum(facts.transfer_s, facts.prefill_s)
        fixed = facts.prefill_tokens * facts.prefill_s + facts.decode_blocks * facts.decode_block_s
        weights = np.empty((len(fixed), 6))
        weights[:, 0] = fixed
        weights[:, 1] = weight * facts.prefill_s
        weights[:, 2] = 0.0
        weights[:, 3] = weight * self.host_s
        weights[:, 4] = weight * self.disk_s
        weights[:, 5] = weight * from_pool
        return weights * np.exp(-np.tanh(facts.preferred))[:, None]

    def prefill_tokens(self, facts: Facts, chosen: int) -> float:
        held = facts.device_tokens[chosen] + facts.host_tokens[chosen] + facts.disk_tokens[chosen]
        return float(facts.prompt_tokens - held - facts.pool_tokens[chosen])

    def costs(self, facts: Facts) -> Column:
        costs: Column = (self.weights(facts) * facts.amounts).sum(axis=1)
        return costs
