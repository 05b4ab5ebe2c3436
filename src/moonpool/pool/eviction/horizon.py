"""Horizon: our own. Takes the key from whose stay the least is to be expected.

It learns how long keys take to come back, separately for keys used once, twice, three times and
more; ghosts of what left go on counting, so that it learns from its mistakes. From that it knows
for each age the best rate of returns for the room and time that a key will yet take, over any
horizon (a Gittins index; per age as in LHD, Beckmann et al., NSDI 2018, but with ghosts and without
sampling). The rate times the cost of computing the key again is what its stay is worth.

Chains: a block behind many others costs more to compute again, and a block without its parent is
worth nothing, so the owner says which keys are ends of chains (`may_go`).
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain, islice
from typing import Final

from moonpool.pool.eviction.base import EvictionPolicy, Key, MayGo, first_that_may

CLASSES: Final = 4
BINS: Final = 56
"""Of ages, two for each doubling."""
GHOSTS_PER_KEY: Final = 4
KEPT_SHARE: Final = 0.95
"""Of what was learnt, at each relearning."""
LEARNINGS_PER_TURN: Final = 4
PASSED_OVER_MAX: Final = 256
"""Keys that may not go, looked at in one class for one victim."""
DEPTH_OF_DOUBLE_COST: Final = 1000
"""Blocks before a block that make it twice as dear as the first: attention grows with them."""
COST_STEPS: Final = 4
"""Lists by cost for each class: up to 1.25, 2 and 5 times the first block's, and beyond."""


def _start_of(number: int) -> float:
    """First age (plus one) of a bin; of each doubling the upper half begins at 1.5 times."""
    return 2.0 ** (number // 2) * (1.5 if number % 2 else 1.0)


_WIDTHS: Final = [_start_of(i + 1) - _start_of(i) for i in range(BINS)]


class _Known:
    """What is known of one key, there or ghost."""

    __slots__ = ("depth", "last", "uses")

    def __init__(self, depth: int, last: int) -> None:
        self.depth = depth
        self.last = last
        self.uses = 1


class _Class:
    """The fates of keys of one number of uses, by age."""

    def __init__(self) -> None:
        self.returned = [0.0] * BINS
        self.forgotten = [0.0] * BINS
        self.worth = [1 / _start_of(i) for i in range(BINS)]  # recency, at first

    def learn(self) -> None:
        """For each age the best rate of returns per time over any horizon."""
        left, alive = 0.0, [0.0] * (BINS + 1)
        for i in reversed(range(BINS)):
            left += self.returned[i] + self.forgotten[i]
            alive[i] = left
        if left < 1.0:
            return
        for start in range(BINS):
            best = returns = taken = 0.0
            for i in range(start, BINS):
                if alive[i] <= 0.0:
                    break
                returns += self.returned[i]
                taken += (alive[i] + alive[i + 1]) / 2 * _WIDTHS[i]
                best = max(best, returns / taken)
            self.worth[start] = best
        self.returned = [KEPT_SHARE * one for one in self.returned]
        self.forgotten = [KEPT_SHARE * one for one in self.forgotten]


class Horizon(EvictionPolicy[Key]):
    """Time is counted in accesses; ages in bins that double every few."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._known: dict[Key, _Known] = {}
        self._ghosts: OrderedDict[Key, _Known] = OrderedDict()
        self._classes = [_Class() for _ in range(CLASSES)]
        self._lists: list[OrderedDict[Key, None]] = [
            OrderedDict() for _ in range(CLASSES * COST_STEPS)
        ]
        self._now = 0
        self._next_learning = self._period = max(capacity // LEARNINGS_PER_TURN, 256)

    def resize(self, capacity: int) -> None:
        super().resize(capacity)
        self._period = max(capacity // LEARNINGS_PER_TURN, 256)
        self._next_learning = min(self._next_learning, self._now + self._period)

    def add(self, key: Key, depth: int = 0) -> None:
        self._tick()
        known = self._ghosts.pop(key, None)
        if known is None:
            known = _Known(depth, self._now)
        else:
            self._came_back(known)
        self._known[key] = known
        self._lists[_list_of(known)][key] = None

    def touch(self, key: Key) -> None:
        self._tick()
        known = self._known[key]
        del self._lists[_list_of(known)][key]
        self._came_back(known)
        self._lists[_list_of(known)][key] = None

    def victim(self, may_go: MayGo[Key] | None = None, incoming: Key | None = None) -> Key | None:
        found: Key | None = None
        least = 0.0
        for number, keys in enumerate(self._lists):
            key = first_that_may(islice(keys, PASSED_OVER_MAX), may_go)
            if key is None:
                continue
            worth = self._worth(number // COST_STEPS, self._known[key])
            if found is None or worth < least:
                found, least = key, worth
        if found is None:
            found = first_that_may(chain.from_iterable(self._lists), may_go)
        if found is not None:
            self._ghosts[found] = self._leave(found)
            while len(self._ghosts) > GHOSTS_PER_KEY * self.capacity:
                self._forget(self._ghosts.popitem(last=False)[1])
        return found

    def remove(self, key: Key) -> None:
        self._leave(key)

    def __contains__(self, key: object) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)

    def _tick(self) -> None:
        self._now += 1
        if self._now >= self._next_learning:
            self._next_learning += self._period
            for one in self._classes:
                one.learn()

    def _worth(self, number: int, known: _Known) -> float:
        rate = self._classes[number].worth[_bin_of(self._now - known.last)]
        return rate * _cost(known.depth)

    def _came_back(self, known: _Known) -> None:
        self._classes[_class_of(known)].returned[_bin_of(self._now - known.last)] += 1
        known.uses += 1
        known.last = self._now

    def _forget(self, known: _Known) -> None:
        self._classes[_class_of(known)].forgotten[_bin_of(self._now - known.last)] += 1

    def _leave(self, key: Key) -> _Known:
        known = self._known.pop(key)
        del self._lists[_list_of(known)][key]
        return known


def _cost(depth: int) -> float:
    return 1 + depth / DEPTH_OF_DOUBLE_COST


def _list_of(known: _Known) -> int:
    cost = _cost(known.depth)
    step = 0 if cost < 1.25 else 1 if cost < 2 else 2 if cost < 5 else 3
    return _class_of(known) * COST_STEPS + step


def _class_of(known: _Known) -> int:
    return min(known.uses, CLASSES) - 1


def _bin_of(age: int) -> int:
    length = (age + 1).bit_length() - 1
    upper = (age + 1) >> (length - 1) & 1 if length else 0
    return min(BINS - 1, 2 * length + upper)
