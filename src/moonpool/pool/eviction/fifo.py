"""First in, first out: uses count for nothing."""

from __future__ import annotations

from moonpool.pool.eviction.base import Key
from moonpool.pool.eviction.lru import Lru


class Fifo(Lru[Key]):
    """The order is that of arrival."""

    def touch(self, key: Key) -> None:
        pass
