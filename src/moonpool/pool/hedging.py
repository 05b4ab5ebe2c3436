"""When a read that has had no answer is begun on another copy as well. Pure: moments come in.

The time to wait for is learnt from what earlier reads of the same segment and size took, as TCP
learns when to send again (mean and mean deviation, Jacobson 1988). A credit bounds the reads that
are made twice, so that a pool that is slow because it is busy does not get the double load.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from moonpool.pool.ports import BELOW, Port

NEVER_MS = -1
LEARNT_MS = 0
LATE_S = 0.005  # threads of one interpreter wait for each other that long
FIRST_S, FIRST_BYTES_PER_S = 0.05, 50e6  # of what was never read before
GAIN, DEVIATION_GAIN, DEVIATIONS = 1 / 8, 1 / 4, 4
ESTIMATES_MAX = 4096
CREDIT_MAX, CREDIT_A_READ = 16.0, 0.05
SLOW_S = 1.0


@dataclass(slots=True)
class _Estimate:
    mean_s: float
    deviation_s: float

    def learn(self, took_s: float) -> None:
        self.deviation_s += DEVIATION_GAIN * (abs(took_s - self.mean_s) - self.deviation_s)
        self.mean_s += GAIN * (took_s - self.mean_s)


class Hedging:
    """What one client has learnt of the segments it reads by the network.

    Threads may use it side by side: what two learn at once is one's, which is a guess as good.
    """

    def __init__(self, after_ms: int = LEARNT_MS) -> None:
        """`after_ms`: a fixed time, or LEARNT_MS, or NEVER_MS."""
        self._after_ms = after_ms
        self._estimates: OrderedDict[tuple[bytes, int], _Estimate] = OrderedDict()
        self._slow_until: dict[bytes, float] = {}
        self._credit = CREDIT_MAX
        self.begun = 0
        self.won = 0

    def after_s(self, port: Port, nbytes: int) -> float | None:
        """How long a read of `nbytes` may be silent. None: it is waited for, come what may."""
        if self._after_ms == NEVER_MS or not awaited(port):
            return None
        if self._after_ms > 0:
            return self._after_ms / 1000
        estimate = self._estimates.get(_kind(port, nbytes))
        if estimate is None:
            return FIRST_S + nbytes / FIRST_BYTES_PER_S
        return estimate.mean_s + max(LATE_S, DEVIATIONS * estimate.deviation_s)

    def allow(self) -> bool:
        """One read is begun again, unless too many were lately."""
        if self._credit < 1:
            return False
        self._credit -= 1
        self.begun += 1
        return True

    def answered(self, port: Port, nbytes: int, took_s: float) -> None:
        """A read that was not given up. One that was teaches nothing: the time to wait for stays
        that of a healthy segment."""
        if self._after_ms == NEVER_MS or not awaited(port):
            return
        self._credit = min(CREDIT_MAX, self._credit + CREDIT_A_READ)
        self._slow_until.pop(port.incarnation, None)
        kind = _kind(port, nbytes)
        estimate = self._estimates.get(kind)
        if estimate is not None:
            estimate.learn(took_s)
            return
        self._estimates[kind] = _Estimate(took_s, took_s / 2)
        if len(self._estimates) > ESTIMATES_MAX:
            self._estimates.popitem(last=False)

    def lost(self, port: Port, now: float) -> None:
        """Its answer had not come when the other copy's was there: others are tried before it for
        a moment, so that a stopped node costs the credit of one read a second."""
        self.won += 1
        if len(self._slow_until) >= ESTIMATES_MAX:
            self._slow_until.clear()
        self._slow_until[port.incarnation] = now + SLOW_S

    def any_slow(self, now: float) -> bool:
        if self._slow_until and max([*self._slow_until.values()], default=0.0) <= now:
            self._slow_until.clear()
        return bool(self._slow_until)

    def slow(self, port: Port, now: float) -> bool:
        return self._slow_until.get(port.incarnation, 0.0) > now


def awaited(port: Port) -> bool:
    """Whether reads of this port can be waited for beside others: those of memory by the network.
    Mapped memory is read at once; a tier below is asked on a connection that only its asker sees.
    """
    return not port.local and port.kind not in BELOW


def _kind(port: Port, nbytes: int) -> tuple[bytes, int]:
    """A segment and a class of sizes, each four times the one before."""
    return port.incarnation, nbytes.bit_length() // 2
