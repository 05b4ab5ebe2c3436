"""Random ops over simulated rails that lose, stall, die and come back: episode after episode from
one seed, every byte looked at, on simulated time.
"""

import random
import time

import numpy as np

from moonpool.transfer.base import BlockStatus
from moonpool.transfer.rails import RailLimits, StripedOp
from moonpool.transfer.segment import Segment
from moonpool.transfer.sim_link import SimLink
from tests.transfer.rails.world import KIB, World, pair

_OPS = 6
_BYTES = 256 * KIB


def soak_simulated(seed: int, seconds: float) -> int:
    """Runs for so long; returns how many episodes that were."""
    drawn, until_s, episodes = random.Random(seed), time.monotonic() + seconds, 0
    while time.monotonic() < until_s:
        episode(drawn.randrange(2**32))
        episodes += 1
    return episodes


def episode(seed: int) -> None:
    """A few ops at once over two to four rails. Raises AssertionError naming the seed."""
    draw = random.Random(seed)
    names = "abcd"[: draw.randrange(2, 5)]
    limits = RailLimits(slice_bytes=draw.choice((16, 64)) * KIB, overdue_min_s=0.001)
    world = World(seed, limits, **{name: _link(draw) for name in names})
    running: list[tuple[StripedOp, Segment, Segment, str, int]] = []
    for _ in range(_OPS):
        near, far = pair(_BYTES)
        kind, block = draw.choice(("read", "write")), draw.choice((4 * KIB, 50_001, _BYTES))
        deadline_s = world.clock.monotonic() + draw.choice((0.003, 0.05, 3.0))
        priority = draw.choice((0, 0, 1))
        op = world.read(near, far, block, kind=kind, deadline_s=deadline_s, priority=priority)
        running.append((op, near, far, kind, block))
        world.move(op, until_s=world.clock.monotonic() + draw.random() * 0.002)
        _disturb(draw, world)
        if draw.random() < 0.1:
            draw.choice(running)[0].cancel()
    for op, *_ in running:
        world.move(op)
    for one in world.links.values():
        one.run_for(1.0)
    assert world.striper.scheduler.open_ops == 0, f"episode {seed}: ops are left"
    for op, near, far, kind, block in running:
        _look(seed, op, near, far, kind, block)


def _look(seed: int, op: StripedOp, near: Segment, far: Segment, kind: str, block: int) -> None:
    src, dst = (far, near) if kind == "read" else (near, far)
    before = np.zeros(_BYTES, dtype=np.uint8) if kind == "read" else pair(_BYTES)[1].array
    source = pair(_BYTES)[1].array if kind == "read" else np.zeros(_BYTES, dtype=np.uint8)
    assert np.array_equal(src.array, source), f"episode {seed}: the source changed"
    moved = dst.array == source
    assert (moved | (dst.array == before)).all(), f"episode {seed}: nobody's bytes in a {kind}"
    for at in np.flatnonzero(op.result.status == BlockStatus.OK):
        place = slice(int(at) * block, (int(at) + 1) * block)
        assert moved[place].all(), f"episode {seed}: block {at} of a {kind} is not there"


def _link(draw: random.Random) -> SimLink:
    return SimLink(
        bytes_per_s=draw.choice((100e6, 300e6, 1e9)),
        jitter_s=draw.choice((0.0, 50e-6)),
        loss=draw.choice((0.0, 0.0, 0.01)),
        reorder=draw.choice((0.0, 0.1)),
        chunk_bytes=16 * KIB,
    )


def _disturb(draw: random.Random, world: World) -> None:
    link = draw.choice(list(world.links.values()))
    what = draw.choice(("die", "revive", "revive", "stall", "nothing", "nothing"))
    if what == "die":
        link.kill()
    elif what == "revive":
        link.revive()
    elif what == "stall":
        link.stall(draw.choice((0.005, 0.1)))
