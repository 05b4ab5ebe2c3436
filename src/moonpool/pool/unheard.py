"""Keys whose value went by itself (evicted, demoted, moved) on a segment that was away meanwhile.

It may come back with its node, and be worth having, as long as nothing newer was put under its key.
From then on it is dead, and a tombstone has to say so: this is who needs one. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class Unheard:
    """At most `keys_max` keys; the oldest is forgotten first."""

    def __init__(self, keys_max: int) -> None:
        self._max = keys_max
        self._segments: OrderedDict[bytes, set[int]] = OrderedDict()
        self._keys: dict[int, set[bytes]] = {}  # the same, by segment
        self.dropped = 0  # forgotten for want of room

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: int, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._segments.setdefault(key, set()).add(segment)
            self._keys.setdefault(segment, set()).add(key)
            if len(self._segments) > self._max:
                self.take(next(iter(self._segments)))
                self.dropped += 1

    def take(self, key: bytes) -> set[int]:
        """The segments that may bring back an older value; told once."""
        segments = self._segments.pop(key, set())
        for segment in segments:
            self._keys[segment].discard(key)
        return segments

    def reported(self, segment: int) -> None:
        """What this segment has is known again, or nobody waits for it any longer."""
        for key in self._keys.pop(segment, ()):
            self._segments[key].discard(segment)
            if not self._segments[key]:
                del self._segments[key]
