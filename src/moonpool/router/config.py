"""How the brain decides: one frozen struct, the same for the service and the planner."""

from __future__ import annotations

from typing import Literal

import msgspec

from moonpool.core.errors import BadConfig
from moonpool.router.cost import Cost
from moonpool.router.cost_seconds import SecondsCost

Affinity = Literal["off", "soft", "hard"]


class BrainConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Raises BadConfig on values that make no sense. A limit of 0 is none."""

    cost: Cost = SecondsCost()
    temperature: float = 0.0
    """0: the cheapest. Else the odds of each fall by e with every temperature x (max - min)."""
    lease_s: float = 300.0
    """A booking that nobody reports on ends after it."""
    guess_ttl_s: float = 120.0
    """Blocks of own decisions count as held so long where no event confirms them."""
    predicted_ttl_s: float = 5.0
    """The same for a worker that publishes events: until its own event comes."""
    affinity: Affinity = "soft"
    session_ttl_s: float = 600.0
    sessions_max: int = 65_536
    session_slack: float = 1.5
    """Soft affinity holds while the session's worker costs at most so many times the cheapest."""
    busy_prefill_tokens: int = 0
    busy_decode_blocks: int = 0
    busy_requests: int = 0
    retry_after_s: float = 1.0
    remote_prefill_tokens: int = 2048
    """Prompts with fewer uncached tokens are prefilled on their decode worker."""
    remote_prefill_ratio: float = 0.7
    """So are those of which less than this share is uncached, where that is below 4x the above."""
    prefill_s: float = 1e-4
    """Seconds a prompt token costs until a worker's own rate is learnt."""
    transfer_s: float = 5e-6
    """Seconds a token costs from the pool or a peer until it is learnt."""
    peers_transfer: bool = False
    """Workers can fetch each other's device cache."""
    silent_after: int = 64
    """Decisions for a worker that should publish events, and does not, until that is a problem."""
    index_bytes_max: int = 1 << 28

    def __post_init__(self) -> None:
        for name in ("lease_s", "guess_ttl_s", "session_ttl_s", "prefill_s", "retry_after_s"):
            if getattr(self, name) <= 0:
                raise BadConfig(f"router: {name} = {getattr(self, name)} must be positive")
        if self.temperature < 0 or self.session_slack < 1:
            raise BadConfig("router: temperature is at least 0, session_slack at least 1")
