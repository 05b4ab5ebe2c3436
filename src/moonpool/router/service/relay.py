"""The proxy: takes whole requests, has a worker chosen for each, and carries answers back."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import secrets
import uuid
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import msgspec

from moonpool.core.errors import BadRequest
from moonpool.router.http.client import Answer
from moonpool.router.http.request import Request
from moonpool.router.http.rules import Header
from moonpool.router.http.upstream import WorkerConnections
from moonpool.router.service.asks import TextReader, may_be_text, read_ask
from moonpool.router.service.desk import Desk, Seat
from moonpool.router.service.exchange import Exchange

T = TypeVar("T")

RELAYED: Final = (
    *("/v1/", "/tokenize", "/detokenize", "/score", "/rerank", "/v2/rerank", "/pooling"),
    "/classify",
)
_INLINE_TEXT_BYTES: Final = 4096  # texts up to here are tokenised on the event loop's thread


class RelayTimeouts(msgspec.Struct, frozen=True):
    """Seconds a worker may take."""

    connect_s: float = 2.0
    first_byte_s: float = 300.0
    idle_s: float = 60.0
    keep_s: float = 30.0


class Relay:
    """Everything the exchanges of one router share."""

    def __init__(
        self,
        desk: Desk,
        reader: TextReader,
        *,
        token: str = "",
        worker_token: str = "",
        timeouts: RelayTimeouts | None = None,
        retries: int = 2,
        connections_max: int = 1024,
        running_max: int = 8192,
        bytes_max: int = 1 << 30,
        tokens_max: int = 1 << 21,
    ) -> None:
        self.desk = desk
        self.running: set[Exchange] = set()
        self.timeouts = timeouts or RelayTimeouts()
        self.retries = retries
        self._reader = reader
        self._token = token.encode()
        self._worker_token = worker_token.encode()
        self._connections_max = connections_max
        self._running_max = running_max
        self._bytes_max = bytes_max
        self.reading = 0
        """Requests whose long texts wait for the tokenizer's thread."""
        self.bytes = 0
        """Of the bodies of all these and all running requests."""
        self._tokens_max = tokens_max
        self._pools: dict[str, WorkerConnections] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._threads = ThreadPoolExecutor(1, "moonpool-tokenizer")
        self._own = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        desk.on_down.append(self._down)
        desk.on_gone.append(self._gone)

    # For the server

    def allowed(self, request: Request) -> bool:
        """Whether the client holds the router's token, where there is one."""
        if not self._token:
            return True
        kind, _, given = request.header(b"authorization").partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token)

    def relays(self, path: str) -> bool:
        """Whether a path is one of the workers' public ones."""
        plain = "/.." not in path and "//" not in path and "%" not in path
        return plain and path.startswith(RELAYED)

    def handle(self, request: Request, answer: Answer) -> None:
        """Carry one request; whatever happens, `answer` gets an end."""
        if len(self.running) + self.reading >= self._running_max:
            self._refuse(answer, 503, f"{self._running_max} requests are running; try again")
        elif self.bytes + len(request.body) > self._bytes_max:
            self._refuse(answer, 503, f"requests of {self._bytes_max} bytes are running; try again")
        elif may_be_text(request) and len(request.body) > _INLINE_TEXT_BYTES:
            self.reading += 1
            self.bytes += len(request.body)
            self.spawn(self._read_aside(request, answer))
        else:
            try:
                ask = read_ask(request, self._reader, self._tokens_max)
            except BadRequest as error:
                self._refuse_bad(answer, error)
            else:
                Exchange(self, request, answer, ask).begin()

    def sweep(self, now: float) -> None:
        """End what takes too long; call it a few times a second."""
        for exchange in list(self.running):
            exchange.sweep(now)
        for pool in self._pools.values():
            pool.sweep(now)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for pool in self._pools.values():
            pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # For exchanges

    def connections(self, seat: Seat) -> WorkerConnections:
        pool = self._pools.get(seat.id)
        if pool is None:
            pool = self._pools[seat.id] = WorkerConnections(
                seat.worker.url,
                connections_max=self._connections_max,
                connect_s=self.timeouts.connect_s,
                keep_s=self.timeouts.keep_s,
            )
        return pool

    def credentials(self, request: Request) -> list[Header]:
        """What the workers get to see of the client's right to ask."""
        if self._worker_token:
            return [(b"authorization", b"Bearer " + self._worker_token)]
        given = request.header(b"authorization")
        return [(b"authorization", given)] if given and not self._token else []

    def request_id(self) -> bytes:
        return f"{self._own}-{next(self._numbers):x}".encode()

    def transfer_id(self) -> str:
        return uuid.uuid4().hex

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that is not lost while it runs."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Inside

    async def _read_aside(self, request: Request, answer: Answer) -> None:
        """Tokenise a long text on a thread; others go on meanwhile."""
        loop = asyncio.get_running_loop()
        try:
            ask = await loop.run_in_executor(
                self._threads, read_ask, request, self._reader, self._tokens_max
            )
        except BadRequest as error:
            self._refuse_bad(answer, error)
        except BaseException:
            answer.cut()
            raise
        else:
            if not answer.over:
                Exchange(self, request, answer, ask).begin()
        finally:
            self.reading -= 1
            self.bytes -= len(request.body)

    def _refuse(self, answer: Answer, status: int, message: str) -> None:
        self.desk.counters.refusals[str(status)] += 1
        answer.send_error(status, "overloaded", message, [(b"retry-after", b"1")])

    def _refuse_bad(self, answer: Answer, error: BadRequest) -> None:
        self.desk.counters.refusals[str(error.status)] += 1
        answer.send_error(error.status, "invalid_request_error", str(error))

    def _down(self, seat: Seat) -> None:
        for exchange in list(self.running):
            exchange.seat_down(seat)

    def _gone(self, seat: Seat) -> None:
        self._down(seat)
        pool = self._pools.pop(seat.id, None)
        if pool is not None:
            pool.retire()
