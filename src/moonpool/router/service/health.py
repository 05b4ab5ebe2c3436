"""Is a worker well? Pure: what was seen of it in, changes of mind out."""

from __future__ import annotations

from enum import StrEnum


class Condition(StrEnum):
    """joining -> ready <-> down; draining from any, and from there only out."""

    JOINING = "joining"
    READY = "ready"
    DOWN = "down"
    DRAINING = "draining"


class Health:
    """One worker's condition. `look_at` is when its next probe is due."""

    def __init__(self, interval_s: float, failures_max: int) -> None:
        self.condition = Condition.JOINING
        self.why = "not asked yet"
        self.look_at = 0.0
        self._interval_s = interval_s
        self._failures_max = failures_max
        self._failures = 0

    def well(self, now: float) -> bool:
        """A probe went well. True: it is ready now and was not before."""
        self._failures = 0
        self.look_at = now + self._interval_s
        if self.condition in (Condition.READY, Condition.DRAINING):
            return False
        self.condition, self.why = Condition.READY, ""
        return True

    def ill(self, now: float, why: str, *, surely: bool = False) -> bool:
        """A probe or a request failed; `surely`: nobody listens there any more.

        True: it is down now and was ready before. One failure alone is only looked into.
        """
        self._failures += 1
        self.why = why
        self.look_at = now if self._failures < self._failures_max else now + self._interval_s
        if self.condition is not Condition.READY:
            return False
        if surely or self._failures >= self._failures_max:
            self.condition = Condition.DOWN
            self.look_at = now + self._interval_s
            return True
        return False

    def drain(self) -> None:
        self.condition, self.why = Condition.DRAINING, "it is being drained"
