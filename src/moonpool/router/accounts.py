"""A publisher's own account of what its cache holds, compared with what the router believes. Pure.

    rest -> ask "digest" -> all ranges equal: rest
                         -> some differ: ask for these ranges -> they are told anew -> ask again
    differs after REPAIRS_MAX repairs in a row: said aloud, and no more asked until it restarts

Events alone cannot show that one was never sent. Questions go to the replay socket; what they ask
for comes in the stream, numbered like everything else, so an account is one of a known moment.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from moonpool.router.index import WALKS_MAX, Applied

DIGEST: Final = b"digest"
RANGES: Final = b"ranges"
"""Followed by 32 bytes, a bit for each range, the lowest first."""
ACCOUNTS: Final = b"accounts"
"""Beside the end mark of an answer: what was asked for comes in the stream."""
REPAIRS_MAX: Final = 3


class Accounts:
    """Of one publisher's stream; in `every_s` seconds at most WALKS_MAX accounts and renewed
    ranges of it count, whoever asked for them. What was not looked at is asked for again."""

    def __init__(self, every_s: float = 60.0) -> None:
        self.compared = 0
        self.drifted = 0
        """Accounts that differed."""
        self.offered = True
        """False: the publisher keeps no account."""
        self.passed_over = 0
        """Accounts and renewed ranges that were too many."""
        self._every_s = every_s
        self._walks_left = WALKS_MAX
        self._renewed_at = -math.inf
        self._repairs = 0
        self._repairing = False

    @property
    def gave_up(self) -> bool:
        """Repairs did not help."""
        return self._repairs > REPAIRS_MAX

    def due(self) -> bytes:
        """What to ask when it is time for another look; empty: nothing."""
        self._repairing = False
        return DIGEST if self.offered and not self.gave_up else b""

    def restarted(self) -> None:
        """Nothing is known of the publisher any more, so nothing can have drifted."""
        self._repairs = 0
        self._repairing = False

    def walks_left(self, now: float) -> int:
        """How many the next message may have."""
        if now - self._renewed_at >= self._every_s:
            self._renewed_at, self._walks_left = now, WALKS_MAX
        return self._walks_left

    def walked(self, walks: int) -> None:
        """After each message."""
        self.passed_over += max(0, walks - self._walks_left)
        self._walks_left = max(0, self._walks_left - walks)

    def answered(self, what: bytes) -> None:
        """The replay socket's answer to a question; other engines know no such thing."""
        self.offered &= what == ACCOUNTS

    def heard(self, applied: Applied) -> bytes:
        """After each message; what to ask now, or nothing."""
        if applied.renewed_ranges:
            return self.due()
        if self._repairing or not applied.accounts:  # another router asked
            return b""
        differ = np.zeros(256, np.bool_)
        for _, _, ranges in applied.accounts:
            differ |= ranges.astype(np.bool_)
        self.compared += 1
        if not differ.any():
            self._repairs = 0
            return b""
        self.drifted += 1
        self._repairs += 1
        self._repairing = not self.gave_up
        return RANGES + packed(differ) if self._repairing else b""


def packed(ranges: npt.NDArray[np.bool_]) -> bytes:
    """256 marks as 32 bytes."""
    return np.packbits(ranges, bitorder="little").tobytes()
