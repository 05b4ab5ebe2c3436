"""What reads of each peer took lately, coarse enough to be compared. Pure: moments come in.

A read's time is set against what one of its size would take over a plain connection, so that
batches of any size are about the same peer. The smoothed ratio is kept in powers of two, octaves:
one changes when the ratio has left its middle by STICKS, so that two peers about as fast keep the
order they had. Who is not read any more is forgotten after a while and tried again, which is how
one that was slow once comes back.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

PLAIN_S, PLAIN_BYTES_PER_S = 100e-6, 1e9
GAIN: Final = 1 / 8
STICKS: Final = 0.75  # in octaves; 0.5 is where the next one begins
FIRST_READS: Final = 3  # that one who is not known gets before it is compared
FORGOTTEN_S: Final = 30.0
PEERS_MAX: Final = 4096
UNKNOWN: Final = -1_000  # below every octave: it is tried first


@dataclass(slots=True)
class _Cost:
    ratio: float
    octave: int
    reads: int
    at: float


class ReadCosts:
    """Threads may use it side by side: what two learn at once is one's, which is as good."""

    def __init__(self) -> None:
        self._costs: OrderedDict[bytes, _Cost] = OrderedDict()

    def __len__(self) -> int:
        return len(self._costs)

    def took(self, peer: bytes, nbytes: int, seconds: float, now: float) -> None:
        """A read of `nbytes` from `peer`, or one that was given up after so long."""
        ratio = max(seconds, 1e-9) / (PLAIN_S + nbytes / PLAIN_BYTES_PER_S)
        cost = self._costs.get(peer)
        if cost is None or now - cost.at > FORGOTTEN_S:
            self._costs[peer] = _Cost(ratio, round(math.log2(ratio)), 1, now)
            if len(self._costs) > PEERS_MAX:
                self._costs.popitem(last=False)
            return
        cost.ratio += GAIN * (ratio - cost.ratio)
        cost.reads, cost.at = cost.reads + 1, now
        exact = math.log2(cost.ratio)
        if abs(exact - cost.octave) > STICKS:
            cost.octave = round(exact)

    def octave(self, peer: bytes, now: float) -> int:
        """The smaller, the sooner its bytes are here; UNKNOWN before it was read a few times."""
        cost = self._costs.get(peer)
        if cost is None or cost.reads < FIRST_READS or now - cost.at > FORGOTTEN_S:
            return UNKNOWN
        return cost.octave
