"""Few hot keys, little memory, many clients, everything killed and stopped at random: no wrong byte
is ever read, and when it is quiet nothing is left over.

STRESS_S=600 in the environment makes it long; FAULTS_SEED replays one as far as processes can.
"""

import os
import random
import time

import pytest

from moonpool.core.errors import MoonpoolError
from moonpool.pool.cluster import Child
from moonpool.pool.pool import Pool
from tests.faults.pool_rig import (
    LEASE_MS,
    MIB,
    Rig,
    Role,
    await_usage,
    eventually,
    live_nodes,
    running,
    seed,
    usage,
)
from tests.faults.stress_client import number_of

pytestmark = pytest.mark.faults

CLIENTS = 4
SECONDS = float(os.environ.get("STRESS_S", 4))


class Crowd:
    """Clients that come and go; what they said against the pool."""

    def __init__(self, rig: Rig, draw: random.Random) -> None:
        self._rig = rig
        self._draw = draw
        self._started = 0
        self.calls = 0
        self.violations: list[str] = []
        self.members: list[Role] = []

    def join(self, count: int = 1) -> None:
        fresh = [self._join() for _ in range(count)]
        for role in fresh:
            role.expect("ready")
        self.members += fresh

    def _join(self) -> Role:
        name, number = f"c{self._started}", self._draw.randrange(1 << 30)
        shared_memory = self._started % 2 == 0
        self._started += 1
        return self._rig.client("stress_client", name, number, shared_memory=shared_memory)

    def hear(self, lines: list[list[str]]) -> None:
        self.violations += [" ".join(line[1:]) for line in lines if line[0] == "V"]
        self.calls += sum(int(line[1]) for line in lines if line[0] == "over")

    def kill_one(self) -> None:
        self.hear(self.members.pop(self._draw.randrange(len(self.members))).kill())

    def end(self) -> None:
        for role in self.members:
            role.tell("over")
        for role in self.members:
            while True:
                line = role.line()
                self.hear([line])
                if line[0] == "over":
                    print(*line)
                    break
            role.kill()  # it has ended; closes its pipes
        self.members.clear()


class Trouble:
    def __init__(self, rig: Rig, crowd: Crowd, draw: random.Random) -> None:
        self._rig, self._crowd, self._draw = rig, crowd, draw

    def pause(self) -> None:
        time.sleep(self._draw.choice((0.01, 0.1, 0.4)))

    def kill_node(self) -> None:
        self._rig.kill(self._draw.choice(self._rig.nodes))
        self.pause()
        self._rig.restart()

    def kill_master(self) -> None:
        self._rig.kill(self._rig.master)
        self.pause()
        self._rig.restart()

    def kill_all(self) -> None:
        self._rig.kill(self._rig.master, *self._rig.nodes)
        self._rig.restart()

    def stop_node(self) -> None:
        self._stop(self._draw.choice(self._rig.nodes))

    def stop_master(self) -> None:
        self._stop(self._rig.master)

    def _stop(self, child: Child) -> None:
        """Shorter or longer than a lease lasts."""
        self._rig.stop(child)
        time.sleep(self._draw.choice((0.1, 0.5, 1.5 * LEASE_MS / 1000)))
        self._rig.wake(child.pid)

    def stop_client(self) -> None:
        role = self._draw.choice(self._crowd.members)
        role.stop()
        time.sleep(self._draw.choice((0.1, 1.0)))
        role.wake()

    def kill_client(self) -> None:
        self._crowd.kill_one()
        self.pause()
        self._crowd.join()

    def any(self) -> None:
        trouble = self._draw.choice(
            (
                self.kill_node,
                self.kill_master,
                self.kill_all,
                self.stop_node,
                self.stop_master,
                self.stop_client,
                self.kill_client,
                self.kill_client,
            )
        )
        print(trouble.__name__)
        trouble()
        time.sleep(self._draw.uniform(0, 0.5))


def settled(pool: Pool, nodes: int) -> None:
    def whole() -> bool:
        try:
            return live_nodes(pool) == nodes and pool.stat()["recovering"] is False
        except MoonpoolError:
            return False

    eventually(whole, "a pool that is whole again")


def nothing_left_over(pool: Pool) -> None:
    """No write, retirement or pin is open, and each sealed object is one the master knows."""
    await_usage(pool, writing=0, retired=0, pins=0)

    def agreed() -> bool:
        stat = pool.stat()
        return (
            usage(pool)["sealed"] == stat["replicas"]
            and stat["reservations"] == stat["waiters"] == stat["retire_orders"] == 0
        )

    try:
        eventually(agreed, "master and agents of one mind")
    except AssertionError:
        raise AssertionError(f"{pool.stat()}") from None


def all_right(pool: Pool) -> None:
    keys = [item.key for item in pool.list()]
    for key, answer in zip(keys, pool.get_many(keys), strict=True):
        data = getattr(answer, "data", None)
        assert data is None or number_of(key.decode(), data) is not None, key


def stress(seconds: float, trouble: bool) -> None:
    draw = seed()
    with running(nodes=2, memory=1 * MIB, headroom=2 * MIB) as rig:
        crowd = Crowd(rig, draw)
        crowd.join(CLIENTS)
        end = time.monotonic() + seconds
        troubles = Trouble(rig, crowd, draw)
        while time.monotonic() < end:
            if trouble:
                troubles.any()
            else:
                time.sleep(0.1)
        pool = rig.connect()
        settled(pool, 2)
        time.sleep(0.5)
        crowd.end()
        assert crowd.violations == []
        assert crowd.calls
        nothing_left_over(pool)
        for reader in (pool, rig.connect(shared_memory=False)):
            all_right(reader)


@pytest.mark.parametrize("trouble", [False, True])
@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 170)
def test_stress(trouble: bool) -> None:
    stress(SECONDS if trouble else SECONDS / 3, trouble)
