"""Orders to retire that somebody waits for. Nothing here looks at a clock or sends: answers are
appended to the outbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from moonpool.pool import messages as m
from moonpool.pool.effects import Effect, Send


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
    tombs: dict[bytes, tuple[int, int]]  # term, sequence by key
    keys: list[bytes]
    waits: dict[int, RetireWait]  # by identity


class RetireOrders:
    """Retire messages that somebody waits for, by id. An order ends when its agent answers or
    when the lease of an unreachable agent has surely passed.

    Each order holds slots that cannot be used until it ends, so there are never more than slots.
    Waits, pairs of an order and a call, are bounded: with `waits_max` of them a call that would
    wait is refused before anything is changed. The call that passes the bound is taken whole.
    """

    def __init__(self, waits_max: int, outbox: list[Effect]) -> None:
        self._max = waits_max
        self._outbox = outbox
        self.waits = 0
        self.refused = 0  # calls for which there was no room
        self._orders: dict[int, _Order] = {}
        self._by_segment: dict[int, set[int]] = {}
        self._by_key: dict[bytes, set[int]] = {}
        self._waits: list[RetireWait] = []
        self._next = 1

    def stat(self) -> dict[str, int]:
        return {
            "retire_orders": len(self),
            "retire_waits": self.waits,
            "retire_refused": self.refused,
        }

    def __len__(self) -> int:
        return len(self._orders)

    @property
    def full(self) -> bool:
        return self.waits >= self._max

    def concern(self, keys: Iterable[bytes]) -> bool:
        """An older value of one of these keys may still be read."""
        return any(key in self._by_key for key in keys)

    def new(self, segment: int, tombs: list[tuple[bytes, int, int]], wait: RetireWait) -> int:
        versions = {key: (term, sequence) for key, term, sequence in tombs}
        number = self._add(_Order(segment, versions, list(versions), {id(wait): wait}))
        wait.orders[number] = segment
        return number

    def new_unawaited(self, segment: int, keys: list[bytes]) -> int:
        """Nobody waits for this one, and it may come back with its node; but who puts one of
        these keys anew will join."""
        return self._add(_Order(segment, {}, keys, {}))

    def _add(self, order: _Order) -> int:
        number, self._next = self._next, self._next + 1
        self._orders[number] = order
        self.waits += len(order.waits)
        self._by_segment.setdefault(order.segment, set()).add(number)
        for key in order.keys:
            self._by_key.setdefault(key, set()).add(number)
        return number

    def join(self, keys: Iterable[bytes], wait: RetireWait) -> None:
        """Let `wait` wait also for what earlier removals of these keys have still open: an older
        value may be read until then."""
        for key in keys:
            for number in self._by_key.get(key, ()):
                if number not in wait.orders:
                    order = self._orders[number]
                    wait.orders[number] = order.segment
                    order.waits[id(wait)] = wait
                    self.waits += 1

    def removed(self, key: bytes, term: int, sequence: int) -> set[int]:
        """Copies of this key that went by themselves must not come back either, from now on: the
        segments that have not confirmed it."""
        mine = [self._orders[number] for number in self._by_key.get(key, ())]
        for order in mine:
            order.tombs.setdefault(key, (term, sequence))
        return {order.segment for order in mine}

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
        self.waits -= len(order.waits)
        self._by_segment[segment].discard(number)
        for key in order.keys:
            numbers = self._by_key.get(key)
            if numbers is not None:
                numbers.discard(number)
                if not numbers:
                    del self._by_key[key]
        for wait in order.waits.values():
            if wait.orders.pop(number, None) is not None and not wait.orders:
                self._outbox.append(Send(wait.session, wait.request, wait.done))
                wait.deadline = None

    def open_orders(self, segment: int) -> list[int]:
        return sorted(self._by_segment.get(segment, ()))

    def missed(self, segment: int) -> list[tuple[bytes, int, int]]:
        """Versions whose retirement on this segment nobody has confirmed."""
        numbers = self._by_segment.get(segment, ())
        return [
            (key, *version)
            for number in numbers
            for key, version in self._orders[number].tombs.items()
        ]

    def lease_passed(self, segment: int, remembered: bool) -> list[bytes]:
        """Nobody can read this segment any more: as good as retired, if what was removed on
        purpose is `remembered` elsewhere. Returns the keys of what went there by itself."""
        unheard: list[bytes] = []
        for number in self.open_orders(segment):
            order = self._orders[number]
            if remembered or not order.tombs:
                unheard += [key for key in order.keys if key not in order.tombs]
                self.finish(number, segment)
        return unheard

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
                self._leave(wait)
        self._waits = left

    def _leave(self, wait: RetireWait) -> None:
        """It was answered: its orders go on without it."""
        for number in wait.orders:
            del self._orders[number].waits[id(wait)]
        self.waits -= len(wait.orders)
        wait.orders.clear()

    @property
    def next_deadline(self) -> float | None:
        return min((w.deadline for w in self._waits if w.deadline is not None), default=None)
