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
from typing import Literal, cast

import msgspec

import moonpool
from moonpool.core.address import cannot_listen
from moonpool.core.clock import Clock, SystemClock
from moonpool.core.errors import MoonpoolError, ProtocolMismatch
from moonpool.core.handshake import NONCE_BYTES, ServerHandshake, refusal
from moonpool.core.sections import MasterConfig, default_directory
from moonpool.core.tenants import load_tenants
from moonpool.core.tls import server_context
from moonpool.core.wire import (
    MAX_FRAME,
    MAX_HANDSHAKE_FRAME,
    MESSAGE,
    Frame,
    FrameDecoder,
    encode_frame,
)
from moonpool.pool import messages as m
from moonpool.pool.announced import join_refusal
from moonpool.pool.effects import Effect
from moonpool.pool.ha_master import Office
from moonpool.pool.master_machine import MasterMachine
from moonpool.pool.snapshot.keeper import SnapshotKeeper

log = logging.getLogger("moonpool.master")

SEND_BUFFER_MAX = 64 << 20  # a peer that does not read is cut off beyond this
SESSIONS_MAX = 4096
STRANGERS_MAX = 512
HANDSHAKE_S = 5.0
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
        self._sessions: dict[int, _Connection] = {}
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
                lambda: _Connection(self),
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
                lambda: _Connection(self), str(path), backlog=1024
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
        self, connection: _Connection, role: str, name: str, host: str, tenant: str
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


class _Connection(asyncio.Protocol):
    """One peer: handshake first, then envelopes."""

    def __init__(self, server: MasterServer) -> None:
        self.server = server
        self.session: int | None = None
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(MAX_HANDSHAKE_FRAME)
        self._handshake = ServerHandshake(
            server.config.token,
            "master",
            moonpool.__version__,
            os.urandom(NONCE_BYTES),
            server.unix,
            server.machine.instance,
            m.VERSIONS,
            server.tenant_tokens,
        )
        self._guard: asyncio.TimerHandle | None = None
        self._peer = ""
        self.seen_from = ""  # its IP address; empty: it came by the UNIX socket
        self._stranger = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's are no subclass of asyncio's
        self._transport = stream
        stream.set_write_buffer_limits(high=self.server.send_buffer_max)
        self.server.strangers += 1
        self._stranger = True
        if not self._count_peer(stream.get_extra_info("peername")):
            self.server.refused += 1
            self.abort()
            return
        self._guard = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._too_slow)

    def _count_peer(self, name: object) -> bool:
        """False: too many of this address, or too many who have proved nothing yet."""
        server = self.server
        if isinstance(name, tuple):  # a UNIX socket's peer is of this user, and has no address
            self._peer = self.seen_from = str(name[0])
            server.peers[self._peer] += 1
            if server.peers[self._peer] > server.config.connections_per_peer_max:
                return False
        return server.strangers <= server.strangers_max

    def _known(self) -> None:
        if self._stranger:
            self._stranger = False
            self.server.strangers -= 1

    def connection_lost(self, error: Exception | None) -> None:
        self._known()
        if self._peer:
            self.server.peers[self._peer] -= 1
            if not self.server.peers[self._peer]:
                del self.server.peers[self._peer]
        if self._guard is not None:
            self._guard.cancel()
        if self.session is not None:
            self.server.left(self.session)
            self.session = None

    def pause_writing(self) -> None:
        log.warning("session %s does not read; cut off", self.session)
        self.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self._frame(frame)
        except (MoonpoolError, msgspec.MsgspecError) as error:
            self._refuse(error)

    def send(self, message: m.Message, request_id: int) -> None:
        if self._transport is not None and not self._transport.is_closing():
            version = self._handshake.version
            self._transport.write(
                encode_frame(MESSAGE, m.encode(message, request_id, version=version))
            )

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _frame(self, frame: Frame) -> None:
        if self.session is not None:
            if frame.kind is not MESSAGE:
                raise ProtocolMismatch(f"a {frame.kind.name} frame after the handshake")
            envelope = m.decode(frame.payload)
            if envelope.version != self._handshake.version:
                raise ProtocolMismatch(
                    f"message version {envelope.version}; agreed were {self._handshake.version}"
                )
            self.server.received(self.session, envelope)
            return
        answer = self._handshake.receive(frame)
        assert self._transport is not None
        self._transport.write(encode_frame(answer.kind, answer.payload))
        hello = self._handshake.hello
        if self._handshake.accepted and hello is not None:
            if self._guard is not None:
                self._guard.cancel()
            self._known()
            self._decoder.max_frame = MAX_FRAME
            tenant = self._handshake.tenant
            self.session = self.server.joined(self, hello.role, hello.name, hello.host_id, tenant)
            if self.session is None:
                self.close()

    def _refuse(self, error: Exception) -> None:
        """Say why (in the handshake), then close: a stream that broke the rules stays broken."""
        self.server.refused += 1
        if self._transport is None:
            return
        if self.session is None and isinstance(error, MoonpoolError):
            frame = refusal(error)
            self._transport.write(encode_frame(frame.kind, frame.payload))
        else:
            log.warning("session %s: %s", self.session, error)
        self._transport.close()

    def _too_slow(self) -> None:
        if self.session is None:
            self.abort()


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
