"""Runs a striper on real time. Whoever brings news does the work: the thread that submits, the one
that hears of an end. A thread of its own only wakes for what is due by the clock alone.
"""

import math
import threading
import time

from moonpool.transfer.base import Transfer
from moonpool.transfer.rails.base import RailLimits
from moonpool.transfer.rails.scheduler import Ranks
from moonpool.transfer.rails.striped import StripedOp, Striper


class RailRunner:
    """Thread-safe. The thread starts with the first op."""

    def __init__(self, seed: int, limits: RailLimits | None = None) -> None:
        self.striper = Striper(time.monotonic, seed, limits, wake=self._kick, name="tcp")
        self._turn = threading.Lock()
        self._news = False
        self._timer = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wake_s = math.inf
        self._closed = False

    def submit(self, peer: str, transfer: Transfer, ranks: Ranks = None) -> StripedOp:
        """See Striper.submit."""
        with self._timer:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="moonpool-rails", daemon=True
                )
                self._thread.start()
        return self.striper.submit(peer, transfer, ranks)

    def close(self) -> None:
        """After all peers were forgotten: ends the thread."""
        with self._timer:
            self._closed = True
            thread, self._thread = self._thread, None
            self._timer.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _kick(self) -> None:
        """Pumps, unless another thread does: that one looks again before it goes."""
        self._news = True
        while self._news and self._turn.acquire(blocking=False):
            try:
                self._news = False
                # In this turn, or a later turn's word could be overwritten by this one's.
                self._wake_by(self.striper.pump())
            finally:
                self._turn.release()

    def _wake_by(self, wake_s: float) -> None:
        with self._timer:
            earlier = wake_s < self._wake_s
            self._wake_s = wake_s
            if earlier:
                self._timer.notify()

    def _run(self) -> None:
        while True:
            with self._timer:
                while not self._closed and (left_s := self._wake_s - time.monotonic()) > 0:
                    self._timer.wait(None if left_s == math.inf else left_s)
                if self._closed:
                    return
                self._wake_s = math.inf
            self._kick()
