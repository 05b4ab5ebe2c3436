"""Closed-loop clients of a completions endpoint: each sends its next request when one is whole.

Written on bare protocols, so that the load takes little of the machine from what is measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Final, NamedTuple, cast

import numpy as np

from moonpool.core.errors import Unreachable

TOKENS: Final = 512
EVENTS: Final = 16
BODIES: Final = 256
RUN_S: Final = 120.0
_END: Final = b"0\r\n\r\n"


class Load(NamedTuple):
    """What one run found; `ok`: every answer had all its events."""

    p50_us: float
    p99_us: float
    per_s: float
    ok: bool


def messages(port: int) -> list[bytes]:
    """Different prompts, the same on every run; half of each is shared with others."""
    draw = random.Random(7)
    shared = [draw.choices(range(1000, 50_000), k=TOKENS // 2) for _ in range(16)]
    found = []
    for number in range(BODIES):
        tokens = shared[number % 16] + draw.choices(range(1000, 50_000), k=TOKENS // 2)
        record = {"model": "bench", "prompt": tokens, "max_tokens": EVENTS, "stream": True}
        body = json.dumps(record).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n"
            "content-type: application/json\r\naccept: text/event-stream\r\n"
            f"user-agent: bench\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        found.append(head.encode() + body)
    return found


class _Clients:
    """Shared by all connections of one run."""

    def __init__(self, sent: list[bytes], requests: int, connections: int) -> None:
        self.sent = sent
        self.left = requests
        self.running = connections
        self.lap_ns: list[int] = []
        self.ok = True
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop(self, error: Exception | None = None) -> None:
        self.running -= 1
        if self.over.done():
            return
        if error is not None:
            self.over.set_exception(error)
        elif self.running == 0:
            self.over.set_result(None)


class _Client(asyncio.Protocol):
    def __init__(self, clients: _Clients, number: int) -> None:
        self._clients = clients
        self._turn = number * 37
        self._events = 0
        self._tail = b""
        self._began = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        self._events += data.count(b"data: ")
        self._tail = self._tail[-8:] + data
        if not self._tail.endswith(_END):
            return
        self._clients.lap_ns.append(time.perf_counter_ns() - self._began)
        self._clients.ok &= self._events == EVENTS
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        self._clients.stop(Unreachable("the proxy closed a connection") if error else None)

    def _next(self) -> None:
        clients = self._clients
        if clients.left <= 0:
            self._transport.close()
            return
        clients.left -= 1
        self._turn += 1
        self._events, self._tail = 0, b""
        self._began = time.perf_counter_ns()
        self._transport.write(clients.sent[self._turn % len(clients.sent)])


def run_load(port: int, connections: int, requests: int) -> Load:
    """`requests` over so many connections. Raises Unreachable."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(port, connections, requests))


async def _run(port: int, connections: int, requests: int) -> Load:
    clients = _Clients(messages(port), requests, connections)
    loop = asyncio.get_running_loop()
    start = time.perf_counter()
    for number in range(connections):
        await loop.create_connection(
            lambda number=number: _Client(clients, number),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
    async with asyncio.timeout(RUN_S):
        await clients.over
    seconds = time.perf_counter() - start
    p50, p99 = np.percentile(np.array(clients.lap_ns), [50, 99]) / 1e3
    whole = clients.ok and len(clients.lap_ns) == requests
    return Load(float(p50), float(p99), requests / seconds, whole)
