"""Requests that the master answers later: keys in flight, retired replicas, held puts, followers.

Each wait has a deadline and each table a bound with a name; what finds no place is answered at
once. Nothing here looks at a clock or sends: answers are appended to the outbox.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from moonpool.pool import messages as m
from moonpool.pool.effects import Effect, Send


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


@dataclass(slots=True)
class RetireWait:
    """An answer held back until replicas are retired. `late` makes the answer at the deadline."""

    session: int
    request: int
    deadline: float | None
    done: m.Reply
    late: Callable[[set[int]], m.Reply] | None
    orders: dict[int, int] = field(default_factory=dict)  # order -> segment


@dataclass(slots=True)
class _Order:
    segment: int
    tombs: list[tuple[bytes, int, int]]  # key, term, sequence
    waits: list[RetireWait]


class RetireOrders:
    """Retire messages that somebody waits for, by id. An order ends when its agent answers or
    when the lease of an unreachable agent has surely passed."""

    def __init__(self, outbox: list[Effect]) -> None:
        self._outbox = outbox
        self._orders: dict[int, _Order] = {}
        self._by_segment: dict[int, set[int]] = {}
        self._by_key: dict[bytes, set[int]] = {}
        self._waits: list[RetireWait] = []
        self._next = 1

    def __len__(self) -> int:
        return len(self._orders)

    def new(self, segment: int, tombs: list[tuple[bytes, int, int]], wait: RetireWait) -> int:
        number, self._next = self._next, self._next + 1
        self._orders[number] = _Order(segment, tombs, [wait])
        self._by_segment.setdefault(segment, set()).add(number)
        for key, _, _ in tombs:
            self._by_key.setdefault(key, set()).add(number)
        wait.orders[number] = segment
        return number

    def join(self, keys: Iterable[bytes], wait: RetireWait) -> None:
        """Let `wait` wait also for what earlier removals of these keys have still open: an older
        value may be read until then."""
        for key in keys:
            for number in self._by_key.get(key, ()):
                if number not in wait.orders:
                    order = self._orders[number]
                    wait.orders[number] = order.segment
                    order.waits.append(wait)

    def start(self, wait: RetireWait) -> None:
        """All orders of this wait are given; it answers at once when there are none."""
        if not wait.orders:
            self._outbox.append(Send(wait.session, wait.request, wait.done))
        elif wait.deadline is not None:
            self._waits.append(wait)

    def finish(self, number: int, segment: int) -> None:
        """The agent has retired."""
        order = self._orders.get(number)
        if order is None or order.segment != segment:
            return
        del self._orders[number]
        self._by_segment[segment].discard(number)
        for key, _, _ in order.tombs:
            numbers = self._by_key[key]
            numbers.discard(number)
            if not numbers:
                del self._by_key[key]
        for wait in order.waits:
            if wait.orders.pop(number, None) is not None and not wait.orders:
                self._outbox.append(Send(wait.session, wait.request, wait.done))
                wait.deadline = None

    def open_on(self, segment: int) -> bool:
        return bool(self._by_segment.get(segment))

    def missed(self, segment: int) -> list[tuple[bytes, int, int]]:
        """Versions whose retirement on this segment nobody has confirmed."""
        numbers = self._by_segment.get(segment, ())
        return [tomb for number in numbers for tomb in self._orders[number].tombs]

    def lease_passed(self, segment: int) -> None:
        """Nobody can read this segment any more: as good as retired."""
        for number in sorted(self._by_segment.get(segment, ())):
            self.finish(number, segment)

    def expire(self, now: float) -> None:
        left = []
        for wait in self._waits:
            if wait.deadline is None:
                continue
            if wait.deadline > now:
                left.append(wait)
            elif wait.late is not None:
                segments = set(wait.orders.values())
                self._outbox.append(Send(wait.session, wait.request, wait.late(segments)))
                wait.orders.clear()
        self._waits = left

    @property
    def next_deadline(self) -> float | None:
        return min((w.deadline for w in self._waits if w.deadline is not None), default=None)


@dataclass(frozen=True, slots=True)
class Held:
    """What waits for the end of the recovery, or a follower that waits for events."""

    session: int
    request: int
    message: m.Reserve | m.Remove | m.RemovePrefix | m.EventsFrom
    deadline: float


class Holding:
    """A bounded queue of requests with deadlines."""

    def __init__(self, held_max: int) -> None:
        self._max = held_max
        self._held: list[Held] = []

    def __len__(self) -> int:
        return len(self._held)

    def add(self, held: Held) -> bool:
        """False: no room."""
        if len(self._held) >= self._max:
            return False
        self._held.append(held)
        return True

    def take_all(self) -> list[Held]:
        held, self._held = self._held, []
        return held

    def take_expired(self, now: float) -> list[Held]:
        expired = [held for held in self._held if held.deadline <= now]
        if expired:
            self._held = [held for held in self._held if held.deadline > now]
        return expired

    def forget_session(self, session: int) -> None:
        self._held = [held for held in self._held if held.session != session]

    @property
    def next_deadline(self) -> float | None:
        return min((held.deadline for held in self._held), default=None)
