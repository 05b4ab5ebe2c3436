"""From costs to one place: the cheapest, ties to the least booked work, or by temperature."""

from __future__ import annotations

import numpy as np

from moonpool.router.base import Hashes
from moonpool.router.load import Column

_SAME = 1e-9
_MASK = (1 << 64) - 1


def cheapest(costs: Column, booked_tokens: Column, keys: Hashes, salt: int) -> int:
    """Index of the lowest cost. Equal ones: least work ever booked, then by `salt`.

    The last step is a rendezvous: routers that know nothing of each other but the prefix's hash
    (`salt`) and the targets' names (`keys`, as `Fleet.keys` has them) send it to the same target.
    """
    least = float(costs.min())
    tied = np.flatnonzero(costs <= least + abs(least) * _SAME)
    if len(tied) > 1:
        work = booked_tokens[tied]
        tied = tied[work <= work.min()]
    if len(tied) == 1:
        return int(tied[0])
    return max(tied.tolist(), key=lambda i: rendezvous(salt, int(keys[i])))


def drawn(costs: Column, temperature: float, draw: float) -> int:
    """Index drawn with odds exp(-cost / ((max - min) x temperature)); `draw` is within [0, 1).

    Infinite costs are never drawn while a finite one is there.
    """
    finite = np.isfinite(costs)
    if not finite.any():
        return int(draw * len(costs))
    least, most = float(costs[finite].min()), float(costs[finite].max())
    spread = (most - least) or 1.0
    odds = np.where(
        finite, np.exp(-(np.where(finite, costs, most) - least) / spread / temperature), 0.0
    )
    reach = np.cumsum(odds)
    return int(min(np.searchsorted(reach, draw * reach[-1], side="right"), len(costs) - 1))


def rendezvous(salt: int, key: int) -> int:
    """A number that depends on both (the finalizer of splitmix64; Steele, 2014)."""
    z = (salt ^ (key * 0x9E3779B97F4A7C15)) & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)
