"""Which target holds which prefix: the index as the brain uses it.

A place is a small number that the brain gives to a target. Place 0 is the pool, which serves any.
Each place has slots: its tiers, and what the router only guesses from its own decisions. Guesses
have no clock of their own: they are stored in the younger of two slots, and dropping a whole slot
when it has got old costs no more than dropping a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moonpool.router.base import Hashes, Tier

POOL_PLACE = 0
SLOTS_MAX = 8
Depths = npt.NDArray[np.int64]
_DEVICE_SLOTS = (Tier.DEVICE, 3, 4, 5, 6)
_SLOTS_UP_TO = {
    Tier.DEVICE: _DEVICE_SLOTS,
    Tier.HOST: (*_DEVICE_SLOTS, Tier.HOST),
    Tier.DISK: (*_DEVICE_SLOTS, Tier.HOST, Tier.DISK),
}


class Found(NamedTuple):
    """Leading blocks held, cumulative: on the device (or guessed), with host memory, with disk."""

    device: Depths
    host: Depths
    disk: Depths
    pool: int


class PrefixIndex:
    """Prefix hash -> holders. Tolerates lost, repeated and reordered events."""

    def __init__(self) -> None:
        self._holders: dict[int, set[tuple[int, int]]] = {}

    def __len__(self) -> int:
        """Different blocks held by anybody."""
        return len(self._holders)

    def store(self, place: int, slot: int, hashes: Hashes | Sequence[int], parent: int = 0) -> None:
        """`place` now holds these blocks, one after the other, the first after `parent` (or 0)."""
        for block in hashes:
            self._holders.setdefault(int(block), set()).add((place, slot))

    def remove(self, place: int, slot: int, hashes: Hashes | Sequence[int]) -> None:
        """No longer; blocks that it did not hold are passed over."""
        for block in hashes:
            self._discard(int(block), {(place, slot)})

    def drop(self, place: int) -> None:
        """It holds nothing any more, in any slot."""
        gone = {(place, slot) for slot in range(SLOTS_MAX)}
        for block in list(self._holders):
            self._discard(block, gone)

    def drop_slot(self, slot: int) -> None:
        """Nobody holds anything in this slot any more."""
        for block, held in list(self._holders.items()):
            self._discard(block, {holder for holder in held if holder[1] == slot})

    def find(self, hashes: Hashes, places: npt.NDArray[np.int64]) -> Found:
        """Depths of each place, from the first block on."""
        columns = [self._depths(hashes, places, tier) for tier in Tier]
        pool = int(self._depths(hashes, np.array([POOL_PLACE]), Tier.DISK)[0])
        return Found(columns[0], columns[1], columns[2], pool)

    def _discard(self, block: int, gone: set[tuple[int, int]]) -> None:
        held = self._holders.get(block)
        if held is not None:
            held -= gone
            if not held:
                del self._holders[block]

    def _depths(self, hashes: Hashes, places: npt.NDArray[np.int64], slowest: Tier) -> Depths:
        depths = np.zeros(len(places), np.int64)
        for i, place in enumerate(places.tolist()):
            wanted = {(place, slot) for slot in _SLOTS_UP_TO[slowest]}
            for block in hashes.tolist():
                if wanted.isdisjoint(self._holders.get(block, ())):
                    break
                depths[i] += 1
        return depths
