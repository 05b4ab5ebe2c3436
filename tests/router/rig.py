"""Real small HTTP workers on plain asyncio streams, a raw client, and a router between them.

The worker and the client are written apart from the router's own HTTP code, so that a mistake of
it does not cancel out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from moonpool.core.router_section import RouterConfig
from moonpool.router.service.asks import TextReader
from moonpool.router.service.server import RouterServer

WAIT_S = 20.0


@dataclass
class Got:
    """One message as it came over the wire."""

    first: str
    headers: dict[str, str]
    body: bytes
    whole: bool = True
    connection: int = 0

    @property
    def status(self) -> int:
        return int(self.first.split()[1])

    @property
    def path(self) -> str:
        return self.first.split()[1]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Payloads of server-sent events."""
        lines = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


async def read_message(reader: asyncio.StreamReader, *, head_only: bool = False) -> Got:
    """One message; `whole` is False when the connection ended too early."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        assert name.lower() not in headers, f"header {name} twice"
        headers[name.lower()] = value.strip()
    got = Got(first, headers, b"")
    if head_only or " 204 " in first or " 304 " in first:
        return got
    try:
        if "chunked" in headers.get("transfer-encoding", ""):
            while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
                got.body += await reader.readexactly(size)
                assert await reader.readexactly(2) == b"\r\n"
            assert await reader.readexactly(2) == b"\r\n"
        elif "content-length" in headers:
            got.body = await reader.readexactly(int(headers["content-length"]))
        elif first.startswith("HTTP/"):
            got.body = await reader.read()
    except asyncio.IncompleteReadError as error:
        got.body += error.partial
        got.whole = False
    except ConnectionError:
        got.whole = False
    return got


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)

Behaviour = Callable[["TinyWorker", Got, asyncio.StreamWriter], Awaitable[None]]


async def stream_four(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
    """The usual behaviour: four tokens as events, then the usage; or one JSON object."""
    asked = json.loads(got.body or b"{}")
    usage = {"prompt_tokens": 8, "prompt_tokens_details": {"cached_tokens": worker.cached_tokens}}
    if asked.get("stream"):
        writer.write(STREAM_HEAD)
        for number in range(4):
            writer.write(chunk(event({"choices": [{"text": f"{worker.name}{number}"}]})))
            await writer.drain()
        writer.write(chunk(event({"choices": [], "usage": usage})))
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    else:
        send_json(writer, 200, {"by": worker.name, "usage": usage})


def send_json(writer: asyncio.StreamWriter, status: int, value: Any, headers: bytes = b"") -> None:
    body = json.dumps(value).encode()
    writer.write(
        b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
        % (status, headers, len(body))
        + body
    )


@dataclass
class TinyWorker:
    """An HTTP worker that does what `behaviour` says and remembers what it was asked."""

    name: str
    behaviour: Behaviour = stream_four
    model: str = "tiny"
    adapters: tuple[str, ...] = ()
    cached_tokens: int = 0
    health_status: int = 200
    """0: asked for its health, it says nothing, as a stopped process does."""
    context: int | None = None
    metrics: str = ""
    asked: list[Got] = field(default_factory=list)
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0
    port: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connected(self) -> int:
        """Connections open now."""
        return len(self._writers)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def kill(self) -> None:
        """As a killed process: nobody listens, every connection is reset."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self._writers.add(writer)
        try:
            while True:
                got = await read_message(reader)
                got.connection = number
                if got.path == "/health" and not self.health_status:
                    continue
                if got.path == "/health":
                    send_json(writer, self.health_status, {})
                elif got.path == "/v1/models":
                    card = {"id": self.model, "max_model_len": self.context, "parent": None}
                    tuned = [{"id": name, "parent": self.model} for name in self.adapters]
                    send_json(writer, 200, {"data": [*tuned, card]})
                elif got.path == "/metrics":
                    text = self.metrics.encode()
                    writer.write(
                        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text
                    )
                else:
                    self.asked.append(got)
                    await self._behave(got, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _behave(
        self, got: Got, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Run the behaviour, and stop it when the other side hangs up."""
        acting = asyncio.ensure_future(self.behaviour(self, got, writer))
        watching = asyncio.ensure_future(_hung_up(reader))
        try:
            await asyncio.wait({acting, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not acting.done():
                self.aborted.set()
                acting.cancel()
                raise ConnectionResetError
            await acting
        finally:
            watching.cancel()


async def _hung_up(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def routed(
    *workers: TinyWorker,
    ready: int | None = None,
    reader: TextReader | None = None,
    **settings: Any,
) -> AsyncIterator[RouterServer]:
    """Started workers behind a started router that has found `ready` of them (all) well."""
    for worker in workers:
        if worker.port == 0:
            await worker.start()
    settings.setdefault("workers", " ".join(worker.url for worker in workers))
    # Dynamo's cost knows no learnt speeds: equal workers get requests in turn.
    settings = {"port": 0, "health_ms": 50, "drain_ms": 100, "cost": "dynamo", **settings}
    router = RouterServer(RouterConfig(**settings), reader)
    await router.start()
    try:
        wanted = len(workers) if ready is None else ready
        await until(lambda: sum(seat.ready for seat in router.desk.seats.values()) >= wanted)
        yield router
    finally:
        await router.close()
        for worker in workers:
            worker.kill()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


def post(path: str, value: Any, headers: str = "") -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: router\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def completion(tokens: list[int] | str, *, stream: bool = False, **more: Any) -> bytes:
    return post("/v1/completions", {"prompt": tokens, "stream": stream, **more})


async def ask(router: RouterServer, message: bytes, *, head_only: bool = False) -> Got:
    """One message on a connection of its own."""
    async with connected(router) as (reader, writer):
        writer.write(message)
        async with asyncio.timeout(WAIT_S):
            return await read_message(reader, head_only=head_only)


async def post_json(router: RouterServer, path: str, value: Any) -> Got:
    return await ask(router, post(path, value))


async def get(router: RouterServer, path: str, headers: str = "") -> Got:
    return await ask(router, f"GET {path} HTTP/1.1\r\nHost: r\r\n{headers}\r\n".encode())


@contextlib.asynccontextmanager
async def connected(
    router: RouterServer,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
