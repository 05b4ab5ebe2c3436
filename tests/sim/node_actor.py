"""A simulated node: a real segment in a file that outlives it, and perhaps a tier below."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from moonpool import _core
from moonpool.pool import messages as m
from moonpool.pool.node_copies import keep
from moonpool.pool.node_machine import NodeMachine
from tests.sim.master_actor import MasterActor
from tests.sim.segment_actor import Pieces, SegmentActor
from tests.sim.tier_actor import TierActor
from tests.sim.world import World


class SimAgent:
    """A real segment agent on the world's clock. `valid_until` is kept by the world: readers in
    the simulation ask it instead of the machine's boot clock."""

    def __init__(self, node: NodeActor, agent: _core.SegmentAgent) -> None:
        self._node = node
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    @property
    def valid_until_ns(self) -> int:
        return self._node.valid_until_ns

    def set_valid_until(self, boottime_ns: int) -> None:
        self._node.valid_until_ns = boottime_ns

    def drain(self) -> int:
        return self._agent.drain(self._node.world.boottime_ns())

    def retire(self, slot: Any, generation: Any, term: int, hold_ms: int = 0) -> Any:
        now = self._node.world.boottime_ns()
        return self._agent.retire(slot, generation, term, hold_ms, now)


class NodeActor(SegmentActor):
    """A node's memory: its segment file outlives it. Its tier is a part of the same process, in a
    thread of its own."""

    tier: TierActor | None = None

    def __init__(
        self,
        world: World,
        name: str,
        master: MasterActor,
        path: Path,
        capacity: int,
        host: str,
        slots: int = 256,
    ) -> None:
        super().__init__(world, name, master, host)
        self.path = path
        self.capacity = capacity
        self._valid_until_ns = 0
        self._agent: _core.SegmentAgent | None = _core.SegmentAgent.create(
            str(path), capacity, capacity, slots, 16, b"", False, 64
        )
        self.incarnation = self._agent.incarnation
        self._begin()

    @property
    def agent(self) -> _core.SegmentAgent:
        assert self._agent is not None, f"{self.name} is dead"
        return self._agent

    @property
    def valid_until_ns(self) -> int:
        return self._valid_until_ns

    @valid_until_ns.setter
    def valid_until_ns(self, boottime_ns: int) -> None:
        self._valid_until_ns = boottime_ns

    def new_machine(self) -> NodeMachine:
        endpoint = m.SegmentEndpoint(
            0,
            self.incarnation,
            self.name,
            self.host,
            tcp=self.name,
            path=str(self.path),
            capacity_bytes=self.capacity,
        )
        return NodeMachine(SimAgent(self, self.agent), endpoint, 0.2)

    def _begin(self) -> None:
        self._serve(self.new_machine())

    def stop(self) -> None:
        super().stop()
        if self.tier is not None:
            self.tier.stop()

    def resume(self) -> None:
        super().resume()
        if self.tier is not None:
            self.tier.resume()

    def kill(self) -> None:
        super().kill()
        if self.tier is not None:
            self.tier.kill()

    def died(self) -> None:
        super().died()
        self.agent.close()  # the kernel gives the lock back; the file stays as it is
        self._agent = None

    def restart(self) -> None:
        if self.alive:
            return
        self.world.note(f"{self.name} restarted")
        self.alive = True
        self._agent = _core.SegmentAgent.adopt(str(self.path))
        self._begin()

    def read(
        self, slots: list[int], generations: list[int], answer: Callable[[Pieces], None]
    ) -> None:
        data: Pieces = []
        for slot, generation in zip(slots, generations, strict=True):
            valid = self.world.boottime_ns() < self.valid_until_ns
            got = self.agent.read(slot, generation) if valid else -1
            data.append(got if isinstance(got, bytes) else None)
        answer(data)

    def keep(self, order: m.Copy, data: Pieces, answer: Callable[[m.Copied], None]) -> None:
        answer(keep(self.agent, order, data, self.world.boottime_ns()))
