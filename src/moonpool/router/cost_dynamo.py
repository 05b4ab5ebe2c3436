"""Dynamo's formula (its router of release 1.6, NVIDIA), with its names and defaults: a baseline.

Costs are in blocks. Of two equal costs Dynamo draws one at random; here the brain breaks ties.
"""

from __future__ import annotations

import msgspec
import numpy as np

from moonpool.router.cost import Facts
from moonpool.router.index import Weights
from moonpool.router.load import Column


class DynamoCost(msgspec.Struct, frozen=True, kw_only=True):
    """Prefill work left after the credit for cached blocks, and the decode blocks held."""

    overlap_score_credit: float = 1.0
    overlap_score_credit_decay: float = 0.0
    host_cache_hit_weight: float = 0.75
    disk_cache_hit_weight: float = 0.25
    shared_cache_multiplier: float = 0.0
    prefill_load_scale: float = 1.0
    decode_active_request_weight: float = 0.0
    track_prefill_tokens: bool = True
    router_assume_kv_reuse: bool = True

    @property
    def counts_blocks_once(self) -> bool:
        return self.router_assume_kv_reuse

    @property
    def decode_block_s(self) -> float:
        return 0.0  # blocks count, whatever time they take

    @property
    def counts_tail(self) -> bool:
        return False  # it knows blocks by their hashes, and a part of one has none

    @property
    def computes_last_block(self) -> bool:
        return False

    def weights(self, facts: Facts) -> Weights | None:
        return None  # the credit is cut off at the work there is

    def prefill_tokens(self, facts: Facts, chosen: int) -> float:
        """Less the hits at their weights, the device's at 1 whatever its credit."""
        spared = facts.device_tokens + self._spared_below(facts)
        return max(0.0, float(facts.prompt_tokens - spared[chosen]))

    def costs(self, facts: Facts) -> Column:
        size = facts.block_size
        request_blocks = np.maximum(1.0, np.ceil(facts.prompt_tokens / size))
        active = facts.prefill_tokens
        least = float(active.min(initial=np.inf)) if len(active) else 0.0
        excess = np.maximum(0.0, active - least) / size / request_blocks
        on_device = self.overlap_score_credit / (1.0 + self.overlap_score_credit_decay * excess)
        credit = (on_device * facts.device_tokens + self._spared_below(facts)) / size
        raw = ((active if self.track_prefill_tokens else 0.0) + facts.prompt_tokens) / size
        cost: Column = (
            self.prefill_load_scale * np.maximum(0.0, raw - credit)
            + facts.decode_blocks
            + facts.new_blocks
            + self.decode_active_request_weight * facts.requests
        )
        return cost * np.exp(-np.tanh(facts.preferred))

    def _spared_below(self, facts: Facts) -> Column:
        """Tokens of prompt that hits below the device spare."""
        spared: Column = (
            self.host_cache_hit_weight * facts.host_tokens
            + self.disk_cache_hit_weight * facts.disk_tokens
            + self.shared_cache_multiplier * facts.pool_tokens
        )
        return spared
