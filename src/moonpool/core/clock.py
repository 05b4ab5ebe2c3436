"""Time as an argument: the clock protocol, the real clock, a manual one, and deadlines.

Decisions never read a clock; shells read one and pass the moment on. Nothing here sleeps.
"""

import math
import time
from dataclasses import dataclass
from typing import Protocol

from moonpool.core.errors import BadDuration, DeadlineExceeded

DEADLINE_LEFT_MAX_S = 86_400.0


class Clock(Protocol):
    """Where shells get the time from."""

    def monotonic(self) -> float:
        """Seconds; never goes back; stands still while the machine is suspended."""
        ...

    def boottime_ns(self) -> int:
        """Nanoseconds since boot, suspension included; equal in all processes of one host."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC; may jump. For logs and TTLs only."""
        ...


class SystemClock:
    """The machine's clocks."""

    monotonic = staticmethod(time.monotonic)  # itself: one put asks ten times

    def boottime_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that moves only when told to; for tests, simulation and the planner."""

    def __init__(self, start_s: float = 0.0, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic_ns = round(start_s * 1e9)
        self._boottime_ns = self._monotonic_ns
        self._wall_ns = wall_ms * 1_000_000

    def monotonic(self) -> float:
        return self._monotonic_ns / 1e9

    def boottime_ns(self) -> int:
        return self._boottime_ns

    def wall_ms(self) -> int:
        return self._wall_ns // 1_000_000

    def advance(self, seconds: float) -> None:
        """All three clocks move forward together."""
        self._monotonic_ns += self._step(seconds)
        self._boottime_ns += self._step(seconds)
        self._wall_ns += self._step(seconds)

    def suspend(self, seconds: float) -> None:
        """The machine sleeps: the monotonic clock stands still, the others go on."""
        self._boottime_ns += self._step(seconds)
        self._wall_ns += self._step(seconds)

    def jump_wall(self, milliseconds: int) -> None:
        """Somebody sets the wall clock, forward or back."""
        self._wall_ns += milliseconds * 1_000_000

    @staticmethod
    def _step(seconds: float) -> int:
        if not math.isfinite(seconds) or seconds < 0:
            raise BadDuration(f"a clock cannot advance by {seconds!r} s; give a finite step >= 0")
        return round(seconds * 1e9)


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """A moment on the local monotonic clock after which a call must be over. Never infinite."""

    at_s: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.at_s):
            raise BadDuration(f"deadline {self.at_s!r} is not finite; every wait has an end")

    @classmethod
    def after(cls, now_s: float, timeout_s: float) -> "Deadline":
        """`timeout_s` from now; at most a day. Raises BadDuration for negative or infinite ones."""
        if not 0 <= timeout_s <= DEADLINE_LEFT_MAX_S:
            limit = f"0..{DEADLINE_LEFT_MAX_S:.0f} s"
            raise BadDuration(f"timeout {timeout_s!r} s is outside {limit}; every wait has an end")
        return cls(now_s + timeout_s)

    @classmethod
    def from_left_ms(cls, now_s: float, left_ms: int) -> "Deadline":
        """What a peer sent: on the wire a deadline is the time left (capped at a day)."""
        return cls.after(now_s, min(left_ms / 1000, DEADLINE_LEFT_MAX_S))

    def left(self, now_s: float) -> float:
        """Seconds left, 0.0 once passed."""
        return max(0.0, self.at_s - now_s)

    def left_ms(self, now_s: float) -> int:
        """Whole milliseconds left for the wire, rounded down: the peer gives up before we do."""
        return int(self.left(now_s) * 1000)

    def expired(self, now_s: float) -> bool:
        return now_s >= self.at_s

    def check(self, now_s: float, what: str) -> float:
        """Seconds left; raises DeadlineExceeded naming `what` once there are none."""
        if self.expired(now_s):
            late_ms = (now_s - self.at_s) * 1000
            raise DeadlineExceeded(
                f"{what}: deadline passed {late_ms:.0f} ms ago; give a longer timeout or retry"
            )
        return self.at_s - now_s
