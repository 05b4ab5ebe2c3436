"""A client that traces: the plain faces and shells with spans around what they do.

They are chosen where `client.tracing` is on; the plain classes know nothing of it.

    moonpool.get_many            the call of the application
      moonpool.transfer.read     one agent's part of it: node, way, objects
      moonpool.master.lookup     in the master, if that traces: the request carried its parent

A read of a remembered placement on the same host asks nobody: it is its call's span and no other.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from moonpool.core.clock import Clock, Deadline
from moonpool.core.sections import ClientConfig
from moonpool.core.tracing import Attributes, Tracer
from moonpool.pool import messages as m
from moonpool.pool.aio import AsyncPool
from moonpool.pool.aio_shell import AsyncShell
from moonpool.pool.link import AsyncLink, BlockingLink
from moonpool.pool.pool import Pool
from moonpool.pool.ports import (
    AgentCall,
    ApartCall,
    AwaitedCall,
    BatchPutCall,
    Finisher,
    Outcome,
    Port,
    PutCall,
    Status,
    call_length,
    finish_all,
)
from moonpool.pool.protocol import CallAgents
from moonpool.pool.read_race import ReadRace, run_race
from moonpool.pool.results import Hit, PrefixMatch, PutResult
from moonpool.pool.shell import BlockingShell

if TYPE_CHECKING:
    from opentelemetry.trace import Span

T = TypeVar("T")
CALLS: Final = (
    *("put", "put_many", "get", "get_into", "get_many", "get_many_into", "get_range"),
    *("view", "exists", "match_prefix", "remove", "remove_prefix", "remove_where"),
)
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("moonpool_traced", default=False)


class Carrier:
    """Puts the current span into requests."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def encode(self, message: m.Message, number: int, left_ms: int, version: int) -> bytes:
        trace = self._tracer.carried() if number else b""
        return m.encode(message, number, left_ms, version, trace)

    def agents(self, effect: CallAgents) -> list[Outcome]:
        """As run_agents, with a span for each agent from its submission to its end."""
        finishers = [self._submit(port, call, effect.timeout_s) for port, call in effect.calls]
        return finish_all(finishers)

    def race(self, race: ReadRace, now: Callable[[], float]) -> None:
        """As run_race, with a span for each read, those that lose included."""
        run_race(race, now, self._submit)

    def _submit(self, port: Port, call: AgentCall, timeout_s: float) -> Finisher:
        span = self._tracer.begin(transfer_name(call), transfer_facts(port, call))
        try:
            finisher = port.start(call, timeout_s)
        except BaseException:
            span.end()
            raise
        if isinstance(finisher, AwaitedCall):
            return _AwaitedTransfer(span, finisher)
        if isinstance(finisher, ApartCall):
            return _ApartTransfer(span, finisher)
        return partial(_finish, span, finisher)


def _finish(span: Span, finisher: Finisher) -> Outcome:
    try:
        outcome = finisher()
        span.set_attribute("moonpool.failed", failures(outcome))
        return outcome
    finally:
        span.end()


class _AwaitedTransfer:
    """An AwaitedCall whose span ends with it."""

    def __init__(self, span: Span, call: AwaitedCall) -> None:
        self._span = span
        self._call = call
        self.wait = call.wait
        self.cancel = call.cancel

    def __call__(self) -> Outcome:
        return _finish(self._span, self._call)


class _ApartTransfer:
    """The same of an ApartCall."""

    def __init__(self, span: Span, call: ApartCall) -> None:
        self._span = span
        self._call = call
        self.begin = call.begin

    def __call__(self) -> Outcome:
        return _finish(self._span, self._call)


def transfer_name(call: AgentCall) -> str:
    word = type(call).__name__.removesuffix("Call").removeprefix("Batch").lower()
    return f"moonpool.transfer.{word}"


def transfer_facts(port: Port, call: AgentCall) -> Attributes:
    facts: Attributes = {
        "moonpool.node": port.node,
        "moonpool.transport": port.kind,
        "moonpool.objects": call_length(call),
    }
    if isinstance(call, PutCall | BatchPutCall):
        facts["moonpool.bytes"] = call.nbytes
    return facts


def failures(outcome: Outcome) -> int:
    return int((outcome.status != Status.OK).sum())


class TracedShell(BlockingShell):
    def __init__(
        self, config: ClientConfig, clock: Clock | None = None, tracer: Tracer | None = None
    ) -> None:
        self.tracer = tracer or Tracer()
        self._carrier = Carrier(self.tracer)
        super().__init__(config, clock)
        self.agents = self._carrier.agents
        self.race = self._carrier.race

    def _connect(self, deadline: Deadline) -> BlockingLink:
        link = super()._connect(deadline)
        link.encode = self._carrier.encode
        return link


class TracedAsyncShell(AsyncShell):
    def __init__(self, config: ClientConfig, tracer: Tracer | None = None) -> None:
        self.tracer = tracer or Tracer()
        self._carrier = Carrier(self.tracer)
        super().__init__(config)
        self.agents = self._carrier.agents
        self.race = self._carrier.race

    async def connect(self, timeout_s: float) -> AsyncLink:
        link = await super().connect(timeout_s)
        link.encode = self._carrier.encode
        return link

    async def copy(self, act: Callable[..., T], *args: Any, waits: bool = False) -> T:
        """The copy thread knows whose call it works for."""
        return await super().copy(contextvars.copy_context().run, act, *args, waits=waits)


class TracedPool(Pool):
    _shell: TracedShell


class TracedAsyncPool(AsyncPool):
    _shell: TracedAsyncShell


def _traced(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def traced(self: TracedPool, *args: Any, **how: Any) -> Any:
        if _inside.get():
            return call(self, *args, **how)
        inside = _inside.set(True)
        try:
            with self._shell.tracer.span(f"moonpool.{name}", asked(args)) as span:
                result = call(self, *args, **how)
                span.set_attributes(answered(result))
                return result
        finally:
            _inside.reset(inside)

    return traced


def _traced_async(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    async def traced(self: TracedAsyncPool, *args: Any, **how: Any) -> Any:
        if _inside.get():
            return await call(self, *args, **how)
        inside = _inside.set(True)
        try:
            with self._shell.tracer.span(f"moonpool.{name}", asked(args)) as span:
                result = await call(self, *args, **how)
                span.set_attributes(answered(result))
                return result
        finally:
            _inside.reset(inside)

    return traced


for _name in CALLS:
    setattr(TracedPool, _name, _traced(_name, getattr(Pool, _name)))
    if inspect.iscoroutinefunction(_twin := getattr(AsyncPool, _name)):
        setattr(TracedAsyncPool, _name, _traced_async(_name, _twin))


def asked(args: tuple[Any, ...]) -> Attributes:
    """How many keys a call names: its first argument is one or a sequence of them. What is neither
    is the call's to refuse."""
    if not args or not hasattr(args[0], "__len__"):
        return {}
    return {"moonpool.keys": 1 if isinstance(args[0], str | bytes) else len(args[0])}


def answered(result: Any) -> Attributes:
    """Of a call's result: hits and bytes of reads, what came of puts."""
    match result:
        case None:
            return {"moonpool.hits": 0}
        case bytes():
            return {"moonpool.hits": 1, "moonpool.bytes": len(result)}
        case bool():
            return {"moonpool.hits": int(result)}
        case PutResult():
            return {"moonpool.status": str(result.status)}
        case PrefixMatch():
            return {"moonpool.hits": result.count}
        case list() if result and isinstance(result[0], PutResult):
            return {"moonpool.stored": sum(one.ok for one in result)}
        case list() | tuple():
            return {"moonpool.hits": sum(one is True or isinstance(one, Hit) for one in result)}
    return {}
