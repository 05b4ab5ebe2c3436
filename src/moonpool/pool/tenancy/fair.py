"""Turns by weight: start-time fair queueing (Goyal, Vin and Cheng, 1996) over whole requests.

Each tenant has its own line. The turn goes to the one whose next start tag is least; what it was
then given moves its tag on by cost / weight. One that had nothing to ask for comes back at the
present virtual time: it neither saved turns up nor pays for having been away. Requests that leave
their line before their turn cost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Bounded lines: `waiting_max` requests of one tenant, of `bytes_max` by `size` together; a
    line that is empty takes one of any size."""

    def __init__(
        self,
        weight: Callable[[int], float],
        waiting_max: int,
        size: Callable[[T], int] = lambda item: 0,
        bytes_max: int = 0,
    ) -> None:
        self._weight = weight
        self._max = waiting_max
        self._size = size
        self._bytes_max = bytes_max
        self._bytes: dict[int, int] = {}
        self._lines: dict[int, deque[T]] = {}
        self._tags: dict[int, float] = {}
        self._virtual = 0.0
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def waiting(self, tenant: int) -> int:
        return len(self._lines.get(tenant, ()))

    def add(self, tenant: int, item: T) -> bool:
        """False: its line is full."""
        line = self._lines.setdefault(tenant, deque())
        size = self._size(item)
        if line and (len(line) >= self._max or self._bytes.get(tenant, 0) + size > self._bytes_max):
            return False
        if not line:
            self._tags[tenant] = self._now_of(tenant)
        line.append(item)
        self._bytes[tenant] = self._bytes.get(tenant, 0) + size
        self._waiting += 1
        return True

    def take(self) -> tuple[int, T] | None:
        """Whose turn it is, and what it asked first. Tell what it cost by `charge`."""
        waiting = [(self._tags[tenant], tenant) for tenant, line in self._lines.items() if line]
        if not waiting:
            return None
        self._virtual, tenant = min(waiting)
        return tenant, self._leave(tenant)

    def _leave(self, tenant: int) -> T:
        """The first of its line."""
        item = self._lines[tenant].popleft()
        self._bytes[tenant] -= self._size(item)
        self._waiting -= 1
        return item

    def charge(self, tenant: int, cost: float) -> None:
        """It was given so much, in its turn or without having to wait for one."""
        self._virtual = self._now_of(tenant)
        self._tags[tenant] = self._virtual + cost / self._weight(tenant)

    def drop(self, gone: Callable[[T], bool]) -> list[tuple[int, T]]:
        """These leave their lines."""
        left = []
        for tenant, line in self._lines.items():
            out = [item for item in line if gone(item)]
            if out:
                left += [(tenant, item) for item in out]
                self._lines[tenant] = deque(item for item in line if not gone(item))
                self._bytes[tenant] -= sum(self._size(item) for item in out)
        self._waiting -= len(left)
        return left

    def drop_first(self, gone: Callable[[T], bool]) -> list[tuple[int, T]]:
        """These leave their lines, of each as far as they are the first; no further one is looked
        at."""
        left = []
        for tenant, line in self._lines.items():
            while line and gone(line[0]):
                left.append((tenant, self._leave(tenant)))
        return left

    def first(self) -> list[T]:
        """Of each line."""
        return [line[0] for line in self._lines.values() if line]

    def _now_of(self, tenant: int) -> float:
        return max(self._virtual, self._tags.get(tenant, 0.0))
