"""ARC (Megiddo and Modha, FAST 2003): recency and frequency, balanced by what their ghosts show."""

from __future__ import annotations

from collections import OrderedDict

from moonpool.pool.eviction.base import EvictionPolicy, Key, MayGo, first_that_may

_List = OrderedDict[Key, None]


class Arc(EvictionPolicy[Key]):
    """Two lists by recency, of keys seen once and seen again (T1 and T2 in the paper), and a list
    of ghosts for each (B1, B2). A return from the ghosts moves the aim for the size of `once`."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._once: _List[Key] = OrderedDict()
        self._again: _List[Key] = OrderedDict()
        self._once_ghosts: _List[Key] = OrderedDict()
        self._again_ghosts: _List[Key] = OrderedDict()
        self._aim = 0.0
        self._adapted: Key | None = None

    def add(self, key: Key, depth: int = 0) -> None:
        if key in self._once_ghosts or key in self._again_ghosts:
            self._adapt(key)
            self._once_ghosts.pop(key, None)
            self._again_ghosts.pop(key, None)
            self._again[key] = None
        else:
            self._once[key] = None
        self._adapted = None
        self._forget()

    def touch(self, key: Key) -> None:
        self._once.pop(key, None)
        self._again[key] = None
        self._again.move_to_end(key)

    def victim(self, may_go: MayGo[Key] | None = None, incoming: Key | None = None) -> Key | None:
        if incoming is not None:
            self._adapt(incoming)
        size = len(self._once)
        from_once = size > self._aim or (size == self._aim and incoming in self._again_ghosts)
        forgotten = size >= self.capacity and incoming not in self._once_ghosts
        once = (self._once, None if forgotten else self._once_ghosts)
        again = (self._again, self._again_ghosts)
        for keys, ghosts in (once, again) if from_once else (again, once):
            key = first_that_may(keys, may_go)
            if key is not None:
                del keys[key]
                if ghosts is not None:
                    ghosts[key] = None
                return key
        return None

    def remove(self, key: Key) -> None:
        del (self._once if key in self._once else self._again)[key]

    def __contains__(self, key: object) -> bool:
        return key in self._once or key in self._again

    def __len__(self) -> int:
        return len(self._once) + len(self._again)

    def _adapt(self, key: Key) -> None:
        """Once for each return, though both its victim and its arrival ask."""
        if key == self._adapted:
            return
        once, again = len(self._once_ghosts), len(self._again_ghosts)
        if key in self._once_ghosts:
            self._aim = min(self._aim + max(again / once, 1), self.capacity)
            self._adapted = key
        elif key in self._again_ghosts:
            self._aim = max(self._aim - max(once / again, 1), 0)
            self._adapted = key

    def _forget(self) -> None:
        while self._once_ghosts and len(self._once) + len(self._once_ghosts) > self.capacity:
            self._once_ghosts.popitem(last=False)
        ghosts = len(self._once_ghosts) + len(self._again_ghosts)
        while self._again_ghosts and len(self) + ghosts > 2 * self.capacity:
            self._again_ghosts.popitem(last=False)
            ghosts -= 1
