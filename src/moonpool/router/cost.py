"""What a decision costs on each target: the interface, and the facts it judges by.

A cost model is a pure function of columns, one place a target. The planner uses the same.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from moonpool.router.index import Weights
from moonpool.router.load import Column


class Facts(NamedTuple):
    """One request against every eligible target; all columns are float64, one place each."""

    prompt_tokens: int
    output_tokens: int
    priority: int
    block_size: Column
    device_tokens: Column
    """Prompt tokens held on the target's device."""
    host_tokens: Column
    """Beyond those, in its host memory."""
    disk_tokens: Column
    """Beyond those, on its disk."""
    pool_tokens: Column
    """Beyond those, what the pool or a peer can bring."""
    prefill_tokens: Column
    """Booked before and not yet computed."""
    decode_blocks: Column
    new_blocks: Column
    """Blocks of this request that no active one of the target uses."""
    requests: Column
    prefill_s: Column
    """Seconds a token of prompt costs there, learnt."""
    transfer_s: Column
    """Seconds a token costs when it comes from the pool or a peer, learnt."""
    decode_block_s: Column
    """Seconds a block held by active requests adds to a step there, learnt."""
    filled: Column
    """The part of its device cache that is held or booked; 1 where that is not known."""
    preferred: Column
    """Sum of the weights of the preferred labels that the target has."""

    @property
    def held_tokens(self) -> Column:
        """In the target's own cache, all tiers."""
        held: Column = self.device_tokens + self.host_tokens + self.disk_tokens
        return held

    @property
    def amounts(self) -> Weights:
        """What linear weights count: 1, tokens uncached, on device, host, disk, from the pool."""
        uncached = self.prompt_tokens - self.held_tokens - self.pool_tokens
        columns = (self.device_tokens, self.host_tokens, self.disk_tokens, self.pool_tokens)
        return np.column_stack([np.ones(len(uncached)), uncached, *columns])


class Cost(Protocol):
    """A cost model."""

    @property
    def counts_blocks_once(self) -> bool:
        """True when `new_blocks` is to leave out those that active requests use already."""
        ...

    @property
    def decode_block_s(self) -> float:
        """`Facts.decode_block_s` of a worker that has told nothing yet; 0: not learnt either."""
        ...

    @property
    def counts_tail(self) -> bool:
        """True when the block that a prompt's end fills in part counts among a request's blocks."""
        ...

    @property
    def computes_last_block(self) -> bool:
        """True when of a prompt that is held whole the last block is work again, as in engines.

        Linear costs (see `weights`) count it always.
        """
        ...

    def weights(self, facts: Facts) -> Weights | None:
        """f64[targets, 6] of `Facts.amounts`, from the load alone; None: not linear in them.

        Linear costs are summed up where the prompt is hashed and searched, in one native call.
        """
        ...

    def prefill_tokens(self, facts: Facts, chosen: int) -> float:
        """What a booking on the target at place `chosen` adds to its tokens to be computed."""
        ...

    def costs(self, facts: Facts) -> Column:
        """Lower is better. Costs of one call compare with each other only."""
        ...
