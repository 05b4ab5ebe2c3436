"""What every eviction policy offers. Pure: no clock, no chance, no I/O; sizes are counted in keys.

A policy orders keys (block hashes, say) and never decides alone: its owner may say of each key that
it cannot go now (a parent of cached blocks, a pinned one), and gets the first choice among the
rest. The same classes serve the prefix tree of an engine and the planner's what-if replays.

    not there ── add ──> there ── touch ──> there
                           │
                           └── victim (perhaps remembered as a ghost) or remove ──> not there
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Hashable, Iterable
from itertools import islice
from math import inf
from typing import Final, Generic, TypeVar

from moonpool.core.errors import BadInput

LOOKED_AT_MAX: Final = 65_536
Key = TypeVar("Key", bound=Hashable)
MayGo = Callable[[Key], bool]


class EvictionPolicy(ABC, Generic[Key]):
    """`capacity` is how many keys its owner holds at most; some policies size their parts by it."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise BadInput(f"a policy is for at least 1 key, not {capacity}")
        self.capacity = capacity

    def resize(self, capacity: int) -> None:
        """Its owner holds so many keys from now on; what is there stays."""
        self.capacity = capacity

    @abstractmethod
    def add(self, key: Key, depth: int = 0) -> None:
        """It is there now; it was not before. `depth`: keys before it in its chain."""

    @abstractmethod
    def touch(self, key: Key) -> None:
        """It was used; it is there."""

    @abstractmethod
    def victim(self, may_go: MayGo[Key] | None = None, incoming: Key | None = None) -> Key | None:
        """Takes out the first choice of those that may go; None when none may.

        `incoming`: the key that the room is for, if known; policies with ghosts look it up there.
        """

    @abstractmethod
    def remove(self, key: Key) -> None:
        """It left for a reason of its owner's; nothing to remember. It is there."""

    @abstractmethod
    def __contains__(self, key: object) -> bool: ...

    @abstractmethod
    def __len__(self) -> int: ...

    def access(self, key: Key, depth: int = 0) -> bool:
        """A plain cache of `capacity` keys: whether it was there; if not, it came, and the first
        choice went when there was no room."""
        if key in self:
            self.touch(key)
            return True
        if len(self) >= self.capacity:
            self.victim(incoming=key)
        self.add(key, depth)
        return False


def refusals_max(may_go: MayGo[Key] | None) -> float:
    """How many keys it may refuse in one search, for policies that do more than pass them over."""
    return inf if getattr(may_go, "among", None) is None else LOOKED_AT_MAX


def first_that_may(keys: Iterable[Key], may_go: MayGo[Key] | None) -> Key | None:
    """The first of `keys` that may go. A `may_go` that has a collection `among` refuses all that is
    not in it: these are passed over at a tenth of the price, and at most LOOKED_AT_MAX keys then.
    """
    if may_go is None:
        return next(iter(keys), None)
    among: Container[Key] | None = getattr(may_go, "among", None)
    if among is not None:
        keys = filter(among.__contains__, islice(keys, LOOKED_AT_MAX))
    return next(filter(may_go, keys), None)
