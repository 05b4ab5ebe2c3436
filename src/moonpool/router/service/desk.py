"""The brain with a clock: decisions, bookings, the workers' conditions, and what they count.

One desk per router process, used by the proxy, the HTTP brain and the health checks alike, so that
every request is booked at one place. It opens no connection and runs on the event loop's thread.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator

from moonpool.core.errors import BadInput, BadRequest, NoWorker
from moonpool.router.base import Decision, RouteRequest, Worker
from moonpool.router.brain import Brain
from moonpool.router.fleet import BLOCK_SIZE_DEFAULT
from moonpool.router.service.asks import Ask
from moonpool.router.service.counters import Counters
from moonpool.router.service.health import Condition, Health
from moonpool.router.service.specs import WorkerSpec

Listener = Callable[["Seat"], None]


class Seat:
    """A worker's place at the desk, whether it can serve at the moment or not."""

    def __init__(self, spec: WorkerSpec, health: Health, source: str) -> None:
        self.spec = spec
        self.worker = spec.worker
        """As registered with the brain: with what the worker told about itself."""
        self.health = health
        self.source = source
        """Who named it: 'static', 'api', 'dns', 'etcd' or 'kubernetes'."""
        self.running = 0
        """Requests on their way to it, through this router."""

    @property
    def id(self) -> str:
        return self.worker.id

    @property
    def ready(self) -> bool:
        return self.health.condition is Condition.READY


class Desk:
    """Raises what the brain raises. `clock` is monotonic seconds."""

    def __init__(
        self,
        brain: Brain,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
        probe_s: float = 1.0,
        failures_max: int = 3,
    ) -> None:
        self.brain = brain
        self.counters = Counters()
        self.seats: dict[str, Seat] = {}
        self.clock = clock
        self.on_ready: list[Listener] = []
        self.on_down: list[Listener] = []
        self.on_drained: list[Listener] = []
        self.on_gone: list[Listener] = []
        self.on_booked: list[Callable[[RouteRequest, Decision], None]] = []
        self.on_first_token: list[Callable[[str], None]] = []
        self.on_freed: list[Callable[[str], None]] = []
        self._without_url: frozenset[str] = frozenset()
        self._draw = draw
        self._probe_s = probe_s
        self._failures_max = failures_max

    # Workers

    def seat(self, spec: WorkerSpec, source: str) -> Seat:
        """A worker that was named; it serves once it is found well. Raises BadInput: id taken."""
        if spec.worker.id in self.seats:
            raise BadInput(f"worker {spec.worker.id!r} is registered; unregister it first")
        seat = Seat(spec, Health(self._probe_s, self._failures_max), source)
        self.seats[spec.worker.id] = seat
        if not spec.worker.url:
            self._without_url |= {seat.id}
        return seat

    def unseat(self, worker_id: str) -> bool:
        """It is gone, with its bookings and blocks. False: not known."""
        seat = self.seats.pop(worker_id, None)
        if seat is None:
            return False
        self._without_url -= {worker_id}
        self.brain.remove_worker(worker_id)
        for listener in self.on_gone:
            listener(seat)
        return True

    def drain(self, worker_id: str) -> bool:
        """No new request goes to it; running ones end in peace. False: not known."""
        seat = self.seats.get(worker_id)
        if seat is None:
            return False
        seat.health.drain()
        self.brain.remove_worker(worker_id)
        for listener in self.on_drained:
            listener(seat)
        return True

    def well(self, seat: Seat, worker: Worker) -> None:
        """A probe went well; `worker` is what it now says of itself."""
        known = self.seats.get(seat.id)
        if known is not seat:
            return
        if seat.health.well(self.clock()):
            seat.worker = worker
            self.brain.add_worker(worker)
            for listener in self.on_ready:
                listener(seat)

    def ill(self, seat: Seat, why: str, *, surely: bool = False) -> None:
        """A probe or a request failed at the worker."""
        if self.seats.get(seat.id) is seat and seat.health.ill(self.clock(), why, surely=surely):
            self.brain.remove_worker(seat.id)
            for listener in self.on_down:
                listener(seat)

    def busy(self, worker_id: str, seconds: float) -> None:
        """The worker said that it takes no more for now."""
        if worker_id in self.brain.fleet.members:
            self.brain.mark_busy(worker_id, self.clock() + seconds)

    def models(self) -> list[str]:
        """Names of all models served, sorted."""
        return sorted({seat.worker.model for seat in self.seats.values() if seat.worker.model})

    def adapters(self) -> dict[str, str]:
        """LoRA adapters served, and the model of each."""
        workers = [seat.worker for seat in self.seats.values()]
        return {name: worker.model for worker in workers for name in sorted(worker.adapters)}

    # Requests

    def decide(
        self, ask: Ask, tried: frozenset[str] = frozenset(), *, book: bool = True
    ) -> Decision:
        """Where a request goes that has `tried` some workers already.

        Raises NoWorker, WorkersBusy, RequestTooLarge, and BadRequest for a model nobody serves.
        """
        model, adapter = self.model_of(ask.model)
        request = RouteRequest(
            model=model,
            adapter=adapter,
            tokens=ask.tokens,
            output_tokens=ask.output_tokens,
            namespace=ask.namespace,
            priority=ask.priority,
            session=ask.session,
            labels=ask.labels,
            tolerates=ask.tolerates,
        )
        barred = tried | self._without_url if self._without_url else tried
        if barred or ask.worker:
            named: Iterable[str] = (ask.worker,) if ask.worker else self.brain.fleet.members
            request.allowed = frozenset(named) - barred
            if not request.allowed:
                raise NoWorker(f"no worker is left besides {', '.join(sorted(barred))}")
        return self.route(request, book=book)

    def route(self, request: RouteRequest, *, book: bool = True) -> Decision:
        """The same for a question put by other gateways."""
        start = time.perf_counter()
        decision = self.brain.decide(request, self.clock(), self._draw(), book=book)
        self.counters.decision_s.add(time.perf_counter() - start)
        if book:
            for listener in self.on_booked:
                listener(request, decision)
        return decision

    def first_token(self, booking_id: str) -> bool:
        for listener in self.on_first_token:
            listener(booking_id)
        return self.brain.first_token(booking_id, self.clock())

    def block_tokens(self, worker_id: str) -> int:
        """Tokens a block of the worker, as the brain counts them."""
        fleet = self.brain.fleet
        member = fleet.members.get(worker_id)
        return BLOCK_SIZE_DEFAULT if member is None else fleet.block_size(member)

    def grow(self, booking_id: str, blocks: float) -> bool:
        return self.brain.output_block(booking_id, self.clock(), blocks)

    def free(self, booking_id: str, hit_tokens: int | None = None) -> bool:
        """The request is over; `hit_tokens` is what the worker said it had. False: unknown."""
        booking = self.brain.free(booking_id, self.clock(), hit_tokens)
        for listener in self.on_freed:
            listener(booking_id)
        if booking is None:
            return False
        if hit_tokens is not None:
            counters, predicted = self.counters, booking.hit_tokens
            counters.hits_checked += 1
            counters.hits_predicted_tokens += predicted
            counters.hits_actual_tokens += hit_tokens
            counters.hits_error_tokens += abs(predicted - hit_tokens)
            counters.hit_share.add(min(1.0, hit_tokens / max(1, booking.prompt_tokens)))
        return True

    def due(self, now: float) -> Iterator[Seat]:
        """Workers whose probe is due."""
        for seat in list(self.seats.values()):
            if seat.health.look_at <= now:
                yield seat

    def model_of(self, asked: str) -> tuple[str, str]:
        """The model a request means, and the LoRA adapter if it names one; with one model here a
        request need not name it.

        Raises BadRequest with 404 for one that nobody here serves.
        """
        models = self.models()
        if not asked:
            return (models[0] if len(models) == 1 else ""), ""
        if not models or asked in models:
            return asked, ""
        adapters = self.adapters()
        if asked in adapters:
            return adapters[asked], asked
        if all(seat.worker.model for seat in self.seats.values()):
            there = ", ".join([*models, *sorted(adapters)])
            raise BadRequest(f"model {asked!r} is not served here; there is {there}", 404)
        return asked, ""
