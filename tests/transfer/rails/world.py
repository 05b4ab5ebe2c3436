"""Simulated links on one clock under the shipped striper; the same calls give the same history."""

import math
from typing import Any

import numpy as np

from moonpool.core.clock import ManualClock
from moonpool.transfer.base import Transport
from moonpool.transfer.rails import RailLimits, StripedOp, Striper
from moonpool.transfer.segment import Segment
from moonpool.transfer.sim import SimTransport
from moonpool.transfer.sim_link import SimLink
from tests.transfer.conftest import stamped, transfer

KIB, MIB = 1 << 10, 1 << 20


class World:
    """Links by name to one peer, "peer"."""

    def __init__(self, seed: int, limits: RailLimits | None = None, **links: SimLink) -> None:
        self.clock = ManualClock()
        limits = limits or RailLimits(slice_bytes=64 * KIB, overdue_min_s=0.001)
        self.striper = Striper(self.clock.monotonic, seed, limits)
        self.links: dict[str, SimTransport] = {}
        for at, (name, link) in enumerate(links.items()):
            self.links[name] = SimTransport(self.clock, seed + at, link)
            self.striper.add_rail("peer", name, self.links[name])

    def add(self, name: str, transport: Transport) -> None:
        self.striper.add_rail("peer", name, transport)

    def move(self, op: StripedOp, until_s: float = math.inf) -> None:
        """Lets things happen until `op` is over or that moment comes."""
        for _ in range(1_000_000):
            wake_s = self.striper.pump()
            if op.done():
                return
            soonest = min(self.links.values(), key=lambda link: link.next_ns)
            at_s = min(soonest.next_ns / 1e9, wake_s, until_s)
            assert at_s < math.inf, "nothing will ever happen again"
            if soonest.next_ns / 1e9 <= at_s:
                soonest.step()
            else:
                self.clock.advance(max(0.0, at_s - self.clock.monotonic()) + 1e-9)
            if at_s >= until_s:
                return
        raise AssertionError("a million things happened, and the op is not over")

    def read(self, near: Segment, far: Segment, block: int = 16 * KIB, **how: Any) -> StripedOp:
        """All of `far` in blocks, due after a simulated minute unless `deadline_s` says else."""
        how = {"deadline_s": self.clock.monotonic() + 60.0, "priority": 0, **how}
        blocks = [(at, at, min(block, far.nbytes - at)) for at in range(0, far.nbytes, block)]
        kind, priority = how.pop("kind", "read"), how.pop("priority")
        request = transfer(kind, near, far, blocks, **how)
        return self.striper.submit("peer", request._replace(priority=priority))

    def view(self, name: str) -> Any:
        return next(view for view in self.striper.views() if view.rail == name)


def pair(nbytes: int) -> tuple[Segment, Segment]:
    """Zeros here, stamped bytes there."""
    near = Segment(np.zeros(nbytes, dtype=np.uint8), name="near")
    return near, Segment(stamped(nbytes, 5), name="far")
