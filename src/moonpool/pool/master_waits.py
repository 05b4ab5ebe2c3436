"""Requests that the master answers later: who waits for keys in flight, and plain queues.

Each wait has a deadline and each table a bound with a name; what finds no place is answered at
once. Nothing here looks at a clock or sends: answers are appended to the outbox.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from moonpool.pool import messages as m
from moonpool.pool.effects import Effect, Send
from moonpool.pool.master_requests import Asked

T = TypeVar("T")


@dataclass(slots=True)
class AwaitCall:
    session: int
    request: int
    deadline: float
    keys: list[bytes]
    status: list[m.AwaitStatus | None]
    left: int
    done: bool = False


class KeyWaiters:
    """Who waits for which key to be settled. At most `waiters_max` (key, call) pairs."""

    def __init__(self, waiters_max: int, outbox: list[Effect]) -> None:
        self._max = waiters_max
        self._outbox = outbox
        self._by_key: dict[bytes, deque[tuple[AwaitCall, int]]] = {}
        self._deadlines: list[tuple[float, int, AwaitCall]] = []
        self._order = 0
        self.pairs = 0

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def add(self, call: AwaitCall) -> None:
        """`call.status` is None for the keys to wait for. Answers at once when nothing is left or
        the table is full (TIMEOUT)."""
        waiting = [i for i, status in enumerate(call.status) if status is None]
        if self.pairs + len(waiting) > self._max:
            for i in waiting:
                call.status[i] = m.AwaitStatus.TIMEOUT
            waiting = []
        call.left = len(waiting)
        if not waiting:
            self._answer(call)
            return
        for i in waiting:
            self._by_key.setdefault(call.keys[i], deque()).append((call, i))
        self.pairs += len(waiting)
        self._order += 1
        if len(self._deadlines) > 2 * self._max:
            # Calls that were answered early would stay until their deadline.
            self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (call.deadline, self._order, call))

    def committed(self, key: bytes) -> None:
        for call, i in self._by_key.pop(key, ()):
            self.pairs -= 1
            if not call.done:
                call.status[i] = m.AwaitStatus.COMMITTED
                call.left -= 1
                if call.left == 0:
                    self._answer(call)

    def given_up(self, key: bytes) -> int | None:
        """The writer gave up: the session of the first waiter, which inherits the key. Its call
        is answered at once; what else it waits for is ABSENT in that answer, so it asks again."""
        waiters = self._by_key.get(key)
        while waiters:
            call, i = waiters.popleft()
            self.pairs -= 1
            if not waiters:
                del self._by_key[key]
            if not call.done:
                call.status[i] = m.AwaitStatus.YOURS
                self._fill(call, m.AwaitStatus.ABSENT)
                return call.session
        return None

    def forget_session(self, session: int) -> None:
        for _, _, call in self._deadlines:
            if call.session == session:
                call.done = True
        self._sweep()

    def expire(self, now: float) -> None:
        expired = False
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, call = heapq.heappop(self._deadlines)
            if not call.done:
                self._fill(call, m.AwaitStatus.TIMEOUT)
                expired = True
        if expired:
            self._sweep()

    @property
    def next_deadline(self) -> float | None:
        while self._deadlines and self._deadlines[0][2].done:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _fill(self, call: AwaitCall, status: m.AwaitStatus) -> None:
        call.status = [status if one is None else one for one in call.status]
        self._answer(call)

    def _answer(self, call: AwaitCall) -> None:
        call.done = True
        status = bytes(int(one) for one in call.status if one is not None)
        self._outbox.append(Send(call.session, call.request, m.Awaited(status)))

    def _sweep(self) -> None:
        """Take calls that are over out of the queues."""
        for key in list(self._by_key):
            left = deque(pair for pair in self._by_key[key] if not pair[0].done)
            self.pairs -= len(self._by_key[key]) - len(left)
            if left:
                self._by_key[key] = left
            else:
                del self._by_key[key]


@dataclass(frozen=True, slots=True)
class Held(Generic[T]):
    """A request that waits, and until when."""

    asked: Asked
    message: T
    deadline: float


class Holding(Generic[T]):
    """A bounded queue of requests with deadlines."""

    def __init__(self, held_max: int) -> None:
        self._max = held_max
        self._held: list[Held[T]] = []

    def __len__(self) -> int:
        return len(self._held)

    def add(self, held: Held[T]) -> bool:
        """False: no room."""
        if len(self._held) >= self._max:
            return False
        self._held.append(held)
        return True

    def take_all(self) -> list[Held[T]]:
        held, self._held = self._held, []
        return held

    def take_expired(self, now: float) -> list[Held[T]]:
        expired = [held for held in self._held if held.deadline <= now]
        if expired:
            self._held = [held for held in self._held if held.deadline > now]
        return expired

    def forget_session(self, session: int) -> None:
        self._held = [held for held in self._held if held.asked.session != session]

    @property
    def next_deadline(self) -> float | None:
        return min((held.deadline for held in self._held), default=None)
