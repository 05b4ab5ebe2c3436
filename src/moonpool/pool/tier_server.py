"""A tier's data plane: clients ask for pieces of objects, its threads read them.

The loop never touches the medium. A tier whose queue is full answers BUSY, a client that asks for
more than one answer may hold is cut off.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from typing import cast

import msgspec
import numpy as np

import moonpool
from moonpool.core.clock import Clock
from moonpool.core.errors import BadFrame, MoonpoolError, ProtocolMismatch
from moonpool.core.handshake import NONCE_BYTES, ServerHandshake, refusal
from moonpool.core.tenants import tenant_number
from moonpool.core.wire import (
    MAX_FRAME,
    MAX_HANDSHAKE_FRAME,
    MESSAGE,
    Frame,
    FrameDecoder,
    encode_frame,
)
from moonpool.pool.columns import u32, u64
from moonpool.pool.messages_tier import (
    ANSWER_BYTES_MAX,
    BLOCKS_MAX,
    PIECE_BYTES_MAX,
    TierPieces,
    TierRead,
    decode,
    encode,
)
from moonpool.pool.tiers.agent import TierAgent
from moonpool.pool.tiers.base import WHOLE, Buffer, Entry, Finished, Read, Status, TierOp

log = logging.getLogger("moonpool.tier")

HANDSHAKE_S = 5.0
CONNECTIONS_MAX = 1024
Submit = Callable[[TierOp], "asyncio.Future[Finished] | None"]


class TierServer:
    """Serves what `agent` knows; `submit` gives an op to the tier's threads."""

    def __init__(
        self,
        agent: TierAgent,
        submit: Submit,
        token: str,
        clock: Clock,
        tenants: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tenants`: further tokens by name, each for that tenant's objects."""
        self.agent = agent
        self.token = token
        self.tenants = tenants
        self._tls = tls
        self._submit = submit
        self._clock = clock
        self._server: asyncio.Server | None = None
        self.connections: set[_Connection] = set()
        self.reads = 0
        self.read_bytes = 0
        self.busy = 0

    async def start(self, host: str) -> str:
        """Raises OSError; returns "host:port"."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self),
            host,
            0,
            ssl=self._tls,
            ssl_handshake_timeout=HANDSHAKE_S if self._tls else None,
        )
        name, port = self._server.sockets[0].getsockname()[:2]
        return f"{name}:{port}"

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in [*self.connections]:
            connection.abort()

    async def answer(self, call: TierRead, tenant: int | None = None) -> TierPieces:
        """What `tenant` may read; None: the operator."""
        slots, generations = u32(call.slot).tolist(), u64(call.generation).tolist()
        offsets, lengths = u64(call.offset).tolist(), u64(call.length).tolist()
        blocks = [*zip(slots, generations, offsets, lengths, strict=True)]
        if len(blocks) > BLOCKS_MAX or sum(min(n, PIECE_BYTES_MAX) for n in lengths) > (
            ANSWER_BYTES_MAX
        ):
            raise BadFrame(f"a read of {len(blocks)} pieces, {sum(lengths)} bytes")
        begun = [self._begin(*block, tenant) for block in blocks]
        found = [await self._finish(*one) for one in begun]
        pieces = [b"" if data is None else data for _, _, data in found]
        self.reads += len(blocks)
        self.read_bytes += sum(len(piece) for piece in pieces)
        return TierPieces(
            call.id,
            bytes(status for status, _, _ in found),
            np.array([0 if e is None else e.size for _, e, _ in found], np.uint64).tobytes(),
            np.array([0 if e is None else e.crc for _, e, _ in found], np.uint32).tobytes(),
            np.array([len(piece) for piece in pieces], np.uint64).tobytes(),
            b"".join(pieces),
        )

    def _begin(
        self, slot: int, generation: int, offset: int, length: int, tenant: int | None
    ) -> tuple[Status, Entry | None, asyncio.Future[Finished] | None]:
        entry = self.agent.find(slot, generation, self._clock.boottime_ns())
        if isinstance(entry, Status):
            return entry, None, None
        if tenant is not None and entry.tenant != tenant:
            return Status.REFUSED, None, None
        length = min(length, PIECE_BYTES_MAX, max(0, entry.size - offset))
        whole = offset == 0 and length == entry.size
        future = self._submit(Read(slot, generation, offset, WHOLE if whole else length))
        if future is None:
            self.busy += 1
            return Status.BUSY, None, None
        return Status.OK, entry, future

    async def _finish(
        self, status: Status, entry: Entry | None, future: asyncio.Future[Finished] | None
    ) -> tuple[Status, Entry | None, Buffer | None]:
        if future is None or entry is None:
            return status, None, None
        finished = await future
        if finished.status is not Status.OK:
            return finished.status, None, None
        # It may have been removed while it was read, and its removal been answered.
        again = self.agent.find(entry.slot, entry.generation, self._clock.boottime_ns())
        if isinstance(again, Status):
            return again, None, None
        return Status.OK, entry, finished.data


class _Connection(asyncio.Protocol):
    """One client: handshake, then one read at a time."""

    def __init__(self, server: TierServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(MAX_HANDSHAKE_FRAME)
        nonce = os.urandom(NONCE_BYTES)
        self._handshake = ServerHandshake(
            server.token, "tier", moonpool.__version__, nonce, tenants=server.tenants
        )
        self._guard: asyncio.TimerHandle | None = None
        self._answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._server.connections) >= CONNECTIONS_MAX:
            self.abort()
            return
        self._server.connections.add(self)
        self._guard = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._too_slow)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._guard is not None:
            self._guard.cancel()
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self._frame(frame)
        except (MoonpoolError, msgspec.MsgspecError, ValueError) as error:
            self._refuse(error)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _frame(self, frame: Frame) -> None:
        assert self._transport is not None
        if self._decoder.max_frame == MAX_HANDSHAKE_FRAME:
            answer = self._handshake.receive(frame)
            self._transport.write(encode_frame(answer.kind, answer.payload))
            if self._handshake.accepted:
                self._decoder.max_frame = MAX_FRAME
            return
        message = decode(frame.payload) if frame.kind is MESSAGE else None
        if not isinstance(message, TierRead):
            raise ProtocolMismatch("a tier is asked for reads and nothing else")
        if self._answering is not None and not self._answering.done():
            raise BadFrame("a tier answers one read at a time on one connection")
        if self._transport.get_write_buffer_size() > ANSWER_BYTES_MAX:
            raise BadFrame("a client asks for more and does not take the answers")
        self._answering = asyncio.get_running_loop().create_task(self._answer(message))

    async def _answer(self, message: TierRead) -> None:
        try:
            pieces = await self._server.answer(message, self._tenant())
        except (MoonpoolError, ValueError) as error:
            self._refuse(error)
            return
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(MESSAGE, encode(pieces)))

    def _tenant(self) -> int | None:
        name = self._handshake.tenant
        return tenant_number(name) if name else None

    def _refuse(self, error: Exception) -> None:
        assert self._transport is not None
        if not self._handshake.accepted and isinstance(error, MoonpoolError):
            frame = refusal(error)
            self._transport.write(encode_frame(frame.kind, frame.payload))
        else:
            log.warning("a client of the tier: %s", error)
        if self._transport.get_write_buffer_size() > ANSWER_BYTES_MAX:
            self._transport.abort()  # nobody takes it: closing would wait for ever
        else:
            self._transport.close()

    def _too_slow(self) -> None:
        if not self._handshake.accepted:
            self.abort()
