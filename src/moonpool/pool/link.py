"""A connection to the master, asyncio and blocking: handshake, requests with replies, pushes."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import Literal, cast

import msgspec

import moonpool
from moonpool.core.address import parse_address
from moonpool.core.clock import Clock, Deadline, SystemClock
from moonpool.core.errors import (
    BadFrame,
    Closed,
    DeadlineExceeded,
    MoonpoolError,
    ProtocolMismatch,
    TransferError,
    Unreachable,
)
from moonpool.core.handshake import NONCE_BYTES, ClientHandshake, Role, Welcome
from moonpool.core.host import host_id
from moonpool.core.stream import FrameStream
from moonpool.core.tls import tls_error
from moonpool.core.wire import MAX_FRAME, MESSAGE, Frame, FrameDecoder, encode_frame
from moonpool.pool import messages as m

CONNECT_S = 2.0
PAUSE_BYTES = 4 << 20  # so much not yet taken by the master: what can wait does
UNSENT_MAX = 2 * MAX_FRAME  # a master that does not read is left beyond this
UNIX_S = 0.5  # for the whole of it: whoever hangs there costs no more
Encode = Callable[[m.Message, int, int, int], bytes]
"""Message, number, time left in ms, version."""


def _handshake(token: str, role: Role, name: str, host: str) -> ClientHandshake:
    nonce, release = os.urandom(NONCE_BYTES), moonpool.__version__
    return ClientHandshake(token, role, name, release, nonce, host_id(host), m.VERSIONS)


def decode_message(frame: Frame, version: int = m.PROTOCOL_VERSION) -> m.Envelope:
    """Raises BadFrame and ProtocolMismatch."""
    if frame.kind is not MESSAGE:
        raise BadFrame(f"a {frame.kind.name} frame where a message belongs")
    try:
        envelope = m.decode(frame.payload)
    except msgspec.MsgspecError as error:
        raise BadFrame(f"a message that cannot be read: {error}") from None
    if envelope.version != version:
        raise ProtocolMismatch(f"message version {envelope.version}; agreed were {version}")
    return envelope


def encrypted(sock: socket.socket, tls: ssl.SSLContext, host: str, whom: str) -> socket.socket:
    """The same connection by TLS; it has the socket's timeout. Raises Refused, Unreachable."""
    try:
        return tls.wrap_socket(sock, server_hostname=host)
    except OSError as error:
        sock.close()
        raise tls_error(whom, error) from error


def _closed_at_the_door(address: str) -> Unreachable:
    """By TLS 1.3 a server judges our certificate after our handshake is over, and many end the
    connection without a word."""
    return Unreachable(
        f"the master at {address} ended the connection at once; if it asks for a certificate of "
        "ours (tls_cert, tls_key), that must be signed by an authority it believes and be valid now"
    )


class BlockingLink:
    """One request at a time over a blocking socket: the fastest round trip. One thread uses it."""

    def __init__(
        self,
        address: str,
        token: str,
        name: str,
        deadline: Deadline,
        role: Role = "client",
        clock: Clock | None = None,
        tls: ssl.SSLContext | None = None,
        host: str = "",
    ) -> None:
        """Connects and proves the token; `host`: the one to count as, if not this machine.
        Raises Unreachable, Refused, ProtocolMismatch, ..."""
        self._clock = clock or SystemClock()
        self._next = 1
        self.address = address
        self.version = m.PROTOCOL_VERSION  # of messages, as agreed
        self.encode: Encode = m.encode
        self.over: Literal["tcp", "unix"] = "tcp"
        where, port, _ = parse_address(address)
        left = min(CONNECT_S, deadline.check(self._clock.monotonic(), f"connect to {address}"))
        try:
            sock = socket.create_connection((where, port), timeout=left)
        except OSError as error:
            raise Unreachable(
                f"no master at {address} ({error}); is it running? moonpool up starts one"
            ) from error
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            sock = encrypted(sock, tls, where, f"the master at {address}")
        try:
            self._stream, welcome = self._shaken(
                sock, _handshake(token, role, name, host), deadline
            )
        except Unreachable as error:
            if tls is None:
                raise
            raise _closed_at_the_door(address) from error
        if welcome.unix and welcome.name == "master":
            try:
                shorter = self._by_unix(welcome, _handshake(token, role, name, host), deadline)
            except BaseException:
                self._stream.close()
                raise
            if shorter is not None:
                self._stream.close()
                self._stream, self.over = shorter, "unix"

    def _by_unix(
        self, welcome: Welcome, handshake: ClientHandshake, deadline: Deadline
    ) -> FrameStream | None:
        """The same master over its UNIX socket, if that can be had: on another host, or in another
        container of this one, the file is not there, or somebody else listens on it."""
        now = self._clock.monotonic()
        soon = Deadline.after(now, min(UNIX_S, deadline.check(now, "connect to the master")))
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(UNIX_S)
            sock.connect(welcome.unix)
            stream, met = self._shaken(sock, handshake, soon)
        except (OSError, ValueError, TransferError):
            sock.close()
            return None
        if met.instance == welcome.instance:
            return stream
        stream.close()
        return None

    def _shaken(
        self, sock: socket.socket, handshake: ClientHandshake, deadline: Deadline
    ) -> tuple[FrameStream, Welcome]:
        stream = FrameStream(sock, self._clock)
        try:
            frame: Frame | None = handshake.start()
            while frame is not None:
                stream.send(frame.kind, frame.payload, deadline)
                frame = handshake.receive(stream.recv(deadline))
        except BaseException:
            stream.close()
            raise
        assert handshake.welcome is not None
        self.version = handshake.welcome.version
        return stream, handshake.welcome

    def request(
        self,
        message: m.ClientRequest,
        deadline: Deadline,
        meanwhile: Callable[[], None] | None = None,
    ) -> m.Message:
        """Send, do what may be done meanwhile, and wait for the reply. After an exception the link
        is closed: a late reply must not be taken for the next one's."""
        number = self._next
        self._next += 1
        left = deadline.left_ms(self._clock.monotonic())
        try:
            self._stream.send(MESSAGE, self.encode(message, number, left, self.version), deadline)
            if meanwhile is not None:
                meanwhile()
            envelope = decode_message(self._stream.recv(deadline), self.version)
        except BaseException:  # also Ctrl-C in mid-frame
            self.close()
            raise
        if envelope.id != number:
            self.close()
            raise BadFrame(f"the master answered request {envelope.id}, not {number}")
        return envelope.body

    def tell(self, message: m.ClientRequest, deadline: Deadline) -> None:
        """Send without asking for a reply."""
        self._stream.send(MESSAGE, m.encode(message, 0, version=self.version), deadline)

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def interrupt(self) -> None:
        """From another thread: whoever waits on this link stops waiting, with Unreachable."""
        self._stream.interrupt()

    def close(self) -> None:
        self._stream.close()


class AsyncLink(asyncio.Protocol):
    """Many requests at a time on one connection; pushes go to `on_push`."""

    def __init__(
        self,
        handshake: ClientHandshake,
        on_push: Callable[[m.Message], None] | None = None,
    ) -> None:
        self._handshake: ClientHandshake | None = handshake
        self._on_push = on_push
        self._decoder = FrameDecoder(MAX_FRAME)
        self._transport: asyncio.Transport | None = None
        self._replies: dict[int, asyncio.Future[m.Message]] = {}
        self._next = 1
        self.address = ""
        self.version = m.PROTOCOL_VERSION  # of messages, as agreed
        self.encode: Encode = m.encode
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()
        self._taken = asyncio.Event()  # little waits to be sent
        self._taken.set()

    @classmethod
    async def connect(
        cls,
        address: str,
        token: str,
        name: str,
        role: Role = "client",
        on_push: Callable[[m.Message], None] | None = None,
        timeout_s: float = CONNECT_S,
        tls: ssl.SSLContext | None = None,
        host: str = "",
    ) -> AsyncLink:
        """Raises Unreachable, Refused, ProtocolMismatch, DeadlineExceeded."""
        where, port, _ = parse_address(address)
        loop = asyncio.get_running_loop()
        link = cls(_handshake(token, role, name, host), on_push)
        link.address = address
        try:
            async with asyncio.timeout(timeout_s):
                name_checked = where if tls is not None else None
                await loop.create_connection(
                    lambda: link, where, port, ssl=tls, server_hostname=name_checked
                )
                try:
                    await link.ready
                except Unreachable as error:
                    if tls is None:
                        raise
                    raise _closed_at_the_door(address) from error
        except TimeoutError as error:
            link.close()
            raise DeadlineExceeded(f"no answer from {address} within {timeout_s:g} s") from error
        except (MoonpoolError, asyncio.CancelledError):
            link.close()
            raise
        except ssl.SSLError as error:
            raise tls_error(f"the master at {address}", error) from error
        except OSError as error:
            raise Unreachable(f"no master at {address} ({error}); is it running?") from error
        return link

    async def request(self, message: m.ClientRequest, timeout_s: float) -> m.Message:
        number = self._next
        self._next += 1
        future: asyncio.Future[m.Message] = asyncio.get_running_loop().create_future()
        self._replies[number] = future
        try:
            self._send(message, number, max(1, int(timeout_s * 1000)))
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise DeadlineExceeded("the master did not answer in time") from error
        finally:
            self._replies.pop(number, None)

    def tell(self, message: m.Message) -> None:
        """Send without asking for a reply."""
        self._send(message, 0, 0)

    def _send(self, message: m.Message, number: int, left_ms: int) -> None:
        if self._transport is None or self._transport.is_closing():
            raise Closed("the connection to the master is closed")
        self._transport.write(
            encode_frame(MESSAGE, self.encode(message, number, left_ms, self.version))
        )
        if self._transport.get_write_buffer_size() > UNSENT_MAX:
            self.abort(f"the master at {self.address} does not read")

    async def writable(self) -> None:
        """Until the master has taken most of what it was told, or the connection is lost."""
        await self._taken.wait()

    @property
    def closed(self) -> bool:
        """Nothing can be told any more; what it held may still have to go (`lost`)."""
        closing = self._transport is not None and self._transport.is_closing()
        return closing or self.lost.done()

    def abort(self, why: str = "another master leads now") -> None:
        """Whoever waits for an answer stops waiting, with Unreachable."""
        self._fail(Unreachable(why))
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # --- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's are no subclass of asyncio's
        self._transport = stream
        stream.set_write_buffer_limits(high=PAUSE_BYTES)
        assert self._handshake is not None
        first = self._handshake.start()
        stream.write(encode_frame(first.kind, first.payload))

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self._frame(frame)
        except MoonpoolError as error:
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        broken: MoonpoolError = Unreachable("the connection to the master broke")
        if isinstance(error, ssl.SSLError):
            broken = tls_error("the connection to the master broke", error)
        self._fail(broken)
        self._taken.set()
        if not self.lost.done():
            self.lost.set_result(None)

    def pause_writing(self) -> None:
        self._taken.clear()

    def resume_writing(self) -> None:
        self._taken.set()

    def _frame(self, frame: Frame) -> None:
        if self._handshake is not None:
            answer = self._handshake.receive(frame)
            if answer is None:
                assert self._handshake.welcome is not None
                self.version = self._handshake.welcome.version
                self._handshake = None
                self.ready.set_result(None)
            elif self._transport is not None:
                self._transport.write(encode_frame(answer.kind, answer.payload))
            return
        envelope = decode_message(frame, self.version)
        if envelope.id == 0:
            if self._on_push is not None:
                self._on_push(envelope.body)
            return
        future = self._replies.get(envelope.id)
        if future is not None and not future.done():
            future.set_result(envelope.body)

    def _fail(self, error: MoonpoolError) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
        for future in self._replies.values():
            if not future.done():
                future.set_exception(error)
        self.close()
