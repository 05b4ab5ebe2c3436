"""The master's shell: sockets, timers and the clock around MasterMachine. It decides nothing."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from moonpool.core.address import cannot_listen
from moonpool.core.clock import Clock, SystemClock
from moonpool.core.errors import MoonpoolError
from moonpool.core.sections import MasterConfig, default_directory
from moonpool.core.tenants import load_tenants
from moonpool.core.tls import server_context
from moonpool.pool import messages as m
from moonpool.pool.announced import join_refusal
from moonpool.pool.effects import Effect
from moonpool.pool.ha_master import Office
from moonpool.pool.master_connection import HANDSHAKE_S, MasterConnection
from moonpool.pool.master_machine import MasterMachine
from moonpool.pool.snapshot.keeper import SnapshotKeeper

log = logging.getLogger("moonpool.master")

SEND_BUFFER_MAX = 64 << 20  # a peer that does not read is cut off beyond this
SESSIONS_MAX = 4096
STRANGERS_MAX = 512
TICK_MIN_S = 0.001
LOOK_S = 0.005  # a new deadline is noticed so late at most


class MasterServer:
    """Listens, decodes, hands messages to the machine, and performs its effects."""

    def __init__(self, config: MasterConfig, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self._tenants = load_tenants(config.tenants, config.token)
        self.tenant_tokens = self._tenants.tokens if self._tenants is not None else {}
        self._tls = server_context(config)
        self._snapshots = SnapshotKeeper(self) if config.snapshot else None
        self.machine = self._new_machine()
        self.refused = 0
        self.peers: Counter[str] = Counter()  # connections by IP address
        self.strangers = 0  # connections that have proved nothing yet
        self.strangers_max = STRANGERS_MAX
        self.send_buffer_max = SEND_BUFFER_MAX
        self._sessions: dict[int, MasterConnection] = {}
        self._next_session = 1
        self._server: asyncio.Server | None = None
        self._unix_server: asyncio.Server | None = None
        self.unix = ""
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._office: Office | None = None
        self._over = asyncio.Event()
        self._broken: BaseException | None = None

    def _new_machine(self) -> MasterMachine:
        return MasterMachine(
            self.config,
            instance=os.urandom(16),
            nodes_expected=self.config.nodes_expected,
            first_term=1 if self.config.ha else self.clock.wall_ms(),
            stand_by=bool(self.config.ha),
            tenants=self._tenants,
            saved=self._snapshots.load() if self._snapshots is not None else None,
        )

    async def start(self) -> str:
        """Listen; returns the address, "host:port". Raises TransferError."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: MasterConnection(self),
                self.config.host,
                self.config.port,
                backlog=1024,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_S if self._tls else None,
            )
        except OSError as error:
            raise cannot_listen(self.config.host, self.config.port, error) from None
        host, port = self._server.sockets[0].getsockname()[:2]
        await self._listen_unix(port)
        self._schedule()
        if self._snapshots is not None:
            self._snapshots.start()
        if self.config.ha:
            self._office = Office(self, f"{host}:{port}")
        return f"{host}:{port}"

    async def _listen_unix(self, port: int) -> None:
        """Beside TCP a file for clients on this host: to them a message costs half as much."""
        path = default_directory() / f"master-{port}.sock"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # of one that had the port before, and was killed
            self._unix_server = await asyncio.get_running_loop().create_unix_server(
                lambda: MasterConnection(self), str(path), backlog=1024
            )
        except OSError as error:
            log.info("no UNIX socket for clients on this host: %s", error)
            return
        self.unix = str(path)

    def start_over(self) -> None:
        """Forget everything, and stand by: somebody else leads now."""
        self.machine = self._new_machine()
        for connection in list(self._sessions.values()):
            connection.session = None
            connection.abort()
        self._sessions.clear()

    def broke(self, error: BaseException) -> None:
        """It cannot go on."""
        self._broken = error
        self._over.set()

    def end(self) -> None:
        """`run` is to return."""
        self._over.set()

    async def run(self) -> None:
        """After `start`: until `end`, then all is closed. Raises what it broke by, if it did."""
        await self._over.wait()
        await self.stop()
        if self._broken is not None:
            raise self._broken

    async def stop(self) -> None:
        if self._snapshots is not None:
            await self._snapshots.close()
        if self._office is not None:
            await self._office.close()
        for timer in (self._timer, self._look):
            if timer is not None:
                timer.cancel()
        for server in (self._server, self._unix_server):
            if server is not None:
                server.close()
        if self.unix:
            Path(self.unix).unlink(missing_ok=True)
        for connection in list(self._sessions.values()):
            connection.close()

    def joined(
        self, connection: MasterConnection, role: str, name: str, host: str, tenant: str
    ) -> int | None:
        """A peer proved a token. None: too many sessions."""
        if len(self._sessions) >= SESSIONS_MAX:
            return None
        session = self._next_session
        self._next_session += 1
        self._sessions[session] = connection
        kind: Literal["client", "node"] = "node" if role == "node" else "client"
        now = self.clock.monotonic()
        self.perform(self.machine.connected(session, kind, name, host, now, tenant))
        return session

    def left(self, session: int) -> None:
        self._sessions.pop(session, None)
        self.perform(self.machine.disconnected(session, self.clock.monotonic()))

    def received(self, session: int, envelope: m.Envelope) -> None:
        now, wall = self.clock.monotonic(), self.clock.wall_ms()
        if type(envelope.body) is m.JoinSegment:
            connection = self._sessions[session]
            if (refused := join_refusal(envelope.body, connection.seen_from)) is not None:
                connection.send(refused, 0)
                return
        try:
            effects = self.machine.handle(
                session, envelope.id, envelope.body, now, wall, envelope.deadline_ms
            )
        except MoonpoolError as error:
            self._fail(session, envelope.id, error.code, str(error))
            return
        except Exception as error:
            # Our bug, not the caller's: the caller gets an answer, the others go on.
            log.exception("a %s request failed", type(envelope.body).__name__)
            self._fail(session, envelope.id, "internal", repr(error))
            return
        self.perform(effects)
        if self._snapshots is not None:
            self._snapshots.look()
        self.machine.counts.handling_s.add(self.clock.monotonic() - now)

    def _fail(self, session: int, request: int, code: str, text: str) -> None:
        failure = m.Failure(code, text)
        self.machine.counts.answered(failure)
        connection = self._sessions.get(session)
        if connection is not None and request:
            connection.send(failure, request)

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            connection = self._sessions.get(effect.session)
            if connection is not None:
                connection.send(effect.message, effect.request_id)
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_S, self._schedule)

    def _due(self) -> None:
        self._timer = None
        self.tick()

    def tick(self) -> None:
        self.perform(self.machine.tick(self.clock.monotonic()))

    def _schedule(self) -> None:
        """Set the timer to the machine's next deadline. It is asked for once for all the requests
        of LOOK_S, because the answer costs a third of a small request."""
        self._look = None
        deadline = self.machine.next_deadline()
        if deadline is None:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + max(TICK_MIN_S, deadline - self.clock.monotonic())
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._due)


async def serve(config: MasterConfig, ready: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    if config.tracing:
        from moonpool.pool.tracing_server import TracedMaster

        server: MasterServer = TracedMaster(config)
    else:
        server = MasterServer(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.end)
    ready(await server.start())
    gc.collect()
    gc.freeze()
    await server.run()


def run_master(config: MasterConfig, ready: Callable[[str], None] | None = None) -> None:
    """The master process. `ready` gets the address; by default one JSON line is printed."""
    import uvloop

    def announce(address: str) -> None:
        print(json.dumps({"ready": "master", "address": address, "pid": os.getpid()}), flush=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, ready or announce))
