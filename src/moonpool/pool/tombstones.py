"""Removes that missed a replica: remembered on live nodes until the node that missed them reported.

A tombstone names a key by digest and the version that is dead. A new master collects them from its
nodes, so that a removed object never comes back with a node that was away.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

DIGEST_BYTES = 16


class Tomb(NamedTuple):
    digest: bytes
    term: int
    sequence: int


@dataclass(slots=True)
class _Grave:
    until: float
    missing: set[int] | None  # segments that have not reported since; None: not known


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()[:DIGEST_BYTES]


class Tombstones:
    """At most `tombstones_max`; the oldest is forgotten first."""

    def __init__(self, tombstones_max: int, keep_s: float) -> None:
        self._max = tombstones_max
        self._keep_s = keep_s
        self._graves: OrderedDict[Tomb, _Grave] = OrderedDict()
        self.dropped = 0  # forgotten for want of room

    def __len__(self) -> int:
        return len(self._graves)

    def __contains__(self, tomb: object) -> bool:
        return tomb in self._graves

    def all(self) -> list[Tomb]:
        return list(self._graves)

    def sequences(self) -> list[int]:
        return [tomb.sequence for tomb in self._graves]

    def add(self, tomb: Tomb, missing: set[int] | None, now: float) -> bool:
        """True when it is new. `missing`: the segments that still hold a replica."""
        grave = self._graves.get(tomb)
        if grave is not None:
            if grave.missing is not None and missing is not None:
                grave.missing |= missing
            return False
        self._graves[tomb] = _Grave(now + self._keep_s, None if missing is None else set(missing))
        if len(self._graves) > self._max:
            self._graves.popitem(last=False)
            self.dropped += 1
        return True

    def reported(self, segment: int) -> list[Tomb]:
        """This segment's inventory was taken in: tombs nobody else needs are forgotten."""
        gone = []
        for tomb, grave in list(self._graves.items()):
            if grave.missing is not None and segment in grave.missing:
                grave.missing.remove(segment)
                if not grave.missing:
                    del self._graves[tomb]
                    gone.append(tomb)
        return gone

    def expire(self, now: float) -> list[Tomb]:
        """Tombs older than any node may be away."""
        gone = []
        for tomb, grave in list(self._graves.items()):
            if grave.until > now:
                break
            del self._graves[tomb]
            gone.append(tomb)
        return gone
