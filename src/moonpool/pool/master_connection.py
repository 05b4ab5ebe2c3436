"""One peer of the master: handshake first, then envelopes."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Final, cast

import msgspec

import moonpool
from moonpool.core.errors import MoonpoolError, ProtocolMismatch
from moonpool.core.handshake import NONCE_BYTES, ServerHandshake, refusal
from moonpool.core.wire import (
    MAX_FRAME,
    MAX_HANDSHAKE_FRAME,
    MESSAGE,
    Frame,
    FrameDecoder,
    encode_frame,
)
from moonpool.pool import messages as m

if TYPE_CHECKING:
    from moonpool.pool.master import MasterServer

log = logging.getLogger("moonpool.master")

HANDSHAKE_S: Final = 5.0


class MasterConnection(asyncio.Protocol):
    """Told by the loop; tells the server."""

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
