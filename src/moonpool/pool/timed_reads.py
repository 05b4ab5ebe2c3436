"""Reads that are waited for, timed: whoever submits one has the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moonpool.core.clock import Clock
from moonpool.pool.agent_control import OpCall, milliseconds
from moonpool.pool.ports import Outcome, Status, all_ok

if TYPE_CHECKING:
    from moonpool._core import Op, ReadTimes

_OK: Final = int(Status.OK)


class TimedOp(OpCall):
    """A read of the native endpoint, timed from its submission until its answer is taken."""

    def __init__(
        self, op: Op, count: int, timeout_s: float, times: ReadTimes, clock: Clock
    ) -> None:
        super().__init__(op, count, timeout_s)
        self._times = times
        self._clock = clock
        self._began = clock.monotonic()

    def __call__(self) -> Outcome:
        outcome = super().__call__()
        note(self._times, outcome, self._clock.monotonic() - self._began)
        return outcome


class TimedRows(TimedOp):
    """A gather: of one that went well nothing but that is to be known."""

    def __call__(self) -> Outcome:
        if not self._op.wait_well(milliseconds(self._timeout_s) + 1000):
            return super().__call__()
        self._times.add(max(0, round((self._clock.monotonic() - self._began) * 1e9)))
        return all_ok(self._count)


def note(times: ReadTimes, outcome: Outcome, took_s: float) -> None:
    """Counted when it brought at least one object or piece."""
    if _OK in outcome.status.tobytes():
        times.add(max(0, round(took_s * 1e9)))
