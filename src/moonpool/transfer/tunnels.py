"""The data plane through TLS: one thread relays between TLS connections and the native endpoint.

    peer  ==TLS==  this thread  ==socket pair==  native endpoint

The pair has no name, so nothing listens without TLS; the endpoint's own hello (token, tenant) runs
inside the tunnel, end to end. Bytes are copied twice more and encrypted: docs/security.md says what
that costs. Used from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from moonpool.core.address import parse_address
from moonpool.core.errors import Closed, TransferError
from moonpool.core.tls import HANDSHAKE_S, tls_error

log = logging.getLogger("moonpool.tunnels")

BUFFER_BYTES: Final = 1 << 20  # beyond it the other side is not read until this one has taken it
TUNNELS_MAX: Final = 4096
PER_PEER_MAX: Final = 1024
ENDED_LOOKS_MAX: Final = 200
T = TypeVar("T")


class Tunnels:
    """`client` to dial with, `server` to listen with; None where that is not done."""

    def __init__(self, client: ssl.SSLContext | None, server: ssl.SSLContext | None) -> None:
        self._client = client
        self._server = server
        self.peers: Counter[str] = Counter()
        self.refused = 0  # beyond a bound
        self.sides: set[_Side] = set()  # the thread's own
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._listening: list[asyncio.Server] = []
        self._thread: threading.Thread | None = None

    def listen(self, host: str, port: int, serve: Callable[[int], None]) -> int:
        """Each peer that comes is given to `serve` as a descriptor that it owns. Returns the port.
        Raises OSError."""
        assert self._server is not None
        context = self._server

        async def start() -> int:
            server = await asyncio.get_running_loop().create_server(
                lambda: _Remote(self, serve),
                host,
                port,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
            self._listening.append(server)
            bound: int = server.sockets[0].getsockname()[1]
            return bound

        return self._run(start(), HANDSHAKE_S)

    def connect(self, address: str, timeout_s: float) -> socket.socket:
        """Our end of a tunnel to "host:port", not blocking. Raises TransferError."""
        assert self._client is not None
        context = self._client
        host, port, _ = parse_address(address)

        async def dial() -> socket.socket:
            near, far = _pair()
            remote = _Side(self)
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(timeout_s):
                    await loop.create_connection(
                        lambda: remote, host, port, ssl=context, server_hostname=host
                    )
                    await _join(self, remote, far)
            except BaseException:
                near.close()
                far.close()
                remote.abort()
                raise
            return near

        try:
            return self._run(dial(), timeout_s + 1)
        except TimeoutError:
            raise tls_error(address, OSError("no answer in time")) from None
        except OSError as error:
            raise tls_error(address, error) from None

    def close(self) -> None:
        """Ends all tunnels and the thread."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def _run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        try:
            future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._started())
        except BaseException:
            work.close()
            raise
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise Closed("the tunnels are closed")
            if self._loop is None:
                import uvloop

                self._loop = uvloop.new_event_loop()
                self._thread = threading.Thread(
                    target=self._serve, args=(self._loop,), name="moonpool-tls", daemon=True
                )
                self._thread.start()
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            for server in self._listening:
                server.close()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            for side in list(self.sides):
                side.abort()
            loop.run_until_complete(self._ended())
        finally:
            loop.close()

    async def _ended(self) -> None:
        """What was aborted has let go of its sockets; bounded."""
        for _ in range(ENDED_LOOKS_MAX):
            await asyncio.sleep(0.005)
            if not self.sides:
                break
        await asyncio.sleep(0)


class _Side(asyncio.Protocol):
    """One end of a tunnel; what it receives the other one sends."""

    def __init__(self, home: Tunnels) -> None:
        self.other: _Side | None = None
        self._home = home
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self._home.sides.add(self)
        if self.other is None:
            self._transport.pause_reading()  # until there is somewhere to put it

    def join(self, other: _Side) -> None:
        self.other = other
        if self._transport is None:
            other.close()  # this end was lost before there was an other to tell
            return
        with suppress(RuntimeError):  # it was never paused
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.write(data)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other._transport is not None:
            self.other._transport.pause_reading()

    def resume_writing(self) -> None:
        other = self.other
        if other is not None and other._transport is not None:
            if not other._transport.is_closing():
                other._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._home.sides.discard(self)
        self._transport = None
        if self.other is not None:
            self.other.close()

    def close(self) -> None:
        """After what is still to be sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _Remote(_Side):
    """A peer that came: bounded, then given to the endpoint."""

    def __init__(self, home: Tunnels, serve: Callable[[int], None]) -> None:
        super().__init__(home)
        self._serve = serve
        self._peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peers = self._home.peers
        peer = str((transport.get_extra_info("peername") or ("",))[0])
        if peers[peer] >= PER_PEER_MAX or peers.total() >= TUNNELS_MAX:
            self._home.refused += 1
            self.abort()
            return
        self._peer = peer
        peers[peer] += 1
        self._task = asyncio.get_running_loop().create_task(self._hand_over())

    async def _hand_over(self) -> None:
        near, far = _pair()
        try:
            await _join(self._home, self, far)
            self._serve(near.detach())
        except (OSError, RuntimeError, TransferError) as error:
            log.info("a tunnel ended before it began: %s", error)
            near.close()
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._peer:
            self._home.peers[self._peer] -= 1
            if self._home.peers[self._peer] <= 0:
                del self._home.peers[self._peer]
            self._peer = ""


def _pair() -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    near.setblocking(False)
    far.setblocking(False)
    return near, far


async def _join(home: Tunnels, remote: _Side, far: socket.socket) -> None:
    """Our end of the pair becomes the other side of `remote`; `far` is taken over."""
    local = _Side(home)
    local.other = remote
    try:
        await asyncio.get_running_loop().create_connection(lambda: local, sock=far)
    except BaseException:
        far.close()
        raise
    remote.join(local)
