"""The connector's way to the pool: opened in the background, left alone while it does not answer.

Nothing here blocks an engine: `pool()` answers at once, with None while there is no pool. An outage
is logged once by a process when it begins and once when it is over, however many links it has.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import ClassVar

from moonpool.core.clock import Clock, SystemClock
from moonpool.core.errors import BadInput, MoonpoolError
from moonpool.pool.pool import Pool


class PoolLink:
    """`open_pool` makes a client, or raises. After `failed` the pool is None for `retry_s`, then
    for twice as long and so on up to `retry_max_s`; `answered` ends that."""

    _told: ClassVar[set[str]] = set()  # addresses whose outage this process has logged

    def __init__(
        self,
        open_pool: Callable[[], Pool],
        *,
        where: str,
        retry_s: float,
        retry_max_s: float,
        log: logging.Logger,
        clock: Clock | None = None,
    ) -> None:
        self._open_pool = open_pool
        self._where = where
        self._retry_s, self._retry_max_s = retry_s, retry_max_s
        self._log = log
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self._wait_s = retry_s
        self._away_until = 0.0
        self._outage = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._connect, name="moonpool-link", daemon=True)

    def start(self, wait_s: float = 0.0) -> None:
        """Begin to connect; wait at most `wait_s` for it, so that a pool that is there is used from
        the first request on."""
        self._thread.start()
        self._thread.join(wait_s)

    def pool(self) -> Pool | None:
        """The pool, or None: not reached yet, or left alone for now."""
        with self._lock:
            return None if self._clock.monotonic() < self._away_until else self._pool

    @property
    def away(self) -> bool:
        return self.pool() is None

    def answered(self) -> None:
        if not self._outage:
            return
        with self._lock:
            over, self._outage = self._outage, False
            self._wait_s, self._away_until = self._retry_s, 0.0
        if over and self._where in self._told:
            self._told.discard(self._where)
            self._log.info("Moonpool: the pool at %s answers again", self._where)

    def failed(self, why: object) -> None:
        with self._lock:
            first, self._outage = not self._outage, True
            self._away_until = self._clock.monotonic() + self._wait_s
            self._wait_s = min(2 * self._wait_s, self._retry_max_s)
        if first and self._where not in self._told:
            self._told.add(self._where)
            self._say(why)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(self._retry_max_s)
        self._told.discard(self._where)
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _connect(self) -> None:
        wait_s = self._retry_s
        while not self._closing.is_set():
            try:
                pool = self._open_pool()
            except BadInput as error:
                self._log.error("Moonpool: the pool is not used: %s", error)
                return
            except MoonpoolError as error:
                self.failed(error)
                self._closing.wait(wait_s)
                wait_s = min(2 * wait_s, self._retry_max_s)
                continue
            with self._lock:
                self._pool, self._away_until = pool, 0.0
            self.answered()
            return

    def _say(self, why: object) -> None:
        self._log.warning(
            "Moonpool: no pool at %s (%s); the engine goes on without it and tries again every "
            "%.1f to %.1f s",
            self._where,
            why,
            self._retry_s,
            self._retry_max_s,
        )
