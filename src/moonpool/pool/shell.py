"""The blocking shell: drives protocols over sockets and ports for synchronous callers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from moonpool.core.clock import Clock, Deadline, SystemClock
from moonpool.core.errors import (
    Closed,
    DeadlineExceeded,
    NotLeader,
    ProtocolMismatch,
    Refused,
    TransferError,
    Unreachable,
)
from moonpool.core.host import host_id
from moonpool.core.sections import ClientConfig
from moonpool.core.tls import client_context
from moonpool.pool import messages as m
from moonpool.pool.client_state import ClientState
from moonpool.pool.leader import LeaderFinder
from moonpool.pool.link import CONNECT_S, BlockingLink
from moonpool.pool.openers import PortOpener
from moonpool.pool.ports import Outcome, finish_all
from moonpool.pool.protocol import CallAgents, CallMaster, Context, MasterLost, Pause, RaceAgents
from moonpool.pool.protocol import Protocol as Dialogue
from moonpool.pool.read_race import ReadRace, run_race

T = TypeVar("T")
LINKS_MAX = 16
AGAIN_S = 0.1
IMPATIENT_AFTER_S = 5.0  # a master away for so long is asked once per call, not until the deadline


class Shell(Protocol):
    """What Pool needs: state to look at, and somebody to run protocols."""

    state: ClientState

    def run(self, build: Callable[[Context], Dialogue[T]], timeout_s: float) -> T: ...

    def now(self) -> float: ...

    def close(self) -> None: ...


class BlockingShell:
    """Thread-safe: each running call holds one connection to the master of its own."""

    def __init__(self, config: ClientConfig, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self._tls = client_context(config)
        self.opener = PortOpener(config.token, config.shared_memory, self._tls, config.host_id)
        self.leader = LeaderFinder(config.master, self._led_by, self.clock)
        self._open: set[BlockingLink] = set()
        self.state = ClientState(
            host_id(config.host_id),
            self.opener.open,
            cache_entries_max=config.cache_entries_max,
            hedge_ms=config.hedge_ms,
            labels=config.labels,
        )
        self._idle: list[BlockingLink] = []
        self._links = 0  # idle, in use, and being made
        # Taken as it is: a Condition's own `with` is a call more, twice a put.
        self._lock = threading.Lock()
        self._given_back = threading.Condition(self._lock)
        self._waiting = 0  # threads, for a link
        self._closed = False
        self._pid = os.getpid()
        self._away_since: float | None = None
        self.agents: Callable[[CallAgents], list[Outcome]] = run_agents
        self.race: Callable[[ReadRace, Callable[[], float]], None] = run_race

    def now(self) -> float:
        return self.clock.monotonic()

    def connect(self, timeout_s: float) -> None:
        """Reach the master once, so that a wrong address or token is said at once."""
        deadline = Deadline.after(self.now(), timeout_s)
        while True:
            try:
                self.give_link(self.take_link(deadline))
                return
            except (Unreachable, DeadlineExceeded):
                # Between two leaders there is nobody for a moment.
                if self.leader.fixed or deadline.left(self.now()) <= AGAIN_S:
                    raise
            time.sleep(AGAIN_S)

    def run(self, build: Callable[[Context], Dialogue[T]], timeout_s: float) -> T:
        self._check_usable()
        now = self.now()
        deadline = Deadline.after(now, timeout_s)
        away = self._away_since
        patient = away is None or now - away < IMPATIENT_AFTER_S
        context = Context(self.state, self.clock.monotonic, deadline.at_s, patient)
        call = _Call(self, deadline)
        try:
            return call.drive(build(context))
        finally:
            call.end()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()
        self.leader.close()
        self.state.close()
        self.opener.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise Closed("this pool was closed; connect again")
        if os.getpid() != self._pid:
            raise Closed("a pool cannot be used in a forked child; connect there again")

    # --- links ------------------------------------------------------------------------------------

    def take_link(self, deadline: Deadline) -> BlockingLink:
        """Raises TransferError."""
        with self._lock:
            while not self._idle and self._links >= LINKS_MAX:
                left = deadline.check(self.now(), "wait for a connection to the master")
                self._waiting += 1
                try:
                    self._given_back.wait(left)
                finally:
                    self._waiting -= 1
            if self._idle:
                return self._idle.pop()
            self._links += 1
        try:
            return self._connect(deadline)
        except BaseException:
            self._lost_link()
            raise

    def _connect(self, deadline: Deadline) -> BlockingLink:
        name = f"client-{self._pid}"
        address = self.leader.address(deadline)
        attempt = deadline
        if not self.leader.fixed:
            # One that has stopped takes connections and says nothing: then ask who leads now.
            left = deadline.check(self.now(), f"connect to {address}")
            attempt = Deadline.after(self.now(), min(CONNECT_S, left))
        try:
            link = BlockingLink(
                *(address, self.config.token, name, attempt),
                tls=self._tls,
                host=self.config.host_id,
            )
        except TransferError:
            self.leader.wrong(address)
            raise
        if not self.leader.fixed:
            with self._lock:
                self._open.add(link)
        return link

    def _led_by(self, address: str) -> None:
        """Another master leads: nobody waits for an answer of the last one."""
        with self._lock:
            for link in self._open:
                if link.address != address:
                    link.interrupt()

    def give_link(self, link: BlockingLink) -> None:
        with self._lock:
            if not (link.closed or self._closed):
                self._idle.append(link)
                if self._waiting:
                    self._given_back.notify()
                return
        link.close()
        with self._lock:
            self._open.discard(link)
        self._lost_link()

    def _lost_link(self) -> None:
        with self._lock:
            self._links -= 1
            self._given_back.notify()

    def master_answered(self) -> None:
        self._away_since = None

    def master_away(self) -> None:
        if self._away_since is None:
            self._away_since = self.now()


class _Call:
    """One protocol run: holds a link from its first request to its end."""

    def __init__(self, shell: BlockingShell, deadline: Deadline) -> None:
        self._shell = shell
        self._deadline = deadline
        self._link: BlockingLink | None = None

    def drive(self, dialogue: Dialogue[T]) -> T:
        try:
            effect = next(dialogue)
            while True:
                effect = dialogue.send(self._perform(effect))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def end(self) -> None:
        if self._link is not None:
            self._shell.give_link(self._link)
            self._link = None

    def _perform(self, effect: Any) -> Any:
        match effect:
            case CallMaster():
                return self._ask(effect)
            case CallAgents():
                return self._shell.agents(effect)
            case RaceAgents():
                self._shell.race(effect.race, self._shell.now)
            case Pause():
                time.sleep(effect.seconds)
        return None

    def _ask(self, call: CallMaster) -> m.Message | MasterLost:
        try:
            if self._link is None:
                self._link = self._shell.take_link(self._deadline)
            reply = self._link.request(call.message, self._deadline, call.meanwhile)
        except (Refused, ProtocolMismatch) as error:
            self.end()
            return MasterLost(str(error), refused=True, code=error.code)
        except TransferError as error:
            if self._link is not None:
                self._shell.leader.wrong(self._link.address)
            self.end()
            self._shell.master_away()
            return MasterLost(str(error), code=error.code)
        if isinstance(reply, m.Failure) and reply.code == NotLeader.code:
            self._shell.leader.wrong(self._link.address)
            self._link.close()
            self.end()
            return MasterLost(reply.text, code=reply.code)
        self._shell.master_answered()
        if isinstance(reply, m.Failure):
            return MasterLost(reply.text, refused=True, code=reply.code)
        return reply


def run_agents(effect: CallAgents) -> list[Outcome]:
    """Submit all, then finish all: they overlap on the wire and at the agents."""
    finishers = [port.start(call, effect.timeout_s) for port, call in effect.calls]
    return finish_all(finishers)
