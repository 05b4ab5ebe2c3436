"""Faults on purpose: stored bytes flipped behind everybody's back, a node killed.

A replay that cannot fail proves nothing. Both faults are done from outside the pool: bytes through
the mapped segment file, a node by its process id.
"""

from __future__ import annotations

import ctypes
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Protocol

import numpy as np

from moonpool.cli.replay.driver import block_key
from moonpool.core.errors import BadInput, did_you_mean
from moonpool.planner.traces import Trace
from moonpool.pool.results import PrefixMatch

KINDS: Final = ("corrupt", "kill-node")


@dataclass(frozen=True)
class Faults:
    """What to do: bytes to flip in all, and the requests before which a node is killed."""

    corrupt: int = 0
    kill_node: tuple[int, ...] = ()


def parse_faults(texts: Sequence[str], requests: int) -> Faults:
    """`corrupt:N` and `kill-node:R`, each any number of times. Raises BadInput."""
    corrupt = 0
    kills: list[int] = []
    for text in texts:
        kind, colon, number = text.partition(":")
        if kind not in KINDS:
            raise BadInput(
                f"--inject {text!r}: unknown fault, know corrupt:N and kill-node:R."
                f"{did_you_mean(kind, KINDS)}"
            )
        if not colon or not re.fullmatch(r"[0-9]{1,9}", number):
            raise BadInput(f"--inject {text!r}: write {kind}:NUMBER")
        if kind == "corrupt":
            corrupt += int(number)
        elif int(number) < requests:
            kills.append(int(number))
        else:
            raise BadInput(f"--inject {text!r}: the replay has {requests} requests, from 0")
    return Faults(corrupt, tuple(sorted(kills)))


class Window(Protocol):
    """An open view of an object (moonpool's View)."""

    @property
    def zero_copy(self) -> bool: ...

    def __enter__(self) -> memoryview | None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class CorruptPool(Protocol):
    """What flipping a byte asks of a pool (moonpool.Pool has it)."""

    def match_prefix(self, keys: Sequence[bytes]) -> PrefixMatch: ...

    def view(self, key: bytes) -> Window: ...


@dataclass
class Injector:
    """Does `faults` at their moments: call it before each request.

    Bytes are flipped at random requests, each in a random block the request is about to hit (at
    the next request that hits one, if it hits none), so that none goes unread by chance.
    """

    faults: Faults
    trace: Trace
    pool: CorruptPool
    kill: Callable[[], None]
    seed: int
    corrupted: int = 0
    killed: int = 0
    _due: list[int] = field(init=False)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        requests = len(self.trace.requests)
        self._due = sorted(self._random.randrange(requests) for _ in range(self.faults.corrupt))

    def __call__(self, index: int) -> None:
        for _ in range(self.faults.kill_node.count(index)):
            self.kill()
            self.killed += 1
        due = sum(at <= index for at in self._due) - self.corrupted
        if due > 0:
            self._corrupt(index, due)

    def _corrupt(self, index: int, count: int) -> None:
        keys = [block_key(block) for block in self.trace.requests[index].hash_ids]
        matched = self.pool.match_prefix(keys).count
        for position in self._random.sample(range(matched), min(count, matched)):
            window = self.pool.view(keys[position])
            with window as view:
                if view is not None and window.zero_copy:
                    self._flip(view)
                    self.corrupted += 1

    def _flip(self, view: memoryview) -> None:
        """The view is read-only on purpose; the mapping under it is not."""
        bytes_ = np.frombuffer(view, np.uint8)
        address = bytes_.ctypes.data + self._random.randrange(len(bytes_))
        ctypes.c_uint8.from_address(address).value ^= 1 << self._random.randrange(8)
