"""The side channel's connection, either end: frames of core, the token handshake, then messages.

Everything runs on the loop of its node. A broken rule of the peer closes the connection.
"""

import asyncio
import os
from collections.abc import Callable
from typing import cast

import moonpool
from moonpool.core.errors import BadFrame, Closed, MoonpoolError, Unreachable
from moonpool.core.handshake import NONCE_BYTES, ClientHandshake, ServerHandshake, refusal
from moonpool.core.host import host_id
from moonpool.core.wire import MESSAGE, Frame, FrameDecoder, encode_frame
from moonpool.transfer.handoff import messages as m

SEND_BYTES_MAX = 16 << 20


class SideLink(asyncio.Protocol):
    """`on_message` gets each message, `on_lost` the reason, once. Messages before the handshake is
    over are refused."""

    def __init__(
        self,
        handshake: ClientHandshake | ServerHandshake,
        on_message: "Callable[[SideLink, m.Message], None]",
        on_lost: "Callable[[SideLink, str], None]",
    ) -> None:
        self._handshake: ClientHandshake | ServerHandshake | None = handshake
        self._on_message = on_message
        self._on_lost = on_lost
        self._decoder = FrameDecoder(m.MAX_FRAME)
        self._transport: asyncio.Transport | None = None
        self._reason = ""
        self.closed = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    def server(
        cls,
        token: str,
        name: str,
        on_message: "Callable[[SideLink, m.Message], None]",
        on_lost: "Callable[[SideLink, str], None]",
    ) -> "SideLink":
        nonce = os.urandom(NONCE_BYTES)
        return cls(ServerHandshake(token, name, moonpool.__version__, nonce), on_message, on_lost)

    @classmethod
    def client(
        cls,
        token: str,
        name: str,
        on_message: "Callable[[SideLink, m.Message], None]",
        on_lost: "Callable[[SideLink, str], None]",
    ) -> "SideLink":
        nonce = os.urandom(NONCE_BYTES)
        shake = ClientHandshake(token, "client", name, moonpool.__version__, nonce, host_id())
        return cls(shake, on_message, on_lost)

    def send(self, message: m.Message) -> None:
        """Raises Closed; a peer that takes nothing while SEND_BYTES_MAX wait is cut off."""
        if self._transport is None or self.closed or self._transport.is_closing():
            raise Closed("the side channel is closed")
        if self._transport.get_write_buffer_size() > SEND_BYTES_MAX:
            self.abort("the peer does not read its side channel")
            raise Closed("the peer does not read its side channel")
        self._transport.write(encode_frame(MESSAGE, m.encode(message), m.MAX_FRAME))

    def close(self) -> None:
        """Lets what was sent leave, then ends."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Ends at once."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if isinstance(self._handshake, ClientHandshake):
            self._write(self._handshake.start())

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self._frame(frame)
        except MoonpoolError as error:
            if isinstance(self._handshake, ServerHandshake):
                self._write(refusal(error))
            self._lose(error)
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(Unreachable(self._reason or "the connection broke"))

    def _frame(self, frame: Frame) -> None:
        if self._handshake is None:
            if frame.kind is not MESSAGE:
                raise BadFrame(f"a {frame.kind.name} frame where a message belongs")
            self._on_message(self, m.decode(frame.payload))
            return
        answer = self._handshake.receive(frame)
        if answer is not None:
            self._write(answer)
        if answer is None or getattr(self._handshake, "accepted", False):
            self._handshake = None
            if not self.ready.done():
                self.ready.set_result(None)

    def _write(self, frame: Frame) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(frame.kind, frame.payload))

    def _lose(self, error: MoonpoolError) -> None:
        if self.closed:
            return
        self.closed = True
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # nobody may be waiting
        self._on_lost(self, str(error))
