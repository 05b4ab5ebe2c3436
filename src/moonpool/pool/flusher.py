"""Reads that ride on no request are reported by a thread beside the calls."""

from __future__ import annotations

import threading
from collections.abc import Callable

from moonpool.pool.client_state import TouchLog


class TouchFlusher:
    """Calls `flush` when the oldest unreported read is `pause_s` old."""

    def __init__(
        self, touches: TouchLog, now: Callable[[], float], flush: Callable[[], None], pause_s: float
    ) -> None:
        self._touches = touches
        self._now = now
        self._flush = flush
        self._pause_s = pause_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._closing.wait(self._pause_s):
            if len(self._touches) and self._now() - self._touches.oldest >= self._pause_s:
                try:
                    self._flush()
                except Exception:
                    continue
