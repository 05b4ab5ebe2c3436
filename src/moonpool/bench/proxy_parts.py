"""The other processes of `moonpool bench proxy`: workers, the router, a plain pass-through.

    python -m moonpool.bench.proxy_parts worker|router|passthrough PARENT [PORT ...]

Each prints one JSON line when it is ready and ends with its parent.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any, Final, cast

from moonpool.bench.proxy_load import EVENTS
from moonpool.pool.process import end_with

_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_EVENT: Final = (
    b'data: {"id":"cmpl-1","object":"text_completion","model":"bench","choices":'
    b'[{"index":0,"text":" token","finish_reason":null}]}\n\n'
)
_CHUNK: Final = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)


class _Worker(asyncio.Protocol):
    """Answers every request with EVENTS events, one a turn of the event loop."""

    def __init__(self) -> None:
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET"):
            self._data = body
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(body) >= length:
            self._data = body[length:]
            self._transport.write(_HEAD)
            self._say(EVENTS)

    def _say(self, left: int) -> None:
        if left:
            self._transport.write(_CHUNK)
            self._loop.call_soon(self._say, left - 1)
        else:
            self._transport.write(b"0\r\n\r\n")


def _ready(port: int, **more: Any) -> None:
    print(json.dumps({"port": port, **more}), flush=True)


async def _work() -> None:
    loop = asyncio.get_running_loop()
    ports = []
    for _ in range(2):
        server = await loop.create_server(_Worker, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
    _ready(ports[0], ports=ports)
    await asyncio.Event().wait()


def _route(ports: list[str]) -> None:
    from moonpool.core.router_section import RouterConfig
    from moonpool.router.service.server import run_router

    specs = [f"http://127.0.0.1:{port},model=bench,block=16,context=32768" for port in ports]
    config = RouterConfig(port=0, workers=" ".join(specs))
    run_router(config, lambda router: _ready(router.port))


def _pass_through(port: str) -> None:
    """What people write first: Starlette's StreamingResponse over an aiohttp request."""
    import aiohttp
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    sessions: list[Any] = []

    async def relay(request: Request) -> StreamingResponse:
        if not sessions:
            sessions.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        body = await request.body()
        url = f"http://127.0.0.1:{port}{request.url.path}"
        answer = await sessions[0].post(
            url, data=body, headers={"content-type": "application/json"}
        )

        async def chunks() -> Any:
            async for data in answer.content.iter_any():
                yield data
            answer.release()

        kind = answer.headers["content-type"]
        return StreamingResponse(chunks(), answer.status, media_type=kind)

    application = Starlette(routes=[Route("/v1/completions", relay, methods=["POST"])])
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    _ready(listening.getsockname()[1])
    config = uvicorn.Config(
        application, loop="uvloop", http="httptools", access_log=False, log_level="error"
    )
    uvicorn.Server(config).run(sockets=[listening])


def main() -> None:
    import uvloop

    role, parent, *words = sys.argv[1:]
    end_with(int(parent))
    if role == "worker":
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_work())
    elif role == "router":
        _route(words)
    else:
        _pass_through(*words)


if __name__ == "__main__":
    main()
