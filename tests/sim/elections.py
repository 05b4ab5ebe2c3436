"""Several simulated masters, an etcd that can be away, nodes and clients that follow the leader.

The decisions are the product's (ha_election, the machines); only what carries them is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moonpool.core.sections import MasterConfig
from moonpool.pool import messages as m
from moonpool.pool.ha_election import (
    LOOKS_A_LEASE,
    STEPS_A_LEASE,
    SURE,
    Beat,
    LeaderRecord,
    Patience,
    Seen,
    next_term,
)
from moonpool.pool.master_machine import MasterMachine
from moonpool.pool.node_machine import NodeMachine
from moonpool.pool.node_masters import NodeMasters, Tell
from moonpool.pool.protocol import MasterLost
from tests.sim.actors import CONNECT_RETRY_S, ClientActor, MasterActor, NodeActor, SimAgent
from tests.sim.world import Connection, Process, World

LEASE_S = 0.4
ASK_S = 0.2  # an etcd that is away is not waited for any longer


class SimEtcd:
    """Two keys and a revision. Questions and answers take their time and get lost while it is
    away; what was asked before may have been done."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.leader: LeaderRecord | None = None
        self.leader_revision = self.beat_revision = self.revision = 0
        self.beat = Beat(0)
        self.away_until = 0.0
        self.watchers: list[Callable[[str], None]] = []

    def ask(
        self, asker: Process, question: Callable[[], Any], answer: Callable[[Any], None]
    ) -> None:
        """`answer(None)`: nobody knows whether it was done."""
        answered = False

        def once(value: Any) -> None:
            nonlocal answered
            if not answered:
                answered = True
                answer(value)

        def arrive() -> None:
            if self.world.now < self.away_until:
                return
            value = question()
            if self.world.random.random() > 0.02:
                asker.later(self.world.delay(), lambda: once(value))

        self.world.after(self.world.delay(), arrive)
        asker.later(ASK_S, lambda: once(None))

    def read(self) -> Seen:
        return Seen(self.leader, self.leader_revision, self.beat, self.beat_revision)

    def claim(self, seen: Seen, record: LeaderRecord, nodes: set[str]) -> int:
        if (seen.leader_revision, seen.beat_revision) != (
            self.leader_revision,
            self.beat_revision,
        ):
            return -1
        self.revision += 1
        self.leader, self.beat = record, Beat(0, tuple(sorted(nodes)))
        self.leader_revision = self.beat_revision = self.revision
        self.world.note(f"{record.address} leads under {record.term}")
        for watcher in self.watchers:
            watcher(record.address)
        return self.revision

    def renew(self, revision: int, nodes: list[str]) -> bool:
        if revision != self.leader_revision:
            return False
        self.revision += 1
        self.beat, self.beat_revision = Beat(self.beat.number + 1, tuple(nodes)), self.revision
        return True


class ElectedMaster(MasterActor):
    """Stands by until it is elected."""

    def __init__(self, world: World, name: str, config: MasterConfig, etcd: SimEtcd) -> None:
        self.etcd = etcd
        self.leading = False
        super().__init__(world, config)
        self.name = name

    def start(self) -> None:
        self.alive, self.stopped = True, False
        self._stand_by()
        self.later(self.world.delay(), self._step)

    def _stand_by(self) -> None:
        for connection in self.sessions.values() if hasattr(self, "sessions") else ():
            connection.break_off()
        self.sessions = {}
        self.leading, self.revision = False, 0
        self.record = LeaderRecord(0, "", "")
        self.claimed_at = -math.inf
        self.patience = Patience(LEASE_S)
        self.machine = MasterMachine(
            self.config, instance=self.world.random.randbytes(16), stand_by=True
        )
        self._tick_at = math.inf

    def _step(self) -> None:
        asked_at = self.world.now
        if self.leading:
            revision, names = self.revision, self.machine.known_nodes
            self.etcd.ask(
                self,
                lambda: self.etcd.renew(revision, names),
                lambda done: self._renewed(done, asked_at),
            )
            self.later(LEASE_S / STEPS_A_LEASE, self._step)
        else:
            self.etcd.ask(self, self.etcd.read, lambda seen: self._look(seen, asked_at))
            self.later(LEASE_S / LOOKS_A_LEASE, self._step)

    def _renewed(self, done: bool | None, asked_at: float) -> None:
        if done and self.leading:
            self.machine.leads_until = asked_at + SURE * LEASE_S
            self._perform(self.machine.tick(self.world.now))
        elif done is False and self.leading:
            self.world.note(f"{self.name} stands by")
            self._stand_by()

    def _look(self, seen: Seen | None, asked_at: float) -> None:
        if seen is None or self.leading:
            return
        if seen.leader is not None and seen.leader == self.record:
            self._lead(seen, seen.leader_revision, self.claimed_at)  # its answer was lost
        elif self.patience.ripe(seen, asked_at, self.world.now):
            now = self.world.now
            record = LeaderRecord(next_term(seen, self.world.wall_ms()), self.name, "")
            self.record, self.claimed_at = record, now
            nodes = {*seen.beat.nodes, *self.machine.known_nodes}
            self.etcd.ask(
                self,
                lambda: self.etcd.claim(seen, record, nodes),
                lambda revision: self._claimed(seen, revision, now),
            )

    def _claimed(self, seen: Seen, revision: int | None, asked_at: float) -> None:
        if revision is not None and revision > 0 and not self.leading:
            self._lead(seen, revision, asked_at)

    def _lead(self, seen: Seen, revision: int, asked_at: float) -> None:
        self.leading, self.revision = True, revision
        self.machine.leads_until = asked_at + SURE * LEASE_S
        nodes = set(seen.beat.nodes) if seen.leader is not None else None
        self._perform(
            self.machine.lead(self.record.term, nodes, self.world.now, self.world.wall_ms())
        )


class FollowingNode(NodeActor):
    """Connected to all masters; obeys one."""

    def __init__(
        self,
        world: World,
        name: str,
        rulers: list[ElectedMaster],
        path: Path,
        capacity: int,
        host: str,
    ) -> None:
        self.rulers = rulers
        self.links: dict[int, Connection] = {}
        self._next_link = 1
        super().__init__(world, name, rulers[0], path, capacity, host)

    def _begin(self) -> None:
        endpoint = m.SegmentEndpoint(
            0,
            self.incarnation,
            self.name,
            self.host,
            tcp=self.name,
            path=str(self.path),
            capacity_bytes=self.capacity,
        )
        self.machine = NodeMachine(SimAgent(self, self.agent), endpoint, 0.2)
        self.masters = NodeMasters(self.machine)
        self.links = {}
        for master in self.rulers:
            self._dial(master)
        self._tick()

    def died(self) -> None:
        for connection in self.links.values():
            connection.break_off()
        self.links = {}
        self.agent.close()
        self._agent = None

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


class FollowingClient(ClientActor):
    """Asks the master that etcd names; is told when another one leads."""

    def __init__(
        self,
        world: World,
        name: str,
        rulers: list[ElectedMaster],
        nodes: dict[bytes, NodeActor],
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
