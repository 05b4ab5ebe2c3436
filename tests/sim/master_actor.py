"""The simulated master: the product's machine behind simulated connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from moonpool.core.sections import MasterConfig
from moonpool.pool import messages as m
from moonpool.pool.effects import Effect
from moonpool.pool.master_machine import MasterMachine
from moonpool.pool.snapshot.saved import Saved
from moonpool.pool.snapshot.writer import frames
from tests.sim.world import Connection, Process, World

CONNECT_RETRY_S = 0.05


class MasterActor(Process):
    """MasterMachine behind simulated connections. A restart knows nothing of its last life but,
    with `snapshots`, the last one of these that was written to its end."""

    def __init__(self, world: World, config: MasterConfig, snapshots: bool = False) -> None:
        super().__init__(world, "master")
        self.config = config
        self.snapshots = snapshots
        self.snapshot = b""
        self.restored = 0  # segments, over all lives
        self.sessions: dict[int, Connection] = {}
        self._connecting: set[Connection] = set()
        self._next_session = 1
        self._tick_at = float("inf")
        self.start()

    def start(self) -> None:
        self.alive, self.stopped = True, False
        self.machine = MasterMachine(
            self.config,
            instance=self.world.random.randbytes(16),
            first_term=self.world.wall_ms(),
            saved=self._saved(),
        )
        self.sessions = {}
        self._tick_at = float("inf")
        self._schedule()
        if self.snapshots:
            self._write(iter(()), [])

    def _saved(self) -> Saved | None:
        data = self.snapshot
        return Saved(lambda at, length: data[at : at + length], len(data)) if data else None

    def _write(self, pieces: Iterator[bytes], written: list[bytes]) -> None:
        """A piece now and then; it may die in between."""
        if self.machine.recovering or self.machine.restoring:
            pieces, written = iter(()), []
        elif piece := next(pieces, None):
            written.append(piece)
        else:
            self.snapshot = b"".join(written) or self.snapshot
            catalog, links = self.machine.catalog, self.machine.nodes.links
            pieces, written = frames(catalog, links, self.world.wall_ms(), 64), []
        self.later(self.world.random.uniform(0.001, 0.05), lambda: self._write(pieces, written))

    def _take(self) -> None:
        """A piece of the snapshot into the catalog, between other work."""
        before = self.machine.nodes.restoring.segments
        if self.machine.restoring:
            self._perform(self.machine.restore(self.world.now, self.world.wall_ms()))
        self.restored += self.machine.nodes.restoring.segments - before

    def died(self) -> None:
        for connection in [*self.sessions.values(), *self._connecting]:
            connection.break_off()
        self.sessions = {}
        self._connecting.clear()

    def connect(
        self,
        peer: Process,
        role: Literal["client", "node"],
        host: str,
        receive: Callable[[object], None],
        broken: Callable[[], None],
    ) -> Connection | None:
        """None: nobody listens."""
        if not self.alive:
            return None
        session = self._next_session
        self._next_session += 1
        connection = Connection(
            self.world,
            (peer, self),
            (receive, lambda message: self._receive(session, message)),
            (broken, lambda: self._gone(session)),
        )
        life = self.life
        self._connecting.add(connection)

        def accept() -> None:
            if self.life == life and connection.open:
                self._connecting.discard(connection)
                self.sessions[session] = connection
                self._perform(
                    self.machine.connected(session, role, peer.name, host, self.world.now)
                )

        self.world.after(self.world.delay(), lambda: self.deliver(accept))
        # Nothing sent on the connection may overtake its acceptance.
        connection.hold(0.1)
        return connection

    def _receive(self, session: int, message: object) -> None:
        envelope = m.decode(message)  # type: ignore[arg-type]
        if session in self.sessions:
            self._perform(
                self.machine.handle(
                    session, envelope.id, envelope.body, self.world.now, self.world.wall_ms()
                )
            )

    def _gone(self, session: int) -> None:
        if self.sessions.pop(session, None) is not None:
            self._perform(self.machine.disconnected(session, self.world.now))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            connection = self.sessions.get(effect.session)
            if connection is not None:
                connection.send(1, m.encode(effect.message, effect.request_id))
        if self.machine.restoring:
            self.later(self.world.random.uniform(0.0, 0.05), self._take)
        self._schedule()

    def _schedule(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline < self._tick_at:
            self._tick_at = deadline
            self.later(max(0.0, deadline - self.world.now), lambda: self._tick(deadline))

    def _tick(self, moment: float) -> None:
        if moment != self._tick_at:
            return  # an earlier one was asked for meanwhile, and has asked for the next
        self._tick_at = float("inf")
        self._perform(self.machine.tick(self.world.now))
