"""A listening socket and the connections on it."""

from __future__ import annotations

import asyncio
import contextlib

from moonpool.core.address import cannot_listen
from moonpool.router.http.client import Answer, ClientConnection, Handler, Timeouts
from moonpool.router.http.request import Request
from moonpool.router.http.rules import Limits

BACKLOG = 2048


class HttpServer:
    """Accepts connections up to a limit and gives whole requests to a handler."""

    def __init__(
        self,
        handler: Handler,
        limits: Limits | None = None,
        timeouts: Timeouts | None = None,
        connections_max: int = 16_384,
    ) -> None:
        self._handler = handler
        self._limits = limits or Limits()
        self._timeouts = timeouts or Timeouts()
        self._connections_max = connections_max
        self._server: asyncio.Server | None = None
        self.connections: set[ClientConnection] = set()

    async def listen(self, host: str, port: int) -> int:
        """Returns the port. Raises TransferError when it cannot be had."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._accept, host, port, backlog=BACKLOG, reuse_address=True
            )
        except OSError as error:
            raise cannot_listen(host, port, error) from None
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def sweep(self, now: float) -> None:
        """Close connections that are waited for too long; call it a few times a second."""
        for connection in list(self.connections):
            connection.sweep(now)

    async def drain(self, timeout_s: float) -> None:
        """Take no new connection, let running answers end for up to `timeout_s`, then close."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.connections:
                    await asyncio.sleep(0.02)
        self.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close()

    def _accept(self) -> ClientConnection:
        handler = self._handler
        if len(self.connections) >= self._connections_max:
            handler = _too_many
        return ClientConnection(handler, self.connections, self._limits, self._timeouts)


def _too_many(request: Request, answer: Answer) -> None:
    answer.send_error(
        503, "overloaded", "too many connections; try again", [(b"retry-after", b"1")]
    )
