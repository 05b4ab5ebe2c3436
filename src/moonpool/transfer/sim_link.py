"""How a simulated link behaves, and what it says about each thing that happens."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from moonpool.core.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class SimLink:
    """How the link behaves. Probabilities are per chunk, drawn from the transport's seed.

    `delay_s` each chunk, plus up to `jitter_s` (uniform); `bytes_per_s` is shared by all ops;
    a `loss` chunk never arrives (its op expires); a `reorder` chunk comes `reorder_s` later;
    once `stall_at_byte` bytes have arrived nothing does for `stall_s`; at `die_at_byte` the peer
    is gone, with exactly that many bytes arrived.
    """

    delay_s: float = 50e-6
    jitter_s: float = 0.0
    bytes_per_s: float = math.inf
    loss: float = 0.0
    reorder: float = 0.0
    reorder_s: float = 0.001
    stall_at_byte: int | None = None
    stall_s: float = math.inf
    die_at_byte: int | None = None
    chunk_bytes: int = 65_536

    def __post_init__(self) -> None:
        if not (0 <= self.loss <= 1 and 0 <= self.reorder <= 1):
            raise BadInput(f"loss {self.loss} and reorder {self.reorder} must be within 0..1")
        if self.chunk_bytes < 1 or not self.bytes_per_s > 0:
            raise BadInput("chunk_bytes and bytes_per_s must be positive")
        for what in (self.delay_s, self.jitter_s, self.reorder_s):
            if not 0 <= what < math.inf:
                raise BadInput(f"delay {what!r} s must be finite and not negative")


class SimEvent(NamedTuple):
    """One line of the trace. `what`: post, arrive, lost, stall, die, done, failed..., `op` counts
    from 0 in order of submission, `offset` and `nbytes` lie inside block `block`."""

    at_ns: int
    what: str
    op: int
    block: int = -1
    offset: int = 0
    nbytes: int = 0
