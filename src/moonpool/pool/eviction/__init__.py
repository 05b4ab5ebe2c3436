"""Eviction policies behind one interface; `POLICIES` has them by name. docs/cache.md."""

from collections.abc import Callable
from typing import Any, Final

from moonpool.core.errors import BadConfig, did_you_mean
from moonpool.pool.eviction.arc import Arc
from moonpool.pool.eviction.base import EvictionPolicy
from moonpool.pool.eviction.fifo import Fifo
from moonpool.pool.eviction.horizon import Horizon
from moonpool.pool.eviction.lfu import Lfu
from moonpool.pool.eviction.lru import Lru
from moonpool.pool.eviction.s3fifo import S3Fifo
from moonpool.pool.eviction.sieve import Sieve

POLICIES: Final[dict[str, Callable[[int], EvictionPolicy[Any]]]] = {
    "lru": Lru,
    "lfu": Lfu,
    "fifo": Fifo,
    "s3fifo": S3Fifo,
    "sieve": Sieve,
    "arc": Arc,
    "horizon": Horizon,
}


def policy_named(name: str, capacity: int) -> EvictionPolicy[Any]:
    """The policy of this name for so many keys. Raises BadConfig."""
    if name not in POLICIES:
        raise BadConfig(
            f"eviction policy {name!r} is not known; there are {', '.join(POLICIES)}."
            f"{did_you_mean(name, POLICIES)}"
        )
    return POLICIES[name](capacity)


__all__ = [
    "Arc",
    "EvictionPolicy",
    "Fifo",
    "Horizon",
    "Lfu",
    "Lru",
    "POLICIES",
    "S3Fifo",
    "Sieve",
    "policy_named",
]
