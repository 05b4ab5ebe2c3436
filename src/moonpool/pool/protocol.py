"""The client's side of the pool's protocol as generators: effects out, results in.

A call of the public face is one generator. It yields `CallMaster`, `CallAgents` or `Pause` and is
resumed with what came of it; its return value is the call's result. Blocking, asyncio, in-process
and simulated shells drive the same generators. No clock, socket or thread in here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from moonpool.pool.client_state import ClientState
from moonpool.pool.messages import ClientRequest, Reply, Reserved, Topology, TopologyIs
from moonpool.pool.ports import AgentCall, Outcome, Port
from moonpool.pool.read_race import ReadRace


class CallMaster(msgspec.Struct, frozen=True):
    """Resumed with the Reply, or with MasterLost. `meanwhile` is work that does not depend on the
    answer: the shell does it after the request has left. It calls nobody and is done once."""

    message: ClientRequest
    meanwhile: Callable[[], None] | None = None


class CallAgents(msgspec.Struct, frozen=True):
    """Calls to do side by side, each over after `timeout_s`. Resumed with one Outcome each."""

    calls: list[tuple[Port, AgentCall]]
    timeout_s: float


class RaceAgents(msgspec.Struct, frozen=True):
    """Reads of which the silent ones are begun on other copies. Resumed when none is under way;
    the race knows what became of them."""

    race: ReadRace


class Pause(msgspec.Struct, frozen=True):
    seconds: float


class MasterLost(msgspec.Struct, frozen=True):
    """No answer: the master is unreachable, or the connection broke during the request."""

    text: str
    refused: bool = False  # the master answered and said no: retrying changes nothing
    code: str = ""


ProtocolEffect = CallMaster | CallAgents | RaceAgents | Pause
T = TypeVar("T")
Protocol = Generator[ProtocolEffect, Any, T]


@dataclass(slots=True)
class Context:
    """What every protocol needs: the client's state, time, and its deadline (monotonic)."""

    state: ClientState
    now: Callable[[], float]
    deadline: float
    patient: bool = True  # ask an unreachable master again; off when it has been away for long
    retry_s: float = 0.02
    reserved: Reserved | None = None  # what a put holds: to be aborted when the call is cancelled

    def left(self) -> float:
        return self.deadline - self.now()

    def left_ms(self) -> int:
        return max(0, int(self.left() * 1000))


def ask(
    context: Context, message: ClientRequest, meanwhile: Callable[[], None] | None = None
) -> Protocol[Reply | MasterLost]:
    """Ask the master; while it cannot be reached, ask again until the deadline."""
    pause = context.retry_s
    while True:
        reply: Reply | MasterLost = yield CallMaster(message, meanwhile)
        meanwhile = None
        if not isinstance(reply, MasterLost) or reply.refused:
            return reply
        if not context.patient or context.left() <= pause:
            return reply
        yield Pause(pause)
        pause = min(pause * 2, 0.25)


def learn_topology(context: Context, version: int) -> Protocol[bool]:
    """Bring the known segments up to `version` of the master's topology."""
    if version == context.state.topology_version:
        return True
    reply = yield from ask(context, Topology())
    if not isinstance(reply, TopologyIs):
        return False
    context.state.learn(reply)
    return True


def call_all(
    context: Context, calls: list[tuple[Port, AgentCall]], timeout_s: float | None = None
) -> Protocol[list[Outcome]]:
    """The outcomes of all calls, which run side by side. Default timeout: what is left."""
    if not calls:
        return []
    left = max(0.001, context.left() if timeout_s is None else timeout_s)
    outcomes: list[Outcome] = yield CallAgents(calls, left)
    return outcomes
