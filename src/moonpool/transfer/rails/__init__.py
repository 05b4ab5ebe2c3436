"""Many ways to one peer: transfers cut into slices, each on the rail that should finish it first.

The scheduler is pure and the striper has no thread; docs/transfer.md says what they promise.
"""

from moonpool.transfer.rails.base import RailCost, RailLimits, RailState, RailView
from moonpool.transfer.rails.scheduler import RailScheduler
from moonpool.transfer.rails.striped import StripedOp, Striper

__all__ = [
    "RailCost",
    "RailLimits",
    "RailScheduler",
    "RailState",
    "RailView",
    "StripedOp",
    "Striper",
]
