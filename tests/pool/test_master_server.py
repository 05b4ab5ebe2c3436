"""What the master's shell gives its machine."""

from __future__ import annotations

from moonpool.core.clock import ManualClock
from moonpool.core.sections import MasterConfig
from moonpool.pool.master import MasterServer


def test_the_first_term_is_the_wall_clock() -> None:
    """So that a later master rules under a later term, whichever nodes are away."""
    clock = ManualClock(wall_ms=1_700_000_000_123)
    first = MasterServer(MasterConfig(port=0), clock)
    clock.advance(0.001)
    second = MasterServer(MasterConfig(port=0), clock)
    assert first.machine.catalog.term == 1_700_000_000_123
    assert second.machine.catalog.term == 1_700_000_000_124
