"""One request from the moment it is whole until its answer is over.

    choosing -> connecting -> asked -> answering -> over
       ^______________________|  a worker that fails before the first byte: another one is chosen

The head of an answer is held until the first byte of its body: engines send the head at once and
the first token much later, and until a byte has gone to the client another worker can still answer.
After it nothing is tried again: the client sees an answer that is cut, never one of two mixed.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from moonpool.core.errors import BadRequest, NoWorker, RequestTooLarge, WorkersBusy
from moonpool.router.base import Decision
from moonpool.router.fleet import BLOCK_SIZE_DEFAULT
from moonpool.router.http.client import Answer
from moonpool.router.http.request import Request
from moonpool.router.http.rules import Header, passed_on, request_head, retry_after_s, value_of
from moonpool.router.http.upstream import WorkerConnection, WorkerConnections
from moonpool.router.service.asks import WISHES, Ask
from moonpool.router.service.desk import Seat
from moonpool.router.service.prefill import PrefillLeg
from moonpool.router.service.split import split_bodies
from moonpool.router.service.usage import UsageWatch

if TYPE_CHECKING:
    from moonpool.router.service.relay import Relay

BUSY: Final = frozenset((429, 503))
TRY_ANOTHER: Final = frozenset((429, 502, 503, 504))
_OWN_HEADERS: Final = WISHES | {b"host", b"x-request-id", b"authorization"}
_EVENT_STREAM: Final = b"text/event-stream"


class Exchange:
    """A Receiver of the worker's answer and the Watcher of the client's side."""

    def __init__(self, relay: Relay, request: Request, answer: Answer, ask: Ask) -> None:
        self._relay = relay
        self._desk = relay.desk
        self._request = request
        self._ask = ask
        self._headers = [h for h in passed_on(request.headers) if h[0] not in _OWN_HEADERS]
        self._headers += relay.credentials(request)
        told = request.header(b"x-request-id")
        self._headers.append((b"x-request-id", told or relay.request_id()))
        self.answer = answer
        self.seat: Seat | None = None
        self.due = 0.0
        self._decision: Decision | None = None
        self._connection: WorkerConnection | None = None
        self._prefill: PrefillLeg | None = None
        self._head: tuple[int, list[Header], int | None] | None = None
        self._watch = UsageWatch()
        self._tried: frozenset[str] = frozenset()
        self._attempts = 0
        self._began = 0.0
        self._why = ""
        self._block_tokens = BLOCK_SIZE_DEFAULT
        self._said: tuple[int, float] | None = None
        self._over = False

    def begin(self) -> None:
        self.answer.watcher = self
        self._began = time.monotonic()
        self._relay.running.add(self)
        self._relay.bytes += len(self._request.body)
        self._attempt()

    # Choosing and asking

    def _attempt(self) -> None:
        self._attempts += 1
        try:
            decision = self._desk.decide(self._ask, self._tried)
        except WorkersBusy as error:
            self._refuse(429, "overloaded", str(error), error.retry_after_s)
        except NoWorker as error:
            self._refuse_without_worker(error)
        except RequestTooLarge as error:
            self._refuse(400, "context_length_exceeded", str(error))
        except BadRequest as error:
            kind = "model_not_found" if error.status == 404 else "invalid_request_error"
            self._refuse(error.status, kind, str(error))
        else:
            self._decision = decision
            self.seat = self._desk.seats[decision.worker]
            self.seat.running += 1
            self._connect(self._relay.connections(self.seat))

    def _connect(self, pool: WorkerConnections, *, fresh: bool = False) -> None:
        self.due = time.monotonic() + self._relay.timeouts.first_byte_s
        if pool.full:
            self._another("it has all the connections it may have", busy_s=1.0)
            return
        connection = None if fresh else pool.idle()
        if connection is not None:
            self._send(connection, pool)
            return
        task = self._relay.spawn(pool.open())
        task.add_done_callback(partial(self._connected, self._attempts, pool))

    def _connected(
        self, attempt: int, pool: WorkerConnections, task: asyncio.Task[WorkerConnection]
    ) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if self._over or attempt != self._attempts:
            if error is None:
                pool.put_back(task.result())
        elif error is None:
            self._send(task.result(), pool)
        else:
            why = f"cannot connect: {error or 'no answer in time'}"
            self._worker_failed(why, surely=isinstance(error, ConnectionRefusedError))

    def _send(self, connection: WorkerConnection, pool: WorkerConnections) -> None:
        decision, request = self._decision, self._request
        assert decision is not None
        body = request.body
        if decision.prefill is not None and self._prefill is None:
            body = self._split(decision.prefill)
        headers = [(b"host", pool.origin.authority), *self._headers]
        if self.seat is not None and self.seat.worker.ranks > 1:
            headers.append((b"x-data-parallel-rank", b"%d" % decision.rank))
        target = pool.origin.prefix + request.target
        self._connection = connection
        message = request_head(request.method, target, headers, len(body))
        connection.ask(self, request.method, message, body)

    def _split(self, decision: Decision) -> bytes:
        """Start the prefill half; returns the body of the other one."""
        seat = self._desk.seats[decision.worker]
        if not self._ask.split or not seat.worker.transfer:
            return self._request.body
        bodies = split_bodies(
            self._request.body,
            self._relay.transfer_id(),
            seat.worker.transfer,
            seat.worker.labels.get("engine_id"),
        )
        self._prefill = PrefillLeg(self._relay, seat, self._prefill_failed)
        self._prefill.begin(self._request.target, self._headers, bodies.prefill)
        return bodies.decode

    # The worker's answer

    def response_head(self, status: int, headers: list[Header], length: int | None) -> None:
        if status in TRY_ANOTHER and self._attempts <= self._relay.retries:
            wait_s = retry_after_s(headers, 1.0)
            self._said = (status, wait_s)
            self._drop_connection()
            why = f"it answered {status}"
            self._another(why, busy_s=wait_s if status in BUSY else 0.0)
            return
        self._head = (status, headers, length)

    def response_data(self, data: bytes) -> None:
        answer = self.answer
        if not answer.started:
            self._start()
        self.due = time.monotonic() + self._relay.timeouts.idle_s
        seen = self._watch.events
        if self._watch.see(data):
            self._count_blocks(seen)
        answer.write(data)

    def response_end(self) -> None:
        self._connection = None
        if not self.answer.started:
            self._start()
        self.answer.end()
        status = self.answer.status
        hit = self._watch.cached_tokens() if status == 200 else None
        self._finish("ok" if status < 400 else "error", hit)

    def response_lost(self, why: str, unused: bool) -> None:
        self._connection = None
        seat = self.seat
        if self.answer.started:
            self._cut()
            self._tell_ill(seat, why)
        elif unused and seat is not None:
            self._desk.counters.retries["stale connection"] += 1
            self._connect(self._relay.connections(seat), fresh=True)
        else:
            self._worker_failed(why)

    def _start(self) -> None:
        assert self._head is not None
        status, headers, length = self._head
        if status == 200 and self._decision is not None:
            self._block_tokens = self._desk.block_tokens(self._decision.worker)
            self._desk.first_token(self._decision.booking_id)
            self._desk.counters.first_token_s.add(time.monotonic() - self._began)
        self.answer.start(status, passed_on(headers), length)

    def _count_blocks(self, seen_before: int) -> None:
        if self.seat is None or self._decision is None or not self._ask.stream:
            return
        size = self._block_tokens
        blocks = self._watch.events // size - seen_before // size
        if blocks:
            self._desk.grow(self._decision.booking_id, blocks)

    # The client's side

    def client_gone(self) -> None:
        self._drop_connection()
        self._finish("client_gone")

    def client_full(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def client_drained(self) -> None:
        if self._connection is not None:
            self._connection.resume()
            self.due = time.monotonic() + self._relay.timeouts.idle_s

    # What goes wrong

    def sweep(self, now: float) -> None:
        """End what takes too long; a client that does not read is the client's sweep."""
        if now < self.due or self.answer.full:
            return
        seat = self.seat
        self._drop_connection()
        if self.answer.started:
            self._cut("timeout")
        else:
            first_byte_s = self._relay.timeouts.first_byte_s
            message = f"the worker sent nothing within {first_byte_s:g} s"
            self._refuse(504, "timeout", message, outcome="timeout")
        self._tell_ill(seat, "it did not answer in time")

    def seat_down(self, seat: Seat) -> None:
        """A worker was found to be down; whatever has not begun to stream goes elsewhere."""
        if self.answer.started or self._over:
            return
        if seat is self.seat:
            self._drop_connection()
            self._another(f"it is down: {seat.health.why}")
        elif self._prefill is not None and seat is self._prefill.seat:
            self._prefill_failed(f"it is down: {seat.health.why}", worker_ill=False)

    def _worker_failed(self, why: str, *, surely: bool = False) -> None:
        seat = self.seat
        self._another(why, busy_s=1.0)
        self._tell_ill(seat, why, surely=surely)

    def _prefill_failed(self, why: str, worker_ill: bool) -> None:
        """Ask again without that worker, as long as there is a try left.

        A decode worker learns of most failures over its side channel, within a second, and then
        computes the prompt itself; of a request that the prefill worker never took it learns only
        after `handoff.expect_ms`. The router cannot tell one from the other, and another prefill
        worker may be idle, so it does not wait; without a try left, the decode half goes on.
        """
        leg, self._prefill = self._prefill, None
        if leg is None:
            return
        leg.end()
        self._desk.counters.prefill_failures += 1
        # Of an answer that has begun the decode worker has all it needs, or computes it.
        if not self.answer.started and self._attempts <= self._relay.retries:
            self._tried |= {leg.seat.id}
            self._drop_connection()
            self._again("prefill failed")
        if worker_ill:
            self._tell_ill(leg.seat, why)

    def _another(self, why: str, busy_s: float = 0.0) -> None:
        """Choose another worker, as often as allowed."""
        seat = self.seat
        if seat is not None:
            self._why = f"worker {seat.id}: {why}"
            self._tried |= {seat.id}
            if busy_s:
                self._desk.busy(seat.id, busy_s)
        self._again("worker failed")

    def _again(self, kind: str) -> None:
        self._release()
        if self._attempts > self._relay.retries:
            self._refuse_without_worker(NoWorker("no try is left"))
            return
        self._desk.counters.retries[kind] += 1
        self._attempt()

    def _refuse_without_worker(self, error: NoWorker) -> None:
        if self._said is not None:
            status, wait_s = self._said
            self._refuse(status, "overloaded", f"{error}; {self._why}", wait_s)
        elif self._why:
            self._refuse(502, "worker_failed", f"{error}; {self._why}", 1.0)
        else:
            self._refuse(503, "no_worker", str(error), 1.0)

    def _refuse(
        self,
        status: int,
        kind: str,
        message: str,
        retry_s: float | None = None,
        outcome: str = "refused",
    ) -> None:
        headers = [] if retry_s is None else [(b"retry-after", b"%d" % max(1, round(retry_s)))]
        self._desk.counters.refusals[str(status)] += 1
        self.answer.send_error(status, kind, message, headers)
        self._finish(outcome)

    def _cut(self, outcome: str = "cut") -> None:
        """The answer cannot be whole any more: say so in the stream if it is one, then close."""
        head = self._head
        if head is not None and value_of(head[1], b"content-type").startswith(_EVENT_STREAM):
            self.answer.write(
                b'data: {"error": {"message": "the worker was lost", "type": "worker_failed",'
                b' "param": null, "code": 502}}\n\n'
            )
        self.answer.cut()
        self._finish(outcome)

    # Ends

    def _tell_ill(self, seat: Seat | None, why: str, *, surely: bool = False) -> None:
        """Comes last: the desk may find the worker down and call `seat_down` of every exchange."""
        if seat is not None:
            self._desk.ill(seat, why, surely=surely)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()

    def _release(self, hit_tokens: int | None = None) -> None:
        """Give back what the attempt holds: the other half, the booking, the place."""
        leg, self._prefill = self._prefill, None
        if leg is not None:
            leg.end()
        decision, self._decision = self._decision, None
        if decision is not None:
            self._desk.free(decision.booking_id, hit_tokens)
        seat, self.seat = self.seat, None
        if seat is not None:
            seat.running -= 1

    def _finish(self, outcome: str, hit_tokens: int | None = None) -> None:
        if self._over:
            return
        self._over = True
        name = self.seat.id if self.seat is not None else ""
        self._desk.counters.requests[name, outcome] += 1
        self._release(hit_tokens)
        self._relay.running.discard(self)
        self._relay.bytes -= len(self._request.body)
