"""Numbered messages of one publisher: what to do with each. Pure.

The live socket keeps order but may lose messages; a replay brings them again. So a number on the
live socket that is not above the last one there means that the publisher began anew, while one that
is not above the last applied is only known already.
"""

from __future__ import annotations

from enum import Enum


class Step(Enum):
    """What to do with a live message."""

    APPLY = "apply"
    SKIP = "skip"
    FILL = "fill"
    """Ask for a replay from `next`, then look again."""
    RESTART = "restart"
    """Forget what the publisher told, begin with this message."""


class EventStream:
    """One publisher's numbers, which begin at 0 with each of its lives."""

    def __init__(self) -> None:
        self.next = 0
        """The number to be applied next."""
        self.lost = 0
        """Messages that no replay could bring."""
        self._live = -1

    def live(self, number: int) -> Step:
        """A message came on the live socket."""
        if number <= self._live:
            self._live, self.next = number, 0
            return Step.RESTART
        self._live = number
        return self.again(number)

    def again(self, number: int) -> Step:
        """Look at the same message once more, after a replay."""
        if number < self.next:
            return Step.SKIP
        return Step.APPLY if number == self.next else Step.FILL

    def replayed(self, number: int) -> bool:
        """A message came in a replay. True: apply it."""
        if number < self.next:
            return False
        self._skip_to(number)
        self.next = number + 1
        return True

    def applied(self, number: int) -> None:
        """A live message was applied; whatever lies between is lost."""
        self._skip_to(number)
        self.next = number + 1

    def _skip_to(self, number: int) -> None:
        self.lost += number - self.next
