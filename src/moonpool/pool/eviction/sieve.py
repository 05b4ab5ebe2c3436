"""SIEVE (Zhang et al., NSDI 2024): a queue by arrival, a mark for the used, and a hand that passes
from old to new, clears marks and takes the first unmarked key."""

from __future__ import annotations

from typing import Generic

from moonpool.pool.eviction.base import EvictionPolicy, Key, MayGo, refusals_max


class _Place(Generic[Key]):
    __slots__ = ("key", "newer", "older", "used")

    def __init__(self, key: Key, older: _Place[Key] | None) -> None:
        self.key = key
        self.older = older
        self.newer: _Place[Key] | None = None
        self.used = False


class Sieve(EvictionPolicy[Key]):
    """The hand stays where the last key went, and waits at a key that may not go now."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._places: dict[Key, _Place[Key]] = {}
        self._oldest: _Place[Key] | None = None
        self._newest: _Place[Key] | None = None
        self._hand: _Place[Key] | None = None

    def add(self, key: Key, depth: int = 0) -> None:
        place = self._places[key] = _Place(key, self._newest)
        if self._newest is None:
            self._oldest = place
        else:
            self._newest.newer = place
        self._newest = place

    def touch(self, key: Key) -> None:
        self._places[key].used = True

    def victim(self, may_go: MayGo[Key] | None = None, incoming: Key | None = None) -> Key | None:
        place = self._hand or self._oldest
        waiting: _Place[Key] | None = None
        left = refusals_max(may_go)
        for _ in range(2 * len(self._places)):  # one turn clears every mark, the next must find
            assert place is not None, "a place without a queue"
            if place.used:
                place.used = False
            elif may_go is None or may_go(place.key):
                self._hand = waiting or place
                self.remove(place.key)
                return place.key
            else:
                waiting = waiting or place
                left -= 1
                if left == 0:
                    break
            place = place.newer or self._oldest
        return None

    def remove(self, key: Key) -> None:
        place = self._places.pop(key)
        if self._hand is place:
            self._hand = place.newer
        if place.older is None:
            self._oldest = place.newer
        else:
            place.older.newer = place.newer
        if place.newer is None:
            self._newest = place.older
        else:
            place.newer.older = place.older

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)
