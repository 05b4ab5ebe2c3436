"""A simulated pool of one kind or another, put together from a seed: who is in it, and where."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moonpool.core.sections import MasterConfig
from tests.sim.client_actor import ClientActor
from tests.sim.history import History
from tests.sim.master_actor import MasterActor
from tests.sim.node_actor import NodeActor
from tests.sim.segment_actor import SegmentActor
from tests.sim.tier_actor import Medium, TierActor
from tests.sim.world import World

WORK_S = 6.0
TIGHT_BYTES = 24 << 10
OBJECT_BYTES_MAX = 4 << 10


@dataclass(frozen=True)
class Shape:
    """What kind of run it is; drawn from the seed."""

    nodes: int
    clients: int
    capacity: int
    tight: bool  # so small that puts evict
    faults: bool
    tiers: bool = False  # every node has a disk


def shape_of(seed: int) -> Shape:
    rng = random.Random(seed ^ 0x5EED)
    tight = rng.random() < 0.4
    shape = Shape(
        nodes=rng.randint(1, 3),
        clients=rng.randint(2, 4),
        capacity=TIGHT_BYTES if tight else (1 << 20),
        tight=tight,
        faults=rng.random() < 0.85,
    )
    if rng.random() < (0.6 if tight else 0.1):
        # All memory together holds less than there is, so that some of it lies below.
        capacity = TIGHT_BYTES // (2 * shape.nodes) if tight else shape.capacity
        shape = replace(shape, tiers=True, capacity=max(capacity, OBJECT_BYTES_MAX))
    return shape


class SimPool:
    """One master, its nodes, their clients. `close` leaves nothing of it."""

    def __init__(self, seed: int, shape: Shape, salt: int = 0xC11E) -> None:
        self.shape = shape
        self.world = World(seed)
        self.random = random.Random(seed ^ salt)
        self.history = History()
        self.directory = Path(tempfile.mkdtemp(prefix="moonpool-sim-", dir="/dev/shm"))
        self.segments: dict[bytes, SegmentActor] = {}
        self.nodes: list[NodeActor] = []
        self.tiers: list[TierActor] = []
        self._gather()
        self.end = self.world.now + WORK_S

    def _gather(self) -> None:
        self.master = MasterActor(self.world, self.config(), snapshots=self.world.seed % 2 == 1)
        for i in range(self.shape.nodes):
            self.add(NodeActor(self.world, f"node{i}", self.master, *self.place(i)))
        if self.shape.tiers:
            self.add_tiers()
        self.clients: list[ClientActor] = [
            ClientActor(self.world, f"client{i}", self.master, self.segments, "host-a")
            for i in range(self.shape.clients)
        ]
        if self.world.seed % 4 == 3:  # one reads all by the network, and so some of it twice
            far = ClientActor(self.world, "far", self.master, self.segments, "host-c")
            self.clients[-1] = far

    @property
    def masters(self) -> Sequence[MasterActor]:
        return [self.master]

    @property
    def leader(self) -> MasterActor:
        return self.master

    def config(self) -> MasterConfig:
        """Leases so short that a run of seconds sees many end."""
        settings: dict[str, Any] = {
            "node_lease_ms": 800,
            "clock_slack_ms": 50,
            "reservation_ms": 1500,
            "grace_ms": 850,
            "repair_delay_s": self.random.choice([0.2, 1.0, 30.0]),
            "slow_start_s": self.random.choice([0.0, 2.0]),
        }
        if self.shape.tiers:
            settings["offload"] = self.random.choice(["evict", "evict", "write"])
            settings["offload_watermark"] = self.random.choice([0.3, 0.6])
            settings["promote_reads"] = self.random.choice([1, 2])
        return MasterConfig(**settings)

    def place(self, number: int) -> tuple[Path, int, str]:
        """Of node `number`: file, capacity, host."""
        host = "host-a" if number % 2 == 0 else "host-b"
        return self.directory / f"node{number}.seg", self.shape.capacity, host

    def add(self, node: NodeActor) -> None:
        node.peers = self.segments
        self.segments[node.incarnation] = node
        self.nodes.append(node)

    def add_tiers(self) -> None:
        """One for every node, of one kind: roomy, or smaller than what is to lie there, or fuller
        than its master believes."""
        limit, capacity = self.random.choice(
            [(1 << 20, 256 << 10), (1 << 20, 8 << 10), (74 << 10, 256 << 10)]
        )
        medium = Medium(limit, capacity, slow=self.random.random() < 0.3)
        for node in self.nodes:
            name = f"{node.name}.disk"
            tier = self.make_tier(name, node, self.directory / name, medium)
            tier.peers = self.segments
            tier.start()
            node.tier = tier
            self.tiers.append(tier)

    def make_tier(self, name: str, node: NodeActor, home: Path, medium: Medium) -> TierActor:
        return TierActor(self.world, name, node.name, self.master, home, medium, node.host)

    def close(self) -> None:
        for process in (*self.clients, *self.nodes):
            process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
