"""The side of the workers: kept connections, one request at a time each, answers as callbacks.

A connection that ends before the first byte of an answer says so, and whether it had been used
before: a worker may close a kept connection at the very moment a request goes out on it, which is
no sign that the worker is ill. Nothing here decides what to do next.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Coroutine
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from moonpool.core.errors import BadConfig
from moonpool.router.http.client import WRITE_HIGH_BYTES, WRITE_LOW_BYTES
from moonpool.router.http.rules import Header, has_body, value_of

HEAD_BYTES_MAX = 64 << 10
_UNTIL_CLOSE = -2
_CHUNKED = -1


class Origin(NamedTuple):
    """Where a worker listens."""

    host: str
    port: int
    tls: bool
    authority: bytes
    prefix: bytes
    """Path before every target, without its last slash."""


def parse_origin(url: str) -> Origin:
    """The parts of "http://host:port[/prefix]". Raises BadConfig."""
    try:
        parts = urlsplit(url)
        port = parts.port
        authority = parts.netloc.rpartition("@")[2].encode("idna")
    except ValueError as error:
        raise BadConfig(f"{url!r} is no URL of a worker: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise BadConfig(f"{url!r} is no URL of a worker; write 'http://host:port'")
    tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/").encode()
    return Origin(parts.hostname, port or (443 if tls else 80), tls, authority, prefix)


class Receiver(Protocol):
    """Who gets the answer of one request; after `response_end` or `response_lost` no more calls."""

    def response_head(self, status: int, headers: list[Header], length: int | None) -> None: ...
    def response_data(self, data: bytes) -> None: ...
    def response_end(self) -> None: ...
    def response_lost(self, why: str, unused: bool) -> None:
        """`unused`: on a kept connection, before any byte of an answer came."""


class WorkerConnection(asyncio.Protocol):
    """States: open -> asked -> answering -> open (kept) or closed."""

    def __init__(self, pool: WorkerConnections) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._upgrade: type[Exception] = Exception
        self._error: type[Exception] = Exception
        self._receiver: Receiver | None = None
        self._method = b"GET"
        self._headers: list[Header] = []
        self._bytes_before_head = 0
        self._body_length = 0
        self._body_seen = 0
        self._heard = False
        self._requests = 0
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        self._parser = HttpResponseParser(self)
        self._upgrade, self._error = HttpParserUpgrade, HttpParserError

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def ask(self, receiver: Receiver, method: bytes, message: bytes, body: bytes) -> None:
        """Send one request; `message` is its whole head."""
        assert self._receiver is None and self._transport is not None
        self._receiver, self._method = receiver, method
        self._heard, self._bytes_before_head = False, 0
        self._headers = []
        self._requests += 1
        self._transport.write(message + body if len(body) < 65536 else message)
        if len(body) >= 65536:
            self._transport.write(body)

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def abandon(self) -> None:
        """The answer is not wanted any more: close, which tells the worker."""
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    # asyncio's calls

    def data_received(self, data: bytes) -> None:
        if self._receiver is None:  # an answer to nothing
            self.abandon()
            return
        self._heard = True
        try:
            self._parser.feed_data(data)
        except self._upgrade:
            self._fail("the worker switched protocols")
        except self._error as error:
            self._fail(f"the worker answered no valid HTTP: {error}")
        else:
            if self._body_length == 0 and self._receiver is not None:
                self._bytes_before_head += len(data)
                if self._bytes_before_head > HEAD_BYTES_MAX:
                    self._fail(f"the worker's head is over {HEAD_BYTES_MAX} bytes")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._pool.forget(self)
        receiver, self._receiver = self._receiver, None
        if receiver is None:
            return
        if self._body_length == _UNTIL_CLOSE and error is None:
            receiver.response_end()
        else:
            why = "the worker closed the connection" if error is None else f"lost: {error}"
            receiver.response_lost(why, not self._heard and self._requests > 1)

    # The parser's calls

    def on_message_begin(self) -> None:
        if self._receiver is None:  # an answer to nothing: never let it meet the next request
            self.abandon()
        self._headers = []
        self._body_length = self._body_seen = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._body_length == 0:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._receiver is None:
            return
        length = self._response_length(status)
        self._receiver.response_head(
            status, self._headers, length if length is None or length >= 0 else None
        )
        if self._method == b"HEAD":
            self._finish(keep=False)

    def on_body(self, body: bytes) -> None:
        if self._receiver is not None:
            self._receiver.response_data(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200 and self._receiver is not None:
            self._finish(keep=self._parser.should_keep_alive())

    # Inside

    def _response_length(self, status: int) -> int | None:
        """The body's length as told; negative when only its end tells, None for no body."""
        told = value_of(self._headers, b"content-length")
        if not has_body(self._method, status):
            self._body_length = _CHUNKED
            return int(told) if told else None
        if told:
            self._body_length = int(told) or _CHUNKED
            return int(told)
        coded = value_of(self._headers, b"transfer-encoding")
        self._body_length = _CHUNKED if coded else _UNTIL_CLOSE
        return self._body_length

    def _finish(self, keep: bool) -> None:
        receiver, self._receiver = self._receiver, None
        if keep and not self.closed:
            self._body_length = 0
            self._pool.put_back(self)
        else:
            self.abandon()
        if receiver is not None:
            receiver.response_end()

    def _fail(self, why: str) -> None:
        receiver = self._receiver
        self.abandon()
        if receiver is not None:
            receiver.response_lost(why, False)


class WorkerConnections:
    """All connections to one worker; idle ones are kept, the last used is used first."""

    def __init__(
        self,
        url: str,
        *,
        connections_max: int = 1024,
        connect_s: float = 2.0,
        keep_s: float = 30.0,
    ) -> None:
        self.origin = parse_origin(url)
        self._connections_max = connections_max
        self._connect_s = connect_s
        self._keep_s = keep_s
        self._idle: list[WorkerConnection] = []
        self._all: set[WorkerConnection] = set()
        self._opening = 0
        self._retired = False
        self._tls = ssl.create_default_context() if self.origin.tls else None

    @property
    def count(self) -> int:
        return len(self._all) + self._opening

    @property
    def full(self) -> bool:
        return not self._idle and self.count >= self._connections_max

    def idle(self) -> WorkerConnection | None:
        """A kept connection, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    def open(self) -> Coroutine[Any, Any, WorkerConnection]:
        """A new connection; the awaited call raises OSError or TimeoutError."""
        self._opening += 1
        return self._open()

    async def _open(self) -> WorkerConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    lambda: WorkerConnection(self),
                    self.origin.host,
                    self.origin.port,
                    ssl=self._tls,
                )
        finally:
            self._opening -= 1
        self._all.add(connection)
        return connection

    def put_back(self, connection: WorkerConnection) -> None:
        if self._retired:
            connection.abandon()
            return
        connection.resume()
        connection.idle_since = time.monotonic()
        self._idle.append(connection)

    def forget(self, connection: WorkerConnection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Close what has been idle too long."""
        while self._idle and now - self._idle[0].idle_since > self._keep_s:
            self._idle.pop(0).abandon()

    def retire(self) -> None:
        """The worker is not asked any more: close what is idle, the others once they are."""
        self._retired = True
        for connection in list(self._idle):
            connection.abandon()
        self._idle.clear()

    def close(self) -> None:
        """Close all, running ones too; nobody is told."""
        for connection in list(self._all):
            connection.abandon()
        self._idle.clear()
