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
    tomb: Tomb
    until: float
    missing: set[int] | None  # segments that have not reported since; None: not known


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()[:DIGEST_BYTES]


class Tombstones:
    """At most `tombstones_max`; the oldest is forgotten first. A tombstone is good for its
    version and all older ones of the key: whoever missed the removal may have missed more."""

    def __init__(self, tombstones_max: int, keep_s: float) -> None:
        self.tombs_max = tombstones_max
        self._keep_s = keep_s
        self._graves: OrderedDict[bytes, _Grave] = OrderedDict()
        self.dropped = 0  # forgotten for want of room

    def __len__(self) -> int:
        return len(self._graves)

    def covers(self, key: bytes, term: int, sequence: int) -> bool:
        """This version of `key` was removed."""
        grave = self._graves.get(digest(key))
        return grave is not None and (term, sequence) <= grave.tomb[1:]

    def all(self) -> list[Tomb]:
        return [grave.tomb for grave in self._graves.values()]

    def add(self, tomb: Tomb, missing: set[int] | None, now: float) -> bool:
        """True when it says something new. `missing`: the segments that still hold a replica."""
        grave = self._graves.get(tomb.digest)
        until = now + self._keep_s
        if grave is None:
            self._graves[tomb.digest] = _Grave(tomb, until, None if missing is None else {*missing})
            if len(self._graves) > self.tombs_max:
                self._graves.popitem(last=False)
                self.dropped += 1
            return True
        if missing is None:
            grave.missing = None
        elif grave.missing is not None:
            grave.missing |= missing
        if tomb[1:] <= grave.tomb[1:]:
            return False
        grave.tomb, grave.until = tomb, until
        self._graves.move_to_end(tomb.digest)
        return True

    def reported(self, segment: int) -> list[Tomb]:
        """This segment's inventory was taken in: tombs nobody else needs are forgotten."""
        gone = []
        for grave in list(self._graves.values()):
            if grave.missing is not None and segment in grave.missing:
                grave.missing.remove(segment)
                if not grave.missing:
                    del self._graves[grave.tomb.digest]
                    gone.append(grave.tomb)
        return gone

    def expire(self, now: float) -> list[Tomb]:
        """Tombs older than any node may be away."""
        gone = []
        for grave in list(self._graves.values()):
            if grave.until > now:
                break
            del self._graves[grave.tomb.digest]
            gone.append(grave.tomb)
        return gone
