"""Memory for blocks on their way: slabs of whole objects, reused, bounded, made when needed."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
SLAB_BYTES = 8 << 20  # of this size they stay in the caches between the two copies of a block


class Slabs:
    """At most `limit_bytes` of slabs of `slab_bytes`; at least one. Thread-safe."""

    def __init__(self, object_bytes_max: int, limit_bytes: int) -> None:
        self.slab_bytes = max(SLAB_BYTES, object_bytes_max)
        self.limit = max(1, limit_bytes // self.slab_bytes)
        self._made = 0
        self._free: list[U8] = []
        self._changed = threading.Condition()

    def objects(self, object_bytes: int) -> int:
        """How many objects of this size one slab takes."""
        return max(1, self.slab_bytes // object_bytes)

    def take(self, wait_s: float = 0.0) -> U8 | None:
        """A slab, to be given back; None when there is none within `wait_s`."""
        with self._changed:
            if not self._changed.wait_for(self._available, wait_s):
                return None
            if self._free:
                return self._free.pop()
            self._made += 1
        return np.empty(self.slab_bytes, np.uint8)

    def give(self, slab: U8) -> None:
        with self._changed:
            self._free.append(slab)
            self._changed.notify()

    @property
    def in_use(self) -> int:
        with self._changed:
            return self._made - len(self._free)

    def _available(self) -> bool:
        return bool(self._free) or self._made < self.limit
