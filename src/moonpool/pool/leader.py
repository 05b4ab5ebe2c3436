"""Where the master is: an address as it was given, or the leader that etcd names.

A thread of its own watches who leads, so that a call that waits for a master that has stopped is
sent to the next one instead of waiting for its deadline.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from moonpool.core.address import is_etcd
from moonpool.core.clock import Clock, Deadline, SystemClock
from moonpool.core.errors import BadFrame, DeadlineExceeded, MoonpoolError, Unreachable
from moonpool.pool.ha_registry import Registry, record_of

WATCH_S = 30.0  # a watch that heard nothing for so long is begun anew
AGAIN_S = 0.2
ASKED_S = 2.0  # etcd has so long to say who leads, or what the caller has left


class LeaderFinder:
    """Thread-safe. `changed(address)` is called in the watching thread when another leads."""

    def __init__(
        self,
        master: str,
        changed: Callable[[str], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._address = "" if is_etcd(master) else master  # the last that was known to lead
        self._doubted = is_etcd(master)
        self._registry = Registry(master, timeout_s=ASKED_S, try_s=0.5) if is_etcd(master) else None
        self._watching: threading.Thread | None = None
        self._changed = changed
        self._over = threading.Event()
        self._lock = threading.Lock()

    @property
    def fixed(self) -> bool:
        """The address was given: nobody is asked."""
        return self._registry is None

    def address(self, deadline: Deadline | None = None) -> str:
        """Who leads, as far as known; asked of etcd when there is doubt. While etcd is away, who
        led last: it may lead still. Raises Unreachable, DeadlineExceeded, Closed."""
        if self._registry is None or not self._doubted:
            return self._address
        left: float | None = None
        if deadline is not None:
            left = deadline.check(self._clock.monotonic(), "ask etcd who leads")
        try:
            seen = self._registry.read(left)
        except (Unreachable, DeadlineExceeded, BadFrame):
            if not self._address:
                raise
            return self._address
        if seen.leader is None:
            raise Unreachable("no master has been elected yet; is one running with --ha?")
        self._address, self._doubted = seen.leader.address, False
        self._watch()
        return self._address

    def wrong(self, address: str) -> None:
        """Nobody leads there: ask again before the next attempt."""
        if self._registry is not None and self._address == address:
            self._doubted = True

    def close(self) -> None:
        self._over.set()
        if self._registry is not None:
            self._registry.close()

    def _watch(self) -> None:
        with self._lock:
            if self._watching is None and self._changed is not None:
                self._watching = threading.Thread(
                    target=self._follow, name="moonpool-leader", daemon=True
                )
                self._watching.start()

    def _follow(self) -> None:
        assert self._registry is not None
        client = self._registry.client
        while not self._over.is_set():
            try:
                seen = self._registry.read()
                if seen.leader is not None:
                    self._led_by(seen.leader.address)
                # From there on: what comes between the read and the watch is told as well.
                after = seen.leader_revision + 1 if seen.leader_revision else 0
                changes = client.watch(self._registry.leader_key, revision=after, silence_s=WATCH_S)
                for change in changes:
                    if self._over.is_set():
                        return
                    if not change.deleted:
                        self._led_by(record_of(change.value).address)
            except TimeoutError:
                continue
            except (MoonpoolError, msgspec.MsgspecError):
                self._over.wait(AGAIN_S)

    def _led_by(self, address: str) -> None:
        before, self._address = self._address, address
        self._doubted = self._doubted and before == address
        if before != address and self._changed is not None:
            self._changed(address)
