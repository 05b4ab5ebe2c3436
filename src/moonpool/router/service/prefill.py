"""The prefill half of a split request: sent beside the decode half, its answer thrown away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from moonpool.router.http.rules import Header, request_head
from moonpool.router.http.upstream import WorkerConnection
from moonpool.router.service.desk import Seat

if TYPE_CHECKING:
    from moonpool.router.service.relay import Relay


class PrefillLeg:
    """A Receiver. `failed(why, worker_ill)` is called at most once, never after `end`."""

    def __init__(self, relay: Relay, seat: Seat, failed: Callable[[str, bool], None]) -> None:
        self._relay = relay
        self._failed = failed
        self._connection: WorkerConnection | None = None
        self._over = False
        self._message = b""
        self._body = b""
        self._status = 0
        self.seat = seat
        seat.running += 1

    def begin(self, target: bytes, headers: list[Header], body: bytes) -> None:
        pool = self._relay.connections(self.seat)
        sent = [(b"host", pool.origin.authority), *headers]
        self._message = request_head(b"POST", pool.origin.prefix + target, sent, len(body))
        self._body = body
        self._connect(fresh=False)

    def end(self) -> None:
        """The request is over: if this half still runs, its worker is told by a closed line."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()
        self._close()

    # The worker's answer

    def response_head(self, status: int, headers: list[Header], length: int | None) -> None:
        self._status = status

    def response_data(self, data: bytes) -> None:
        pass

    def response_end(self) -> None:
        self._connection = None
        if self._status != 200:
            self._fail(f"the prefill worker answered {self._status}", False)
        self._close()

    def response_lost(self, why: str, unused: bool) -> None:
        self._connection = None
        if unused and not self._over:
            self._connect(fresh=True)
        else:
            self._fail(why, True)

    # Inside

    def _connect(self, fresh: bool) -> None:
        pool = self._relay.connections(self.seat)
        connection = None if fresh else pool.idle()
        if connection is not None:
            self._ask(connection)
            return
        if pool.full:
            asyncio.get_running_loop().call_soon(
                self._fail, "the prefill worker has all the connections it may have", False
            )
            return
        self._relay.spawn(pool.open()).add_done_callback(self._connected)

    def _connected(self, task: asyncio.Task[WorkerConnection]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._fail(f"cannot connect to the prefill worker: {error}", True)
        elif self._over:
            self._relay.connections(self.seat).put_back(task.result())
        else:
            self._ask(task.result())

    def _ask(self, connection: WorkerConnection) -> None:
        self._connection = connection
        connection.ask(self, b"POST", self._message, self._body)

    def _fail(self, why: str, worker_ill: bool) -> None:
        if not self._over:
            self._close()
            self._failed(why, worker_ill)

    def _close(self) -> None:
        if not self._over:
            self._over = True
            self.seat.running -= 1
