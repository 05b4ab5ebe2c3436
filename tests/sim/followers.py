"""Simulated segments that report to several masters, and clients that find the one that leads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moonpool.pool import messages as m
from moonpool.pool.node_machine import NodeMachine
from moonpool.pool.node_masters import NodeMasters, Tell
from moonpool.pool.protocol import MasterLost
from tests.sim.client_actor import ClientActor
from tests.sim.elections import ElectedMaster, SimEtcd
from tests.sim.master_actor import CONNECT_RETRY_S
from tests.sim.node_actor import NodeActor
from tests.sim.segment_actor import SegmentActor
from tests.sim.tier_actor import Medium, TierActor
from tests.sim.world import Connection, World


class Following(SegmentActor):
    """Connected to all of `rulers`; obeys one."""

    rulers: Sequence[ElectedMaster]
    masters: NodeMasters
    links: dict[int, Connection]
    _next_link = 1

    def _serve(self, machine: NodeMachine) -> None:
        self.machine = machine
        self.masters = NodeMasters(machine)
        self.links = {}
        for master in self.rulers:
            self._dial(master)
        self._tick()

    def died(self) -> None:
        for connection in self.links.values():
            connection.break_off()
        self.links = {}
        self._connection = None
        super().died()

    def _dial(self, master: ElectedMaster) -> None:
        number, self._next_link = self._next_link, self._next_link + 1

        def broken() -> None:
            if self.links.pop(number, None) is not None:
                self.masters.disconnected(number)
                self.later(CONNECT_RETRY_S, lambda: self._dial(master))

        connection = master.connect(
            self, "node", self.host, lambda message: self._said(number, message), broken
        )
        if connection is None:
            self.later(CONNECT_RETRY_S, lambda: self._dial(master))
            return
        self.links[number] = connection
        self._tell(self.masters.connected(number, self.world.now))

    def _said(self, number: int, message: object) -> None:
        body = m.decode(message).body  # type: ignore[arg-type]
        self._heard(body)
        self._tell(self.masters.handle(number, body, self.world.now, self.world.boottime_ns()))
        self._connection = self.links.get(number)
        while self.machine.copies:
            self._fetch(self.machine.copies.popleft())
        while number in self.links and self.masters.pending(number):
            self._tell([self.masters.chunk(number)])
        self._tell(self.masters.tick(self.world.now, self.world.boottime_ns()))

    def _tick(self) -> None:
        self._tell(self.masters.tick(self.world.now, self.world.boottime_ns()))
        for number in list(self.links):
            while number in self.links and self.masters.pending(number):
                self._tell([self.masters.chunk(number)])
        self.later(0.05, self._tick)

    def _tell(self, tells: list[Tell]) -> None:
        for number, message in tells:
            if number in self.links:
                self.links[number].send(0, m.encode(message, 0))


class FollowingNode(Following, NodeActor):
    """A node's memory."""

    def __init__(
        self,
        world: World,
        name: str,
        rulers: Sequence[ElectedMaster],
        path: Path,
        capacity: int,
        host: str,
    ) -> None:
        self.rulers = rulers
        super().__init__(world, name, rulers[0], path, capacity, host)


class FollowingTier(Following, TierActor):
    """A node's disk."""

    def __init__(
        self,
        world: World,
        name: str,
        node: str,
        rulers: Sequence[ElectedMaster],
        directory: Path,
        medium: Medium,
        host: str,
    ) -> None:
        self.rulers = rulers
        super().__init__(world, name, node, rulers[0], directory, medium, host)


class FollowingClient(ClientActor):
    """Asks the master that etcd names; is told when another one leads."""

    def __init__(
        self,
        world: World,
        name: str,
        rulers: list[ElectedMaster],
        nodes: dict[bytes, SegmentActor],
        host: str,
        etcd: SimEtcd,
    ) -> None:
        super().__init__(world, name, rulers[0], nodes, host)
        self.rulers = {ruler.name: ruler for ruler in rulers}
        self.etcd = etcd
        etcd.watchers.append(lambda name: self.later(world.delay(), lambda: self._led_by(name)))

    def _led_by(self, name: str) -> None:
        if self.master is not self.rulers[name]:
            self.master = self.rulers[name]
            if self._connection is not None:
                self._connection.break_off()
                self._broken()

    def _find(self) -> None:
        if self.etcd.leader is not None:
            self.master = self.rulers[self.etcd.leader.address]

    def _receive(self, message: object) -> None:
        envelope = m.decode(message)  # type: ignore[arg-type]
        body = envelope.body
        if isinstance(body, m.Failure) and body.code == "not_leader":
            if envelope.id == self._request:
                if self._connection is not None:
                    self._connection.break_off()
                self._connection = None
                self._find()
                self._answer(MasterLost(body.text, code=body.code))
            return
        super()._receive(message)

    def _broken(self) -> None:
        self._find()
        super()._broken()
