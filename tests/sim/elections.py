"""Several simulated masters, one of which leads, and an etcd that can be away.

The decisions are the product's (ha_election, the machines); only what carries them is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from moonpool.core.sections import MasterConfig
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
from tests.sim.master_actor import MasterActor
from tests.sim.world import Process, World

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
