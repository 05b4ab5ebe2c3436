"""Notifications that peers have sent to an engine, for whoever in this process wants them.

The queue is in the endpoint and bounded: who is too slow makes the senders' ops say so, and costs
nobody memory.
"""

import asyncio
import math
import os
import select
import threading
import time

from moonpool import _core
from moonpool.core.errors import BadFrame, Closed, DeadlineExceeded
from moonpool.transfer.notification import Known, Notification, decoded
from moonpool.transfer.request import checked_deadline


class Inbox:
    """`engine.inbox`. Thread-safe; each notification is given to one caller, the oldest first."""

    def __init__(self, endpoint: _core.Endpoint) -> None:
        self._endpoint = endpoint
        self._known = Known()
        self._lock = threading.Lock()
        self.malformed = 0

    def take(self, most: int = 1024) -> list[Notification]:
        """What is there, without waiting; at most so many."""
        taken = list[Notification]()
        with self._lock:
            for raw in self._endpoint.notifications(most):
                try:
                    notification = decoded(raw)
                except BadFrame:
                    self.malformed += 1
                    continue
                if not self._known.again(notification):
                    taken.append(notification)
        return taken

    def get(self, timeout: float = 5.0) -> Notification:
        """The next one. Raises DeadlineExceeded after `timeout` seconds: a sender that died between
        its data and its notification sends none. Raises Closed when the engine is closed."""
        until_s = time.monotonic() + checked_deadline(timeout)
        ready = select.poll()
        ready.register(self._endpoint.notification_fd, select.POLLIN)
        while True:
            if (found := self._one()) is not None:
                return found
            ready.poll(self._left_ms(until_s))

    async def next(self, timeout: float = 5.0) -> Notification:
        """As get(), inside asyncio."""
        until_s = time.monotonic() + checked_deadline(timeout)
        if (found := self._one()) is not None:
            return found
        # A descriptor of its own: several may wait in one loop, and a loop knows each but once.
        descriptor = os.dup(self._endpoint.notification_fd)
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(descriptor, ready.set)
        try:
            while (found := self._one()) is None:
                left_ms = self._left_ms(until_s)
                ready.clear()
                try:
                    await asyncio.wait_for(ready.wait(), left_ms / 1000)
                except TimeoutError:
                    continue
            return found
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def _one(self) -> Notification | None:
        if found := self.take(1):
            return found[0]
        if self._endpoint.closed:
            raise Closed("this engine is closed; nobody sends it notifications any more")
        return None

    def _left_ms(self, until_s: float) -> int:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded("no notification came in time")
        return math.ceil(left_s * 1000)
