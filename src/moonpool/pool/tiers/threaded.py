"""A store behind bounded queues: one thread writes and erases, a few read. Nobody else waits.

submitted  QUEUED -> running -> finished: `poll` says how
cancelled  QUEUED -> finished as CANCELLED; what runs goes on
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from moonpool.pool.tiers.base import Finished, Read, Status, Store, TierOp, Write

log = logging.getLogger("moonpool.tier")

READERS = 4
STOP_S = 5.0


class ThreadedTier:
    """`wake` is called, from any thread, when `poll` has something to say."""

    def __init__(
        self,
        store: Store,
        *,
        readers: int = READERS,
        ops_max: int = 512,
        bytes_max: int = 256 << 20,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self.refused = 0
        self._wake = wake
        self._ops_max, self._bytes_max = ops_max, bytes_max
        self._changed = threading.Condition()
        self._writes: deque[tuple[int, TierOp]] = deque()
        self._reads: deque[tuple[int, TierOp]] = deque()
        self._queued_bytes = 0
        self._finished: deque[Finished] = deque()
        self._next = 1
        self._closed = False
        queues = [self._writes] + [self._reads] * readers
        self._threads = [
            threading.Thread(target=self._work, args=(queue,), name="moonpool-tier", daemon=True)
            for queue in queues
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, op: TierOp) -> int | None:
        size = op.entry.size if isinstance(op, Write) else 0
        queue = self._reads if isinstance(op, Read) else self._writes
        with self._changed:
            over = size and self._queued_bytes and self._queued_bytes + size > self._bytes_max
            if self._closed or len(queue) >= self._ops_max or over:
                self.refused += 1
                return None
            ticket = self._next
            self._next += 1
            queue.append((ticket, op))
            self._queued_bytes += size
            self._changed.notify_all()
        return ticket

    def poll(self) -> list[Finished]:
        with self._changed:
            ended = [*self._finished]
            self._finished.clear()
        return ended

    def cancel(self, ticket: int) -> bool:
        with self._changed:
            for queue in (self._writes, self._reads):
                for one in queue:
                    if one[0] == ticket:
                        queue.remove(one)
                        self._settle(one[1])
                        self._finished.append(Finished(ticket, Status.CANCELLED))
                        break
                else:
                    continue
                break
            else:
                return False
        self._wake()
        return True

    @property
    def queued(self) -> tuple[int, int]:
        """Ops that wait, and bytes of those that write."""
        with self._changed:
            return len(self._writes) + len(self._reads), self._queued_bytes

    def close(self) -> None:
        """What waits is cancelled; what runs ends, or is left to its hung medium."""
        with self._changed:
            self._closed = True
            waiting = [*self._writes, *self._reads]
            self._writes.clear()
            self._reads.clear()
            for ticket, op in waiting:
                self._settle(op)
                self._finished.append(Finished(ticket, Status.CANCELLED))
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(STOP_S)
        self._wake()

    def _settle(self, op: TierOp) -> None:
        if isinstance(op, Write):
            self._queued_bytes -= op.entry.size

    def _work(self, queue: deque[tuple[int, TierOp]]) -> None:
        while True:
            with self._changed:
                while not queue and not self._closed:
                    self._changed.wait()
                if not queue:
                    return
                ticket, op = queue.popleft()
            finished = self._do(ticket, op)
            with self._changed:
                self._settle(op)
                self._finished.append(finished)
            self._wake()

    def _do(self, ticket: int, op: TierOp) -> Finished:
        try:
            if isinstance(op, Write):
                return Finished(ticket, self.store.write(op.entry, op.data))
            if isinstance(op, Read):
                data = self.store.read(op.slot, op.generation, op.offset, op.length)
                if isinstance(data, Status):
                    return Finished(ticket, data)
                return Finished(ticket, Status.OK, data)
            return Finished(ticket, self.store.erase(op.slot, op.generation))
        except Exception:
            # Our bug, or a medium's error nobody has met: whoever asked gets an answer.
            log.exception("a %s failed", type(op).__name__)
            return Finished(ticket, Status.INTERNAL)
