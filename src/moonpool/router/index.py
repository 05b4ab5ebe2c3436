"""Which target holds which prefix: the native index as the brain uses it.

A place is a small number that the brain gives to a target. Place 0 is the pool, which serves any.
Each place has slots: its tiers, and what the router only guesses from its own decisions. Guesses
have no clock of their own: they are stored in the younger of two slots, and dropping a whole slot
when it has got old costs no more than dropping a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from moonpool import _core
from moonpool.router.base import Hashes, Tier

POOL_PLACE = 0
GUESS_SLOTS = (3, 4)
"""Of workers that publish no events."""
PREDICTION_SLOTS = (5, 6)
"""Of those that do, until their event comes."""

Depths = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Message = bytes | memoryview
"""As it came from an engine."""
WALKS_MAX: Final = 16
"""Accounts and renewed ranges that one publisher may send in a while: each takes tens of
milliseconds in a large index, however little the publisher has in it."""


class Found(NamedTuple):
    """What each place has of one prompt, cumulative by tier: i64[3, places]; and the pool."""

    held: Depths
    """Rows: on the device (or guessed), with host memory, with disk."""
    pool: int


class Applied(NamedTuple):
    """What one message of a worker changed; counts of blocks, unless named events."""

    events: int
    stored: int
    removed: int
    unknown: int
    """Removed or moved, and not known: harmless, but many of them mean lost events."""
    orphaned: int
    """They wait for a parent that no event has brought yet."""
    cleared_events: int
    ignored_events: int
    malformed_events: int
    mismatched_events: int
    """Of another block size than the worker's; not applied."""
    block_size: int
    groups: int
    """Bits of the KV groups that stored something."""
    renewed_ranges: int
    """Events after which the worker names anew what it holds in some ranges."""
    renewed: int
    """Blocks removed for that."""
    accounts: list[tuple[int, int, npt.NDArray[np.uint8]]]
    """A worker's own of what it holds: place, slot, and 1 for each of the 256 ranges of names that
    differ from what is known here."""
    walks: int = 0
    """Accounts and renewed ranges, each of which looks at the whole index; what was too many of
    them is among the ignored events."""


class PrefixIndex:
    """Prefix hash -> holders, in the core. Tolerates lost, repeated and reordered events.

    At most `bytes_max` bytes; above, what was used least recently goes.
    """

    def __init__(self, bytes_max: int = 1 << 28) -> None:
        self._core = _core.PrefixIndex(bytes_max)

    def __len__(self) -> int:
        """Different blocks held by anybody."""
        return len(self._core)

    def store(self, place: int, slot: int, hashes: Hashes | Sequence[int], parent: int = 0) -> None:
        """`place` now holds these blocks, one after the other, the first after `parent` (or 0)."""
        self._core.store(place, slot, column(hashes), parent)

    def remove(self, place: int, slot: int, hashes: Hashes | Sequence[int]) -> int:
        """No longer; blocks that it did not hold are passed over. How many it held."""
        return self._core.remove(place, slot, column(hashes))

    def drop(self, place: int) -> None:
        """It holds nothing any more, in any slot."""
        self._core.drop(place)

    def drop_at(self, place: int, slot: int) -> None:
        """It holds nothing any more in this slot."""
        self._core.drop(place, slot)

    def drop_slot(self, slot: int) -> None:
        """Nobody holds anything in this slot any more."""
        self._core.drop_slot(slot)

    def find(self, hashes: Hashes, places: Places) -> Found:
        """Leading blocks that each place has."""
        return Found(*self._core.find(hashes, places))

    def holders(self, hashes: Hashes) -> dict[int, int]:
        """Every place that has a leading block, and how many, over all tiers."""
        return self._core.holders(hashes)

    def route(
        self,
        tokens: npt.NDArray[np.uint32],
        block_size: int,
        seed: int,
        places: Places,
        weights: Weights,
    ) -> tuple[npt.NDArray[np.float64], Found, Hashes]:
        """Hash the prompt, find its holders and score every place, in one call.

        Costs are linear: `weights` f64[places, 6] are a fixed part and the cost of a token that is
        uncached, on the device, in host memory, on disk, and in the pool only. `Found` is in tokens
        here.
        """
        costs, held, pool, hashes = self._core.route(tokens, block_size, seed, places, weights)
        return costs, Found(held, pool), hashes

    def apply(
        self,
        message: Message,
        places: npt.NDArray[np.uint32],
        model_seed: int,
        block_size: int,
        walks_max: int = WALKS_MAX,
    ) -> Applied:
        """Apply one message as an engine publishes it; `places` by data-parallel rank. Of events
        that look at the whole index at most `walks_max` count.

        Raises ValueError when it is none; single events that do not fit are counted.
        """
        return Applied(*self._core.apply(message, places, model_seed, block_size, walks_max))

    def held(self, place: int, slot: int) -> int:
        """Blocks held in one slot."""
        return self._core.held(place, slot)

    def on_device(self, places: Places) -> Depths:
        """Blocks that each place holds on its device: i64[places]."""
        return self._core.held_each(places, Tier.DEVICE)

    @property
    def evicted(self) -> int:
        """Blocks that it had no room for, so that what is counted as held is too little."""
        return self._core.evicted

    def stat(self) -> dict[str, int]:
        """Blocks, entries, sets, memory_bytes, evicted, torn, orphans and aliases."""
        return self._core.stat()


def column(hashes: Hashes | Sequence[int]) -> Hashes:
    """As a contiguous uint64 array, not copied when it is one."""
    return np.ascontiguousarray(hashes, np.uint64)
