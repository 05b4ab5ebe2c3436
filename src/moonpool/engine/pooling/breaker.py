"""Leaves a pool alone that does not answer. Pure: time is an argument."""

from __future__ import annotations

from typing import Final

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0


class Breaker:
    """After a failure nothing is asked for a pause, twice as long each time, until one works."""

    def __init__(self) -> None:
        self.failures = 0
        self._pause_s = 0.0
        self._until_s = 0.0

    def may_ask(self, now: float) -> bool:
        return now >= self._until_s

    def failed(self, now: float) -> None:
        self.failures += 1
        self._pause_s = min(max(FIRST_PAUSE_S, 2 * self._pause_s), LONGEST_PAUSE_S)
        self._until_s = now + self._pause_s

    def worked(self) -> None:
        self._pause_s = self._until_s = 0.0
