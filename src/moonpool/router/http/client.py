"""The side of the clients: one protocol object per connection, requests in turn, answers bounded.

A connection serves one request at a time; what a client sends ahead waits, and a client that sends
too far ahead is not read from. It never answers two requests out of order and never mixes answers.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, cast

import msgspec

from moonpool.core.errors import BadRequest
from moonpool.router.http.request import Request, RequestReader
from moonpool.router.http.rules import Header, Limits, has_body, response_head

WRITE_HIGH_BYTES = 256 << 10
WRITE_LOW_BYTES = 64 << 10
FLUSH_BYTES = 64 << 10
LINGER_S = 0.5


class Watcher(Protocol):
    """Who wants to know how the client of a running answer fares."""

    def client_gone(self) -> None: ...
    def client_full(self) -> None: ...
    def client_drained(self) -> None: ...


class Timeouts(msgspec.Struct, frozen=True):
    """Seconds a client may take."""

    request_s: float = 60.0
    """For a whole request, from its first byte."""
    idle_s: float = 75.0
    """Between two requests."""
    stall_s: float = 60.0
    """Without taking any byte of an answer."""


Handler = Callable[[Request, "Answer"], None]


class Answer:
    """The answer to one request: `start`, `write`..., `end`; or `send` for a whole one.

    After `end`, `cut` or a lost client nothing more is written; late calls do nothing.
    """

    __slots__ = ("_chunked", "_connection", "_over", "_request", "started", "status", "watcher")

    def __init__(self, connection: ClientConnection, request: Request) -> None:
        self._connection = connection
        self._request = request
        self._chunked = False
        self._over = False
        self.started = False
        self.status = 0
        self.watcher: Watcher | None = None

    @property
    def over(self) -> bool:
        return self._over

    def start(self, status: int, headers: Iterable[Header], length: int | None) -> None:
        """Write the head; `length` None: not known, the body comes in chunks."""
        if self._over:
            return
        self.started = True
        self.status = status
        request, lines = self._request, [response_head(status, headers)]
        if has_body(request.method, status):
            if length is not None:
                lines.append(b"content-length: %d\r\n" % length)
            elif request.version == "1.1":
                self._chunked = True
                lines.append(b"transfer-encoding: chunked\r\n")
            else:
                self._connection.closing = True
        elif length is not None and status >= 200 and status != 204:
            lines.append(b"content-length: %d\r\n" % length)
        if self._connection.closing or not request.keep_alive:
            self._connection.closing = True
            lines.append(b"connection: close\r\n")
        elif request.version == "1.0":
            lines.append(b"connection: keep-alive\r\n")
        lines.append(b"\r\n")
        self._connection.write(b"".join(lines))

    def write(self, data: bytes) -> None:
        if self._over or not data:
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        self._connection.write(data)

    def end(self) -> None:
        if self._over:
            return
        if self._chunked:
            self._connection.write(b"0\r\n\r\n")
        self._over = True
        self._connection.finished()

    @property
    def full(self) -> bool:
        """Whether the client has stopped taking bytes."""
        return self._connection.full

    def cut(self) -> None:
        """Close without an end once all written has gone out: the client sees it is not whole."""
        if not self._over:
            self._over = True
            self._connection.cut()

    def send(self, status: int, body: bytes, kind: bytes, headers: Iterable[Header] = ()) -> None:
        """A whole answer."""
        self.start(status, [(b"content-type", kind), *headers], len(body))
        if has_body(self._request.method, status):
            self.write(body)
        self.end()

    def send_json(self, status: int, value: object, headers: Iterable[Header] = ()) -> None:
        self.send(status, msgspec.json.encode(value), b"application/json", headers)

    def send_error(
        self, status: int, kind: str, message: str, headers: Iterable[Header] = ()
    ) -> None:
        """An error in the form of OpenAI's API."""
        error = {"message": message, "type": kind, "param": None, "code": status}
        self.send_json(status, {"error": error}, headers)

    def lost(self) -> None:
        """The client went away; called by its connection."""
        if not self._over:
            self._over = True
            if self.watcher is not None:
                self.watcher.client_gone()


class ClientConnection(asyncio.Protocol):
    """States: idle -> reading -> answering -> idle, until either side closes."""

    def __init__(
        self,
        handler: Handler,
        connections: set[ClientConnection],
        limits: Limits,
        timeouts: Timeouts,
    ) -> None:
        self._handler = handler
        self._connections = connections
        self._timeouts = timeouts
        self._reader = RequestReader(limits, self._on_request, self._on_expect)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Request] = deque()
        self._answer: Answer | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._full_since = 0.0
        self._broken: BadRequest | None = None
        self._due = 0.0
        self._reading_request = False
        self._paused = False
        self.closing = False

    # asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        self._connections.add(self)
        self._due = time.monotonic() + self._timeouts.request_s

    def data_received(self, data: bytes) -> None:
        if self._broken is not None or self.closing:
            return
        try:
            self._reader.feed(data)
        except BadRequest as error:
            self._broken = error
        if self._reader.upgraded:
            self.closing = True
        if self._reader.in_request != self._reading_request:
            self._reading_request = self._reader.in_request
            if self._reading_request:
                self._due = time.monotonic() + self._timeouts.request_s
        self._go_on()

    def eof_received(self) -> bool:
        return False  # a client that says no more wants no more: its request is aborted

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        self._transport = None
        self._waiting.clear()
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.lost()

    def pause_writing(self) -> None:
        self._full_since = time.monotonic()
        if self._answer is not None and self._answer.watcher is not None:
            self._answer.watcher.client_full()

    def resume_writing(self) -> None:
        self._full_since = 0.0
        if self._answer is not None and self._answer.watcher is not None:
            self._answer.watcher.client_drained()

    # An answer's calls

    def write(self, data: bytes) -> None:
        """What is written in one turn of the event loop goes out in one call."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > FLUSH_BYTES:
            self._flush()

    def finished(self) -> None:
        self._flush()
        self._answer = None
        self._due = time.monotonic() + self._timeouts.idle_s
        if self.closing:
            self.close_gently()
        elif self._waiting or self._broken is not None or self._paused:
            asyncio.get_running_loop().call_soon(self._go_on)

    def cut(self) -> None:
        self._flush()
        self._answer = None
        self.closing = True
        if self._transport is not None:
            self._transport.close()

    @property
    def full(self) -> bool:
        return self._full_since > 0

    # The server's calls

    def sweep(self, now: float) -> None:
        """Close what has been waited for long enough."""
        if self._full_since and now - self._full_since > self._timeouts.stall_s:
            self.close()
        elif self._answer is None and now > self._due:
            if self._reader.in_request and self._broken is None:
                self._broken = BadRequest("the request did not come in time", 408)
                self._go_on()
            else:
                self.close()

    def drain(self) -> None:
        """Close after what is running, at once when idle."""
        self.closing = True
        if self._answer is None and not self._waiting:
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close_gently(self) -> None:
        """Close once everything written has gone out.

        After a refusal the rest of the request is still read for a moment and thrown away: closing
        on unread bytes would reset the connection and the client would never see why.
        """
        if self._transport is None:
            return
        if self._broken is None:
            self._transport.close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()
            asyncio.get_running_loop().call_later(LINGER_S, self.close)

    # Inside

    def _flush(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        if out and self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _on_request(self, request: Request) -> None:
        self._waiting.append(request)

    def _on_expect(self) -> None:
        if self._answer is None and not self._waiting:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _go_on(self) -> None:
        """Start the next request if none runs; stop reading from who sends too far ahead."""
        while self._answer is None and self._waiting and self._transport is not None:
            request = self._waiting.popleft()
            answer = self._answer = Answer(self, request)
            self._handler(request, answer)
        if self._transport is None:
            return
        if self._answer is None and self._broken is not None:
            self._send_refusal(self._broken)
        ahead = bool(self._waiting)
        if ahead != self._paused:
            self._paused = ahead
            if ahead:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _send_refusal(self, error: BadRequest) -> None:
        self.closing = True
        answer = self._answer = Answer(self, Request(b"GET", b"/", [], keep_alive=False))
        answer.send_error(error.status, "invalid_request_error", str(error))
