"""A writer's claims that nobody may have heard of: counted, and disowned together."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from moonpool.pool.ports import U8, Status

if TYPE_CHECKING:
    from moonpool._core import SegmentClient

# What leaves open whether the agent did as it was told.
LOST = np.array([Status.UNREACHABLE, Status.CANCELLED, Status.EXPIRED], np.uint8)


def any_lost(status: U8) -> bool:
    """Is anything left open?"""
    return bool(status.any()) and bool(np.isin(status, LOST).any())


class OpenClaims:
    """This client's claims on one segment. A claim whose answer was lost may still be granted, to
    a writer that never hears of it. So once nothing else is open the row's epoch is renewed, which
    disowns it: the agent refuses it or takes its memory back."""

    def __init__(self, segment: SegmentClient) -> None:
        self._segment = segment
        self._lock = threading.Lock()
        self._open = 0
        self._lost = False

    def begin(self) -> int:
        """One claim call starts; the epoch to make it under."""
        with self._lock:
            self._open += 1
            return self._segment.row_epoch

    def end(self, count: int, lost: bool) -> None:
        """So many open claims have ended; `lost`: something may remain that nobody knows of."""
        with self._lock:
            self._open -= count
            self._lost = self._lost or lost
            if self._lost and self._open == 0:
                self._segment.renew_epoch()
                self._lost = False
