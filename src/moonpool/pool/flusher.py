"""What a client owes the pool beside its calls, done by a thread."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable


class Flusher:
    """Calls `flush`, a method, every `pause_s`. It does not keep the method's owner alive, and
    ends with it."""

    def __init__(self, flush: Callable[[], None], pause_s: float) -> None:
        self._flush = weakref.WeakMethod(flush)
        self._pause_s = pause_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._closing.wait(self._pause_s):
            if not self._flushed():
                return

    def _flushed(self) -> bool:
        flush = self._flush()
        if flush is None:
            return False
        try:
            flush()
        except Exception:  # the next time may do better, and nobody is here to be told
            return True
        return True
