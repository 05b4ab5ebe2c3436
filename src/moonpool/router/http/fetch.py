"""One small HTTP call to a neighbour (health, discovery, other routers), whole answers only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from moonpool.core.errors import BadFrame, DeadlineExceeded, Unreachable
from moonpool.router.http.rules import Header, request_head
from moonpool.router.http.upstream import WorkerConnection, WorkerConnections

BODY_BYTES_MAX = 64 << 20


class Fetched:
    """A whole answer."""

    def __init__(self, status: int, headers: list[Header], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class _Gatherer:
    """A Receiver that keeps everything, up to a limit."""

    def __init__(self, limit: int) -> None:
        self.done: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        self._limit = limit
        self._status = 0
        self._headers: list[Header] = []
        self._body: list[bytes] = []
        self._size = 0

    def response_head(self, status: int, headers: list[Header], length: int | None) -> None:
        self._status, self._headers = status, headers

    def response_data(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= self._limit:
            self._body.append(data)
        elif not self.done.done():
            self.done.set_exception(BadFrame(f"an answer of more than {self._limit} bytes"))

    def response_end(self) -> None:
        if not self.done.done():
            self.done.set_result(Fetched(self._status, self._headers, b"".join(self._body)))

    def response_lost(self, why: str, unused: bool) -> None:
        if not self.done.done():
            self.done.set_exception(Unreachable(f"the answer did not come: {why}"))


class Caller:
    """Calls to one server, on a kept connection. One call at a time is enough for its users."""

    def __init__(self, url: str, headers: Mapping[str, str] | Iterable[Header] = ()) -> None:
        self._connections = WorkerConnections(url)
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        self._headers = [(_bytes(name), _bytes(value)) for name, value in pairs]
        self._headers.append((b"host", self._connections.origin.authority))
        self._url = url

    async def call(
        self,
        target: str,
        *,
        body: bytes | None = None,
        timeout_s: float = 5.0,
        bytes_max: int = BODY_BYTES_MAX,
    ) -> Fetched:
        """GET, or POST when there is a `body`.

        Raises Unreachable, DeadlineExceeded, BadFrame (too long an answer).
        """
        method = b"GET" if body is None else b"POST"
        connection: WorkerConnection | None = None
        over = False
        try:
            async with asyncio.timeout(timeout_s):
                connection = self._connections.idle() or await self._connections.open()
                gatherer = _Gatherer(bytes_max)
                message = request_head(method, target.encode(), self._headers, len(body or b""))
                connection.ask(gatherer, method, message, body or b"")
                found = await gatherer.done
                over = True
                return found
        except TimeoutError:
            raise DeadlineExceeded(
                f"{self._url}{target} did not answer within {timeout_s:g} s"
            ) from None
        except OSError as error:
            raise Unreachable(f"{self._url}: {error}") from error
        finally:
            if connection is not None and not over:
                connection.abandon()

    def close(self) -> None:
        self._connections.close()


async def fetch(
    url: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | Iterable[Header] = (),
    timeout_s: float = 5.0,
    bytes_max: int = BODY_BYTES_MAX,
) -> Fetched:
    """One call on a connection of its own; raises as Caller.call does, and BadConfig: no URL."""
    parts = urlsplit(url)
    caller = Caller(f"{parts.scheme}://{parts.netloc}", headers)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        return await caller.call(target, body=body, timeout_s=timeout_s, bytes_max=bytes_max)
    finally:
        caller.close()


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")
