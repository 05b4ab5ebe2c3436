"""The last keys that eviction took: a later miss says so. Digests of this process only, bounded."""

from __future__ import annotations

from moonpool.pool.catalog.base import U32, Index

REMEMBERED_MAX = 65_536


class Evicted:
    """Forgets a key that was removed on purpose, and the older half beyond the bound."""

    def __init__(self) -> None:
        self._newer: dict[int, None] = {}
        self._older: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def add(self, blob: bytes, ends: U32) -> None:
        digests = _digests(blob, ends)
        for start in range(0, len(digests), REMEMBERED_MAX // 2):
            part = digests[start : start + REMEMBERED_MAX // 2]
            if len(self._newer) + len(part) > REMEMBERED_MAX // 2:
                self._newer, self._older = {}, self._newer
            self._newer.update(dict.fromkeys(part))

    def forget(self, blob: bytes, ends: U32) -> None:
        for digest in _digests(blob, ends):
            self._newer.pop(digest, None)
            self._older.pop(digest, None)

    def among(self, blob: bytes, ends: U32, places: Index) -> list[int]:
        """Those of these places in a batch whose key was evicted lately."""
        stops, newer, older = ends.tolist(), self._newer, self._older
        return [
            i
            for i in places.tolist()
            if (digest := hash(blob[(stops[i - 1] if i else 0) : stops[i]])) in newer
            or digest in older
        ]


def _digests(blob: bytes, ends: U32) -> list[int]:
    stops = ends.tolist()
    return [hash(blob[a:b]) for a, b in zip([0, *stops], stops, strict=False)]
