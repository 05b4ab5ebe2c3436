"""One HTTP request and its answer over ASGI: the few steps the server needs, each bounded.

No framework: there are five routes, and an answer that must notice at once that its reader left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from moonpool.engine.server.requests import BadRequest

BODY_BYTES_MAX: Final = 32 << 20

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Gone(Exception):
    """The client closed its connection."""


class Exchange:
    """What came in and what goes out; `started` once the answer's head is on its way."""

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        self.started = False
        self._receive = receive
        self._send = send

    async def body(self) -> bytes:
        """All of it. Raises BadRequest when it is too large, Gone when it breaks off."""
        pieces: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            piece = message.get("body", b"")
            size += len(piece)
            if size > BODY_BYTES_MAX:
                raise BadRequest(f"the body is over {BODY_BYTES_MAX} bytes", status=413)
            pieces.append(piece)
            if not message.get("more_body", False):
                return b"".join(pieces)

    async def until_gone(self) -> None:
        """Returns when the client has closed its connection; after `body` only."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(
        self,
        status: int,
        record: Mapping[str, Any] | str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """A whole answer: JSON, or text."""
        is_text = isinstance(record, str)
        data = record.encode() if isinstance(record, str) else msgspec.json.encode(record)
        kind = "text/plain; version=0.0.4; charset=utf-8" if is_text else "application/json"
        sizes = {"content-type": kind, "content-length": str(len(data))}
        await self._start(status, {**sizes, **(headers or {})})
        await self._send({"type": "http.response.body", "body": data})

    async def start_events(self, headers: Mapping[str, str] | None = None) -> None:
        """The head of a stream of server-sent events."""
        kinds = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        await self._start(200, {**kinds, **(headers or {})})

    async def send_events(self, data: bytes, *, last: bool = False) -> None:
        """A piece of the stream."""
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        pairs = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})
