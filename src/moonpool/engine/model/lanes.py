"""Chunks of prompts computed beside each other, each by one thread from first to last layer.

Threads that share one matrix product meet after each, a hundred times a chunk and layer; two chunks
that each have a thread of their own meet only where the later one attends to the earlier one's
keys and values. And the number of threads changes no bit of a chunk that one thread computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import torch

T = TypeVar("T")
_START_S: Final = 30.0


class Ahead:
    """How far a pass is, for the one that follows it in the same sequence."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._layers = 0
        self._ended = False

    def layer_done(self, layer: int) -> None:
        """Its keys and values are in the pages."""
        with self._changed:
            self._layers = layer + 1
            self._changed.notify_all()

    def end(self) -> None:
        """It will not come further; for one that failed, too."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_layer(self, layer: int) -> None:
        """Raises PassFailed when the layer never comes."""
        with self._changed:
            self._changed.wait_for(lambda: self._layers > layer or self._ended)
            if self._layers <= layer:
                raise PassFailed("the pass before this one failed")


class PassFailed(Exception):
    """A pass rests on one that failed. It never leaves the engine."""


class Lanes:
    """`count` threads that compute a pass at a time each."""

    def __init__(self, count: int) -> None:
        self.count = count
        threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(count, "moonpool-lane", _alone)
        all_there = threading.Barrier(count)
        for started in [self._pool.submit(all_there.wait, _START_S) for _ in range(count)]:
            started.result()
        torch.set_num_threads(threads)  # what threads that start later begin with

    def run(self, passes: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """Results, or what was raised, in order. A pass may wait for those before it only."""
        futures = [self._pool.submit(_outcome, one) for one in passes]
        return [future.result() for future in futures]

    def close(self) -> None:
        self._pool.shutdown()


def _alone() -> None:
    torch.get_num_threads()  # a thread's first look sets it to the common number
    torch.set_num_threads(1)


def _outcome(call: Callable[[], T]) -> T | Exception:
    try:
        return call()
    except Exception as error:
        return error
