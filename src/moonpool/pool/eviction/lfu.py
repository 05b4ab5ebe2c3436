"""Least frequently used first, the least recently used of equals. Counts die with their keys."""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain

from moonpool.pool.eviction.base import EvictionPolicy, Key, MayGo, first_that_may


class Lfu(EvictionPolicy[Key]):
    """One list by recency for each count, so each step is O(1) but for the search of a victim."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._uses: dict[Key, int] = {}
        self._lists: dict[int, OrderedDict[Key, None]] = {}

    def add(self, key: Key, depth: int = 0) -> None:
        self._put(key, 1)

    def touch(self, key: Key) -> None:
        self._put(key, self._take(key) + 1)

    def victim(self, may_go: MayGo[Key] | None = None, incoming: Key | None = None) -> Key | None:
        fewest_first = chain.from_iterable(self._lists[uses] for uses in sorted(self._lists))
        key = first_that_may(fewest_first, may_go)
        if key is not None:
            self._take(key)
        return key

    def remove(self, key: Key) -> None:
        self._take(key)

    def __contains__(self, key: object) -> bool:
        return key in self._uses

    def __len__(self) -> int:
        return len(self._uses)

    def _put(self, key: Key, uses: int) -> None:
        self._uses[key] = uses
        self._lists.setdefault(uses, OrderedDict())[key] = None

    def _take(self, key: Key) -> int:
        uses = self._uses.pop(key)
        same = self._lists[uses]
        del same[key]
        if not same:
            del self._lists[uses]
        return uses
