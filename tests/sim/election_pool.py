"""The simulated pool with three masters instead of one, and what happens to those that lead."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.sim.elections import ElectedMaster, SimEtcd
from tests.sim.faults import Faults
from tests.sim.followers import FollowingClient, FollowingNode, FollowingTier
from tests.sim.node_actor import NodeActor
from tests.sim.pool import Shape, SimPool
from tests.sim.scenario import Scenario
from tests.sim.tier_actor import Medium, TierActor


class ElectionPool(SimPool):
    """Masters stand by until one is elected; nodes report to all, clients follow."""

    def __init__(self, seed: int, shape: Shape) -> None:
        super().__init__(seed, shape, salt=0xE1EC)

    def _gather(self) -> None:
        self.etcd = SimEtcd(self.world)
        config = self.config()
        self.rulers = [ElectedMaster(self.world, f"master{i}", config, self.etcd) for i in range(3)]
        for i in range(self.shape.nodes):
            self.add(FollowingNode(self.world, f"node{i}", self.rulers, *self.place(i)))
        if self.shape.tiers:
            self.add_tiers()
        self.clients = [
            FollowingClient(
                self.world, f"client{i}", self.rulers, self.segments, "host-a", self.etcd
            )
            for i in range(self.shape.clients)
        ]

    def make_tier(self, name: str, node: NodeActor, home: Path, medium: Medium) -> TierActor:
        return FollowingTier(self.world, name, node.name, self.rulers, home, medium, node.host)

    @property
    def masters(self) -> Sequence[ElectedMaster]:
        return self.rulers

    @property
    def leader(self) -> ElectedMaster:
        """Who leads as far as etcd knows; any other when that one is dead."""
        names = {ruler.name: ruler for ruler in self.rulers}
        named = names.get(self.etcd.leader.address) if self.etcd.leader else None
        return named if named is not None and named.alive else self.random.choice(self.rulers)


class ElectionFaults(Faults):
    """Leaders killed, stopped and woken, an etcd that is away, and the pool's own faults."""

    pool: ElectionPool

    def _fault(self) -> None:
        kind = self.random.choice(["kill", "kill", "stop", "stop", "etcd", "other", "other"])
        pause = self.random.choice([0.1, 0.5, 1.2, 2.5])
        if kind == "other":
            super()._fault()
        elif kind == "etcd":
            self.world.note(f"etcd away for {pause} s")
            self.pool.etcd.away_until = self.world.now + pause
        elif kind == "kill":
            self._kill_master(pause)
        else:
            leader = self.pool.leader
            self.history.outages.master_deaths.append(self.world.now)
            leader.stop()
            self.world.after(pause, leader.resume)


class Elections(Scenario):
    """The scenario of the pool, with elections."""

    def make_pool(self, seed: int, shape: Shape) -> ElectionPool:
        return ElectionPool(seed, shape)

    def make_faults(self) -> ElectionFaults:
        assert isinstance(self.pool, ElectionPool)
        return ElectionFaults(self.pool, self.work.act)
