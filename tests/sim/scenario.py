"""One seeded run: a pool, clients at work, faults, then quiet and the accounts."""

from __future__ import annotations

from tests.sim.accounts import Accounts
from tests.sim.faults import Faults
from tests.sim.pool import Shape, SimPool, shape_of
from tests.sim.work import Work

QUIET_S = 8.0
LATE_S = 3.0  # what began in time may end


class Scenario:
    """Of one seed; `close` when its problems are known."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.pool = self.make_pool(seed, shape or shape_of(seed))
        self.work = Work(self.pool)
        self.faults = self.make_faults()

    def make_pool(self, seed: int, shape: Shape) -> SimPool:
        return SimPool(seed, shape)

    def make_faults(self) -> Faults:
        return Faults(self.pool, self.work.act)

    def close(self) -> None:
        self.pool.close()

    def run(self) -> list[str]:
        """The problems found; empty when every promise was kept."""
        pool = self.pool
        for client in pool.clients:
            client.later(
                0.3 + pool.random.uniform(0, 0.1),
                lambda client=client: self.work.act(client),  # type: ignore[misc]
            )
        if pool.shape.faults:
            self.faults.schedule()
        pool.world.run(pool.end + LATE_S)
        self._recover()
        pool.world.run(pool.world.now + QUIET_S)
        Accounts(pool).check()
        return pool.history.problems

    def _recover(self) -> None:
        """Everybody is back."""
        pool = self.pool
        for process in (*pool.masters, *pool.nodes, *pool.tiers, *pool.clients):
            process.resume()
        self.faults.restart_masters()
        for node in pool.nodes:
            node.restart()
        for tier in pool.tiers:
            tier.restart()
        for client in pool.clients:
            client.restart()
