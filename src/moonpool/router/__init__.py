"""Which worker gets a request: the brain, pure, and what it is made of."""

from moonpool.router.base import (
    Cleared,
    Decision,
    Event,
    Removed,
    RouteRequest,
    Score,
    Stored,
    Target,
    Tier,
    Worker,
)
from moonpool.router.brain import Brain
from moonpool.router.config import BrainConfig
from moonpool.router.cost_dynamo import DynamoCost
from moonpool.router.cost_seconds import SecondsCost
from moonpool.router.hashing import prefix_hashes, prefix_seed

__all__ = [
    "Brain",
    "BrainConfig",
    "Cleared",
    "Decision",
    "DynamoCost",
    "Event",
    "Removed",
    "RouteRequest",
    "Score",
    "SecondsCost",
    "Stored",
    "Target",
    "Tier",
    "Worker",
    "prefix_hashes",
    "prefix_seed",
]
