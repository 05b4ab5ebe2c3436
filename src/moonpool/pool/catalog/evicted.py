"""The last keys that eviction took: a later miss says so. Digests of this process only, bounded."""

from __future__ import annotations

from collections import OrderedDict

from moonpool.pool.catalog.base import U32, Index

REMEMBERED_MAX = 65_536


class Evicted:
    """Forgets a key that was removed on purpose, and the oldest beyond the bound."""

    def __init__(self) -> None:
        self._digests: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, blob: bytes, ends: U32) -> None:
        digests = self._digests
        for digest in _digests(blob, ends):
            digests[digest] = None
        while len(digests) > REMEMBERED_MAX:
            digests.popitem(last=False)

    def forget(self, blob: bytes, ends: U32) -> None:
        for digest in _digests(blob, ends):
            self._digests.pop(digest, None)

    def among(self, blob: bytes, ends: U32, places: Index) -> list[int]:
        """Those of these places in a batch whose key was evicted lately."""
        stops = ends.tolist()
        return [
            i
            for i in places.tolist()
            if hash(blob[(stops[i - 1] if i else 0) : stops[i]]) in self._digests
        ]


def _digests(blob: bytes, ends: U32) -> list[int]:
    stops = ends.tolist()
    return [hash(blob[a:b]) for a, b in zip([0, *stops], stops, strict=False)]
