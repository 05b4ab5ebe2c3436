"""How much memory a client's open views may hold."""

from __future__ import annotations

import threading

from moonpool.core.errors import PoolFull


class PinBudget:
    """At most `bytes_max` bytes are pinned at one time. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self._lock = threading.RLock()  # a forgotten view may be collected inside
        self.bytes = 0

    def take(self, size: int) -> None:
        """Raises PoolFull when there is not as much left."""
        with self._lock:
            if self.bytes + size > self._max:
                raise PoolFull(
                    f"open views hold {self.bytes} bytes, {size} more would pass "
                    f"pinned_bytes_max ({self._max}); close views or copy with get_into"
                )
            self.bytes += size

    def give_back(self, size: int) -> None:
        with self._lock:
            self.bytes -= size
