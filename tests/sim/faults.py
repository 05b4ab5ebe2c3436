"""What happens to a simulated pool: processes killed, stopped, cut off, tiers hung or lost."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.client_actor import ClientActor
from tests.sim.node_actor import NodeActor
from tests.sim.pool import WORK_S, SimPool
from tests.sim.segment_actor import SegmentActor
from tests.sim.world import Process

REPORT_S = 1.5  # a returning node has rejoined and reported


class Faults:
    """Drawn from the seed. `work` is what a client that came back does next."""

    def __init__(self, pool: SimPool, work: Callable[[ClientActor], None]) -> None:
        self.pool = pool
        self.world = pool.world
        self.random = pool.random
        self.history = pool.history
        self._work = work

    def schedule(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            self.world.after(self.random.uniform(0.3, WORK_S), self._fault)

    def _fault(self) -> None:
        kinds = ["kill_master", "kill_node", "kill_client", "stop", "cut", "kill_both"]
        if self.pool.tiers:
            kinds += ["hang_tier", "kill_node"]
        kind = self.random.choice(kinds)
        pause = self.random.choice([0.05, 0.3, 1.0, 2.0])
        if kind == "hang_tier":
            self._stop(self.random.choice(self.pool.tiers), pause)
        elif kind == "kill_master":
            self._kill_master(pause)
        elif kind == "kill_node":
            self._kill_node(self.random.choice(self.pool.nodes), pause)
        elif kind == "kill_both":
            self._kill_master(pause)
            self._kill_node(self.random.choice(self.pool.nodes), self.random.uniform(0.05, 2.0))
        elif kind == "kill_client":
            client = self.random.choice(self.pool.clients)
            client.kill()
            self.world.after(pause, lambda: self._revive(client))
        elif kind == "stop":
            some = [*self.pool.masters, *self.pool.nodes, *self.pool.clients]
            self._stop(self.random.choice(some), pause)
        else:
            connections = [c for one in self.pool.masters for c in one.sessions.values()]
            if connections:
                connection = self.random.choice(connections)
                self.world.note(f"cut of {connection.ends[0].name} for {pause} s")
                connection.hold(pause)
                self._away(connection.ends[0], pause)
                if self.random.random() < 0.5:
                    self.world.after(pause / 2, connection.break_off)

    def _stop(self, process: Process, pause: float) -> None:
        process.stop()
        self._away(process, pause)
        self.world.after(pause, process.resume)

    def _away(self, process: Process, pause: float) -> None:
        """From now on, and until its next report after the pause. A tier that goes and comes with
        its node is away under its node's name."""
        if isinstance(process, SegmentActor):
            now = self.world.now
            self.history.outages.away.append((process.name, now, now + pause + REPORT_S))

    def _kill_master(self, pause: float) -> None:
        leader = self.pool.leader
        if leader.alive:
            self.history.outages.master_deaths.append(self.world.now)
            leader.kill()
            self.world.after(pause, self.restart_masters)

    def restart_masters(self) -> None:
        """Those that are dead."""
        for master in self.pool.masters:
            if not master.alive:
                self.world.note(f"{master.name} restarted")
                master.start()

    def _kill_node(self, node: NodeActor, pause: float) -> None:
        if not node.alive:
            return
        node.kill()
        self.world.after(pause, node.restart)
        later = 0.0
        if node.tier is not None:
            later = self.random.choice([0.0, 0.0, 0.0, 0.5, 2.0])
            wiped = self.random.random() < 0.2
            self.world.after(pause + later, lambda: self._restart_tier(node, wiped))
        self._away(node, pause + later)

    def _restart_tier(self, node: NodeActor, wiped: bool) -> None:
        """With what it had, or, when its disk was lost, with nothing."""
        assert node.tier is not None
        if node.alive:
            node.tier.restart(wiped=wiped)

    def _revive(self, client: ClientActor) -> None:
        if not client.alive:
            client.restart()
            self._work(client)
