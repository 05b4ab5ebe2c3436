"""Least recently used first."""

from __future__ import annotations

from collections import OrderedDict

from moonpool.pool.eviction.base import EvictionPolicy, Key, MayGo, first_that_may


class Lru(EvictionPolicy[Key]):
    """The order is that of the last uses."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._keys: OrderedDict[Key, None] = OrderedDict()

    def add(self, key: Key, depth: int = 0) -> None:
        self._keys[key] = None

    def touch(self, key: Key) -> None:
        self._keys.move_to_end(key)

    def victim(self, may_go: MayGo[Key] | None = None, incoming: Key | None = None) -> Key | None:
        key = first_that_may(self._keys, may_go)
        if key is not None:
            del self._keys[key]
        return key

    def remove(self, key: Key) -> None:
        del self._keys[key]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)
