"""What every simulated owner of a segment does: joins the master, reports, fetches what it is told.

Which segment it is, memory or a tier below, the class says: how it reads and how it keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moonpool.pool import messages as m
from moonpool.pool.columns import u32, u64
from moonpool.pool.node_machine import NodeMachine
from tests.sim.master_actor import CONNECT_RETRY_S, MasterActor
from tests.sim.world import Connection, Process, World

TICK_S = 0.05
Pieces = list[bytes | None]  # None: could not be had


class SegmentActor(Process):
    """Of one segment; `peers` are those of all, by every incarnation they had."""

    agent: Any
    incarnation: bytes
    machine: NodeMachine

    def __init__(self, world: World, name: str, master: MasterActor, host: str) -> None:
        super().__init__(world, name)
        self.master = master
        self.host = host
        self.peers: dict[bytes, SegmentActor] = {}
        self._connection: Connection | None = None

    @property
    def valid_until_ns(self) -> int:
        raise NotImplementedError

    def read(
        self, slots: list[int], generations: list[int], answer: Callable[[Pieces], None]
    ) -> None:
        """Whole objects, for another node; `answer` is called now or later, or never."""
        raise NotImplementedError

    def keep(self, order: m.Copy, data: Pieces, answer: Callable[[m.Copied], None]) -> None:
        """Claim, write and seal what was fetched; `answer` as in `read`."""
        raise NotImplementedError

    def died(self) -> None:
        if self._connection is not None:
            self._connection.break_off()
            self._connection = None

    def _serve(self, machine: NodeMachine) -> None:
        """A life begins."""
        self.machine = machine
        self._connect()
        self._tick()

    def _connect(self) -> None:
        self._connection = self.master.connect(self, "node", self.host, self._receive, self._broken)
        if self._connection is None:
            self.later(CONNECT_RETRY_S, self._connect)
            return
        self._send(self.machine.connected(self.world.now))

    def _broken(self) -> None:
        self.machine.disconnected()
        self._connection = None
        self.later(CONNECT_RETRY_S, self._connect)

    def _receive(self, message: object) -> None:
        body = m.decode(message).body  # type: ignore[arg-type]
        self._heard(body)
        self._send(self.machine.handle(body, self.world.now, self.world.boottime_ns()))  # type: ignore[arg-type]
        while self.machine.copies:
            self._fetch(self.machine.copies.popleft())
        self._inventory()

    def _heard(self, message: object) -> None:
        """Hook: the master said something."""

    def _fetch(self, order: m.Copy) -> None:
        """Bytes of another segment, a while later; kept here a while after that."""
        source = self.peers[order.source.incarnation]
        connection, life = self._connection, self.life
        slots, generations = u32(order.slot).tolist(), u64(order.generation).tolist()

        def copied(message: m.Copied) -> None:
            if connection is self._connection:
                self._send([message])

        def arrived(data: Pieces) -> None:
            if self.life == life:
                self.later(self.world.delay(), lambda: self.keep(order, data, copied))

        def ask() -> None:
            if source.incarnation == order.source.incarnation:
                source.read(slots, generations, arrived)

        self.later(self.world.delay(), lambda: source.deliver(ask))

    def _inventory(self) -> None:
        while self.machine.inventory_pending():
            self._send([self.machine.inventory_chunk()])
        self._send(self.machine.tick(self.world.now, self.world.boottime_ns()))

    def _tick(self) -> None:
        self._send(self.machine.tick(self.world.now, self.world.boottime_ns()))
        self.later(TICK_S, self._tick)

    def _send(self, messages: list[m.NodeToMaster]) -> None:
        for message in messages:
            if self._connection is not None:
                self._connection.send(0, m.encode(message, 0))
