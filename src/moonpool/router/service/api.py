"""The brain over HTTP, for other gateways and for people; every path that is not relayed.

`/register`, `/unregister`, `/query` and `/query_by_hash` have the shape of Mooncake's indexer API
(RFC 1403); `/reserve`, `/commit`, `/grow` and `/free` are the life of a booking; `/explain` is a
decision with its reasons, booked nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from moonpool.core.address import parse_address
from moonpool.core.errors import BadInput, BadRequest, NoWorker, RequestTooLarge, WorkersBusy
from moonpool.router.base import Decision, Role, RouteRequest, Target, Worker
from moonpool.router.http.client import Answer
from moonpool.router.http.request import Request
from moonpool.router.http.upstream import parse_origin
from moonpool.router.prompt import Prompt
from moonpool.router.service.asks import CHAT, COMPLETIONS, TextReader, TokenId, read_ask
from moonpool.router.service.desk import Desk, Seat
from moonpool.router.service.page import learnt_seconds, metrics_page, workers_page
from moonpool.router.service.relay import Relay
from moonpool.router.service.specs import WorkerSpec, check_endpoint

TENANT = "default"
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Priority = Annotated[int, msgspec.Meta(ge=1 - (1 << 31), le=(1 << 31) - 1)]
Name = Annotated[str, msgspec.Meta(max_length=512)]
Weight = Annotated[float, msgspec.Meta(ge=-100, le=100)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=100)]


class Registration(msgspec.Struct):
    """A worker; the fields that RFC 1403 names, and the rest of ours."""

    instance_id: Name
    url: str = ""
    """Where requests go; without it the worker is only known to the brain."""
    endpoint: str = ""
    replay_endpoint: str = ""
    type: str = "vLLM"
    modelname: str = ""
    block_size: Count = 0
    dp_rank: Count = 0
    ranks: Count = 1
    role: Role = "both"
    transfer: str | None = None
    context: Count = 0
    blocks: Count = 0
    labels: dict[str, str] = {}
    lora_name: str | None = None
    tenant_id: str | None = None
    additionalsalt: str | None = None


class Question(msgspec.Struct):
    """A prompt, as tokens, as prefix hashes or as text."""

    model: str = ""
    token_ids: list[TokenId] | None = None
    seq_hashes: list[int] | None = None
    block_hash: list[int] | None = None
    """The older name of `seq_hashes`; values of both are taken modulo 2^64."""
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    prompt_tokens: Count = 0
    output_tokens: Count = 0
    instance_id: str | None = None
    tenant_id: str | None = None
    block_size: Count = 0
    lora_name: str | None = None
    cache_salt: str | None = None
    session: str = ""
    priority: Priority = 0
    booking_id: str = ""
    labels: dict[str, str] = {}
    tolerates: list[str] = []
    preferred: dict[str, Weight] = {}
    """'label=value' -> how much it is preferred."""
    temperature: Temperature | None = None


class BookingReport(msgspec.Struct):
    booking_id: str
    blocks: float = 1
    hit_tokens: Count | None = None


class Named(msgspec.Struct):
    instance_id: str


B = TypeVar("B")


class Api:
    """Handlers by method and path."""

    def __init__(self, desk: Desk, relay: Relay, reader: TextReader) -> None:
        self._desk = desk
        self._relay = relay
        self._reader = reader
        self.routes: dict[tuple[bytes, str], Callable[[Request, Answer], None]] = {
            (b"GET", "/health"): self._health,
            (b"GET", "/ready"): self._ready,
            (b"GET", "/metrics"): self._metrics,
            (b"GET", "/v1/models"): self._models,
            (b"GET", "/workers"): self._workers,
            (b"POST", "/register"): self._register,
            (b"POST", "/unregister"): self._unregister,
            (b"POST", "/drain"): self._drain,
            (b"POST", "/query"): self._query,
            (b"POST", "/query_by_hash"): self._query,
            (b"POST", "/reserve"): self._reserve,
            (b"POST", "/explain"): self._explain,
            (b"POST", "/commit"): self._commit,
            (b"POST", "/grow"): self._grow,
            (b"POST", "/free"): self._free,
        }
        self.open_paths = frozenset(("/health", "/ready"))
        """Asked by orchestrators, which hold no token."""

    def handle(self, request: Request, answer: Answer) -> None:
        """Answer a request, or relay it."""
        if request.path not in self.open_paths and not self._relay.allowed(request):
            answer.send_error(401, "authentication_error", "the router's token is missing or wrong")
            return
        handler = self.routes.get((request.method, request.path))
        if handler is None:
            self._other(request, answer)
            return
        try:
            handler(request, answer)
        except BadRequest as error:
            answer.send_error(error.status, "invalid_request_error", str(error))
        except WorkersBusy as error:
            wait = b"%d" % max(1, round(error.retry_after_s))
            answer.send_error(429, "overloaded", str(error), [(b"retry-after", wait)])
        except NoWorker as error:
            answer.send_error(503, "no_worker", str(error), [(b"retry-after", b"1")])
        except RequestTooLarge as error:
            answer.send_error(400, "context_length_exceeded", str(error))
        except BadInput as error:
            answer.send_error(400, "invalid_request_error", str(error))

    def _other(self, request: Request, answer: Answer) -> None:
        if self._relay.relays(request.path):
            self._relay.handle(request, answer)
        elif any(path == request.path for _, path in self.routes):
            answer.send_error(405, "invalid_request_error", "this path takes another method")
        else:
            answer.send_error(404, "invalid_request_error", f"no such path: {request.path[:200]}")

    # About the router

    def _health(self, request: Request, answer: Answer) -> None:
        answer.send_json(200, {"status": "ok"})

    def _ready(self, request: Request, answer: Answer) -> None:
        ready = sum(seat.ready for seat in self._desk.seats.values())
        answer.send_json(200 if ready else 503, {"ready_workers": ready})

    def _metrics(self, request: Request, answer: Answer) -> None:
        page = metrics_page(self._desk, self._relay).encode()
        answer.send(200, page, b"text/plain; version=0.0.4; charset=utf-8")

    def _models(self, request: Request, answer: Answer) -> None:
        named: dict[str, str | None] = dict.fromkeys(self._desk.models())
        named |= self._desk.adapters()
        more = {"object": "model", "owned_by": "moonpool"}
        data = [{"id": name, "parent": parent, **more} for name, parent in named.items()]
        answer.send_json(200, {"object": "list", "data": data})

    def _workers(self, request: Request, answer: Answer) -> None:
        answer.send_json(200, {"workers": workers_page(self._desk)})

    # Workers

    def _register(self, request: Request, answer: Answer) -> None:
        told = _read(request, Registration)
        if told.url:
            parse_origin(told.url)
        if told.transfer:
            parse_address(told.transfer)
        for endpoint in (told.endpoint, told.replay_endpoint):
            if endpoint:
                check_endpoint(endpoint)
        worker = Worker(
            id=told.instance_id,
            url=told.url.rstrip("/"),
            role=told.role,
            transfer=told.transfer,
            block_size=told.block_size,
            model=told.modelname,
            labels=told.labels,
            ranks=max(told.ranks, told.dp_rank + 1),
            context_tokens_max=told.context,
            kv_blocks_max=told.blocks,
            publishes_events=bool(told.endpoint),
        )
        spec = WorkerSpec(worker, told.endpoint, told.replay_endpoint)
        seat = self._desk.seat(spec, "api")
        if not worker.url:
            self._desk.well(seat, worker)  # nobody to ask: whoever registered it vouches for it
        answer.send_json(
            200, {"status": "registered successfully", "instance_id": told.instance_id}
        )

    def _unregister(self, request: Request, answer: Answer) -> None:
        name = _read(request, Named).instance_id
        if not self._desk.unseat(name):
            raise BadRequest(f"worker {name!r} is not registered", 404)
        removed = [f"{name}|{TENANT}|0"]
        answer.send_json(200, {"status": "unregistered successfully", "removed_instances": removed})

    def _drain(self, request: Request, answer: Answer) -> None:
        name = _read(request, Named).instance_id
        if not self._desk.drain(name):
            raise BadRequest(f"worker {name!r} is not registered", 404)
        answer.send_json(200, {"status": "draining", "running": self._desk.seats[name].running})

    # Questions and bookings

    def _query(self, request: Request, answer: Answer) -> None:
        """Each tier's count includes the faster ones; nobody is chosen and nothing is booked."""
        asked = _read(request, Question)
        prompt = Prompt(self._route_request(asked, pinned=False))
        fleet, index = self._desk.brain.fleet, self._desk.brain.index
        found: dict[str, dict[str, Any]] = {}
        for name, member in fleet.members.items():
            if asked.instance_id not in (None, name):
                continue
            if prompt.request.model not in ("", member.worker.model):
                continue
            size = fleet.block_size(member)
            found_here = index.find(prompt.hashes(size), np.array(member.places, np.int64))
            device, host, disk = found_here.held * size
            found[name] = {
                "longest_matched": int(disk.max()),
                "GPU": int(device.max()),
                "DP": {str(rank): int(tokens) for rank, tokens in enumerate(device.tolist())},
                "CPU": int(host.max()),
                "DISK": int(disk.max()),
            }
        answer.send_json(200, {asked.tenant_id or TENANT: found})

    def _reserve(self, request: Request, answer: Answer) -> None:
        asked = _read(request, Question)
        decision = self._desk.route(self._route_request(asked, pinned=True), book=True)
        answer.send_json(200, self._decision(decision))

    def _explain(self, request: Request, answer: Answer) -> None:
        asked = _read(request, Question)
        decision = self._desk.route(self._route_request(asked, pinned=True), book=False)
        told = self._decision(decision)
        told["problems"] = [
            problem
            for member in self._desk.brain.fleet.members.values()
            for problem in member.problems.values()
        ]
        members = self._desk.brain.fleet.members
        told["learnt"] = {
            name: learnt_seconds(self._desk, members[name])
            for name in {score.worker for score in decision.scores}
        }
        answer.send_json(200, told)

    def _commit(self, request: Request, answer: Answer) -> None:
        report = _read(request, BookingReport)
        _expect_booking(report, self._desk.first_token(report.booking_id))
        answer.send_json(200, {"status": "committed"})

    def _grow(self, request: Request, answer: Answer) -> None:
        report = _read(request, BookingReport)
        if not 0 < report.blocks < 1e9:
            raise BadRequest(f"blocks = {report.blocks:g} is not a number of blocks")
        _expect_booking(report, self._desk.grow(report.booking_id, report.blocks))
        answer.send_json(200, {"status": "grown"})

    def _free(self, request: Request, answer: Answer) -> None:
        report = _read(request, BookingReport)
        _expect_booking(report, self._desk.free(report.booking_id, report.hit_tokens))
        answer.send_json(200, {"status": "freed"})

    def _route_request(self, asked: Question, *, pinned: bool) -> RouteRequest:
        self._check_block_size(asked)
        pin = Target(asked.instance_id) if pinned and asked.instance_id else None
        if asked.instance_id and asked.instance_id not in self._desk.seats:
            raise BadRequest(f"worker {asked.instance_id!r} is not registered", 404)
        model, adapter = self._desk.model_of(asked.model)
        route = RouteRequest(
            model=model,
            output_tokens=asked.output_tokens,
            namespace=asked.cache_salt or "",
            adapter=asked.lora_name or adapter,
            session=asked.session[:128],
            priority=asked.priority,
            labels=asked.labels,
            tolerates=frozenset(asked.tolerates),
            preferred=dict(asked.preferred),
            temperature=asked.temperature,
            booking_id=asked.booking_id[:128],
            pin=pin,
        )
        hashes = asked.seq_hashes if asked.seq_hashes is not None else asked.block_hash
        if asked.token_ids is not None:
            route.tokens = np.array(asked.token_ids, np.uint32)
        elif hashes is not None:
            route.hashes = np.array([value % (1 << 64) for value in hashes], np.uint64)
            size = asked.block_size or self._block_size()
            route.prompt_tokens = asked.prompt_tokens or len(hashes) * size
        elif asked.prompt is not None or asked.messages is not None:
            path = CHAT if asked.prompt is None else COMPLETIONS
            body = {"prompt": asked.prompt, "messages": asked.messages}
            text = Request(b"POST", path.encode(), [], msgspec.json.encode(body))
            route.tokens = read_ask(text, self._reader, 1 << 24).tokens
        else:
            raise BadRequest("give token_ids, seq_hashes, prompt or messages")
        return route

    def _check_block_size(self, asked: Question) -> None:
        """A block size that no worker has would give hits of other blocks: refuse it."""
        members = self._desk.brain.fleet.members.values()
        sizes = {self._desk.brain.fleet.block_size(member) for member in members}
        if asked.block_size and sizes and asked.block_size not in sizes:
            there = ", ".join(map(str, sorted(sizes)))
            raise BadRequest(f"block_size {asked.block_size}: the workers here have {there}")

    def _block_size(self) -> int:
        members = list(self._desk.brain.fleet.members.values())
        return self._desk.brain.fleet.block_size(members[0]) if members else 1

    def _decision(self, decision: Decision) -> dict[str, Any]:
        told = _plain(decision, self._desk.seats)
        if decision.prefill is not None:
            told["prefill"] = _plain(decision.prefill, self._desk.seats)
        return told


def _plain(decision: Decision, seats: dict[str, Seat]) -> dict[str, Any]:
    worker = seats[decision.worker].worker
    return {
        "instance_id": decision.worker,
        "url": worker.url,
        "dp_rank": decision.rank,
        "booking_id": decision.booking_id,
        "predicted_hit_tokens": decision.predicted_hit_tokens,
        "prompt_tokens": decision.prompt_tokens,
        "reason": decision.reason,
        "scores": [_finite(score._asdict()) for score in decision.scores],
    }


def _finite(score: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: a busy worker has no cost."""
    score["busy"] = score["cost"] == float("inf")
    if score["busy"]:
        score["cost"] = None
    return score


def _read(request: Request, kind: type[B]) -> B:
    try:
        return msgspec.json.decode(request.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{request.path}: {error}") from None


def _expect_booking(report: BookingReport, known: bool) -> None:
    if not known:
        raise BadRequest(f"booking {report.booking_id[:128]!r} is unknown, or its lease ended", 404)
