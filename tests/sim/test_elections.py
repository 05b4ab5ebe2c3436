"""Leaders killed, stopped and woken, nodes that return, an etcd that is away: from seeds.

Replay one: pytest tests/sim -k one_election --seed N.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest

from moonpool.core.sections import MasterConfig
from tests.sim.actors import ClientActor, NodeActor
from tests.sim.elections import ElectedMaster, FollowingClient, FollowingNode, SimEtcd
from tests.sim.history import History
from tests.sim.scenario import WORK_S, Scenario, Shape, shape_of
from tests.sim.world import World

SEEDS_A_TEST = 10


class Elections(Scenario):
    """The scenario of the pool, with three masters instead of one."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.shape = shape or shape_of(seed)
        self.world = World(seed)
        self.random = random.Random(seed ^ 0xE1EC)
        self.history = History()
        self.directory = Path(tempfile.mkdtemp(prefix="moonpool-sim-", dir="/dev/shm"))
        self.etcd = SimEtcd(self.world)
        config = MasterConfig(
            node_lease_ms=800,
            clock_slack_ms=50,
            reservation_ms=1500,
            grace_ms=850,
            repair_delay_s=self.random.choice([0.2, 1.0, 30.0]),
            slow_start_s=self.random.choice([0.0, 2.0]),
        )
        self.rulers = [ElectedMaster(self.world, f"master{i}", config, self.etcd) for i in range(3)]
        self.nodes: list[NodeActor] = [
            FollowingNode(
                self.world,
                f"node{i}",
                self.rulers,
                self.directory / f"node{i}.seg",
                self.shape.capacity,
                "host-a" if i % 2 == 0 else "host-b",
            )
            for i in range(self.shape.nodes)
        ]
        by_incarnation = {node.incarnation: node for node in self.nodes}
        for node in self.nodes:
            node.peers = by_incarnation
        self.clients: list[ClientActor] = [
            FollowingClient(
                self.world, f"client{i}", self.rulers, by_incarnation, "host-a", self.etcd
            )
            for i in range(self.shape.clients)
        ]
        self.end = self.world.now + WORK_S

    @property
    def masters(self) -> list[ElectedMaster]:
        return self.rulers

    @property
    def leader(self) -> ElectedMaster:
        """Who leads as far as etcd knows; any other when that one is dead."""
        names = {ruler.name: ruler for ruler in self.rulers}
        named = names.get(self.etcd.leader.address) if self.etcd.leader else None
        return named if named is not None and named.alive else self.random.choice(self.rulers)

    def _fault(self) -> None:
        kind = self.random.choice(["kill", "kill", "stop", "stop", "etcd", "other", "other"])
        pause = self.random.choice([0.1, 0.5, 1.2, 2.5])
        leader = self.leader
        if kind == "other":
            super()._fault()
        elif kind == "etcd":
            self.world.note(f"etcd away for {pause} s")
            self.etcd.away_until = self.world.now + pause
        elif kind == "kill":
            self._kill_master(pause)
        else:
            self.history.outages.master_deaths.append(self.world.now)
            leader.stop()
            self.world.after(pause, leader.resume)

    def _kill_master(self, pause: float) -> None:
        leader = self.leader
        if leader.alive:
            self.history.outages.master_deaths.append(self.world.now)
            leader.kill()
            self.world.after(pause, self._restart_master)

    def _restart_master(self) -> None:
        for ruler in self.rulers:
            if not ruler.alive:
                self.world.note(f"{ruler.name} restarted")
                ruler.start()


def check(seed: int) -> int:
    """How many terms there were."""
    scenario = Elections(seed)
    try:
        problems = scenario.run()
        if problems:
            found = "\n".join(problems[:10])
            trace = "\n".join(scenario.world.trace[-60:])
            pytest.fail(
                f"seed {seed} {scenario.shape}\n{found}\n"
                f"replay: pytest tests/sim -k one_election --seed {seed}\n{trace}"
            )
        return sum("leads under" in line for line in scenario.world.trace)
    finally:
        scenario.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first_seed" in metafunc.fixturenames:
        seeds = metafunc.config.getoption("--seeds") // 15
        metafunc.parametrize("first_seed", range(0, seeds, SEEDS_A_TEST))


@pytest.mark.soak
def test_promises_hold_over_elections(first_seed: int) -> None:
    terms = [check(seed) for seed in range(first_seed, first_seed + SEEDS_A_TEST)]
    assert max(terms) > 1, "no leader was ever replaced"


def test_one_election(request: pytest.FixtureRequest) -> None:
    check(request.config.getoption("--seed"))
