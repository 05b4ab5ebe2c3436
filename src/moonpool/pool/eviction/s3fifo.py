"""S3-FIFO (Yang et al., SOSP 2023): a small queue for what is new, a main one for what came back,
and ghosts of what left the small one unused."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from moonpool.pool.eviction.base import EvictionPolicy, Key, MayGo, refusals_max

SMALL_SHARE: Final = 0.1
USES_MAX: Final = 3
PROMOTED_ABOVE: Final = 1


class S3Fifo(EvictionPolicy[Key]):
    """Uses are counted up to 3. From the small queue a key used more than once moves to the main
    one, where each use buys another round. Ghosts: as many as the main queue's share."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.resize(capacity)
        self._small: OrderedDict[Key, int] = OrderedDict()
        self._main: OrderedDict[Key, int] = OrderedDict()
        self._ghosts: OrderedDict[Key, None] = OrderedDict()

    def resize(self, capacity: int) -> None:
        super().resize(capacity)
        self._small_size = max(int(capacity * SMALL_SHARE), 1)
        self._ghosts_max = max(capacity - self._small_size, 1)

    def add(self, key: Key, depth: int = 0) -> None:
        if key in self._ghosts:
            del self._ghosts[key]
            self._main[key] = 0
        else:
            self._small[key] = 0

    def touch(self, key: Key) -> None:
        queue = self._small if key in self._small else self._main
        queue[key] = min(queue[key] + 1, USES_MAX)

    def victim(self, may_go: MayGo[Key] | None = None, incoming: Key | None = None) -> Key | None:
        if len(self._small) >= self._small_size or not self._main:
            found = self._from_small(may_go)
            return found if found is not None else self._from_main(may_go)
        found = self._from_main(may_go)
        return found if found is not None else self._from_small(may_go)

    def remove(self, key: Key) -> None:
        del (self._small if key in self._small else self._main)[key]

    def __contains__(self, key: object) -> bool:
        return key in self._small or key in self._main

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def _from_small(self, may_go: MayGo[Key] | None) -> Key | None:
        kept: list[tuple[Key, int]] = []
        found: Key | None = None
        most = refusals_max(may_go)
        while self._small and found is None and len(kept) < most:
            key, uses = self._small.popitem(last=False)
            if uses > PROMOTED_ABOVE:
                self._main[key] = 0
            elif may_go is None or may_go(key):
                found = key
            else:
                kept.append((key, uses))
        for key, uses in reversed(kept):  # back to where they were
            self._small[key] = uses
            self._small.move_to_end(key, last=False)
        if found is not None:
            self._remember(found)
        return found

    def _from_main(self, may_go: MayGo[Key] | None) -> Key | None:
        left = refusals_max(may_go)
        for _ in range((USES_MAX + 1) * len(self._main)):
            key, uses = self._main.popitem(last=False)
            if uses == 0 and (may_go is None or may_go(key)):
                return key
            self._main[key] = max(uses - 1, 0)
            if uses == 0:
                left -= 1
                if left == 0:
                    break
        return None

    def _remember(self, key: Key) -> None:
        self._ghosts[key] = None
        while len(self._ghosts) > self._ghosts_max:
            self._ghosts.popitem(last=False)
