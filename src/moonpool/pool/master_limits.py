"""Bounds of the master: of its own tables, and of what one request may ask for."""

from __future__ import annotations

from dataclasses import dataclass

BATCH_MAX = 65_536  # keys in one request
LIST_ROWS = 65_536  # rows looked at in one step over all rows
WAIT_MS_MAX = 300_000
DEADLINE_MS = 5_000  # of a held put that names no deadline
SWEEP_S = 1.0


@dataclass(frozen=True, slots=True)
class MasterLimits:
    """Bounds of the master's own tables."""

    waiters_max: int = 65_536
    held_puts_max: int = 4_096
    followers_max: int = 1_024
    tombstones_max: int = 65_536
    retire_waits_max: int = 65_536
    reservations_max: int = 1_000_000
    leases_max: int = 65_536
    segments_max: int = 1_024
    copied_rows_a_step: int = 512


def wait_until(now: float, wait_ms: int) -> float:
    """The moment a request that may wait is answered at the latest."""
    return now + min(max(wait_ms, 0), WAIT_MS_MAX) / 1000
