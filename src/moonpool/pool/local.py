"""The embedded pool: master, node and client machines in one process, no sockets."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from moonpool.core.clock import Clock, Deadline, SystemClock
from moonpool.core.errors import BadConfig, Closed, MoonpoolError
from moonpool.core.host import host_id
from moonpool.core.sections import ClientConfig, MasterConfig, NodeConfig
from moonpool.core.units import parse_bytes
from moonpool.pool import messages as m
from moonpool.pool.agent_control import AgentControl
from moonpool.pool.client_state import ClientState
from moonpool.pool.effects import Effect
from moonpool.pool.master_machine import MasterMachine
from moonpool.pool.node_machine import NodeMachine
from moonpool.pool.node_segments import headroom_bytes, segment_errors, slot_count
from moonpool.pool.pool import Pool
from moonpool.pool.port_shm import ShmPort
from moonpool.pool.ports import Port
from moonpool.pool.protocol import CallAgents, CallMaster, Context, MasterLost, Pause, RaceAgents
from moonpool.pool.protocol import Protocol as Dialogue
from moonpool.pool.read_race import run_race
from moonpool.pool.shell import run_agents
from moonpool.transfer.room import require_room

T = TypeVar("T")
NODE_SESSION = 1
CLIENT_SESSION = 2


class LocalShell:
    """Interprets the machines' effects by calling the other machine. Thread-safe."""

    def __init__(self, node: NodeConfig, clock: Clock | None = None) -> None:
        from moonpool._core import SegmentAgent, SegmentClient

        self.clock = clock or SystemClock()
        self._pid = os.getpid()
        require_room(node.memory + headroom_bytes(node))
        with segment_errors("the embedded pool's memory"):
            self._agent = SegmentAgent.create(
                None, node.memory, headroom_bytes(node), slot_count(node), 16
            )
        self._segment = SegmentClient(self._agent.fd())
        endpoint = m.SegmentEndpoint(
            0,
            self._agent.incarnation,
            "local",
            host_id(),
            uid=os.getuid(),
            capacity_bytes=node.memory,
        )
        self.state = ClientState(host_id(), self._open_port)
        self._machine = MasterMachine(MasterConfig(grace_ms=0), instance=os.urandom(16))
        # In one process nobody can be cut off from the master: reads need no lease.
        self._node = NodeMachine(self._agent, endpoint, leased=False)
        self._replies: dict[int, m.Message | None] = {}  # of calls that still wait
        self._next = 1
        self._changed = threading.Condition()
        self._closed = False
        with self._changed:
            now = self.now()
            self._perform(self._machine.connected(NODE_SESSION, "node", "local", host_id(), now))
            self._perform(
                self._machine.connected(CLIENT_SESSION, "client", "local", host_id(), now)
            )
            self._from_node(self._node.connected(now))

    def now(self) -> float:
        return self.clock.monotonic()

    def run(self, build: Callable[[Context], Dialogue[T]], timeout_s: float) -> T:
        if self._closed:
            raise Closed("this pool was closed")
        if os.getpid() != self._pid:
            raise Closed("an embedded pool cannot be used in a forked child")
        deadline = Deadline.after(self.now(), timeout_s)
        dialogue = build(Context(self.state, self.now, deadline.at_s))
        try:
            effect = next(dialogue)
            while True:
                effect = dialogue.send(self._do(effect, deadline))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self.state.close()
            self._segment.close()
            self._agent.close()

    def _open_port(self, endpoint: m.SegmentEndpoint) -> Port:
        return ShmPort(self._segment, AgentControl(self._agent), "local", "local")

    def _do(self, effect: Any, deadline: Deadline) -> Any:
        match effect:
            case CallMaster():
                if effect.meanwhile is not None:
                    effect.meanwhile()
                return self._ask(effect.message, deadline)
            case CallAgents():
                return run_agents(effect)
            case RaceAgents():
                run_race(effect.race, self.now)
            case Pause():
                time.sleep(effect.seconds)
        return None

    def _ask(self, message: m.ClientRequest, deadline: Deadline) -> m.Message | MasterLost:
        with self._changed:
            number = self._next
            self._next += 1
            self._replies[number] = None
            try:
                return self._await(number, message, deadline)
            except MoonpoolError as error:
                return MasterLost(str(error), refused=True, code=error.code)
            finally:
                del self._replies[number]

    def _await(
        self, number: int, message: m.ClientRequest, deadline: Deadline
    ) -> m.Message | MasterLost:
        self._tick()
        now, wall = self.now(), self.clock.wall_ms()
        self._perform(self._machine.handle(CLIENT_SESSION, number, message, now, wall))
        while (reply := self._replies[number]) is None:
            left = deadline.left(self.now())
            if left <= 0:
                return MasterLost("no answer within the deadline")
            due = self._machine.next_deadline()
            wait = left if due is None else min(left, max(0.001, due - self.now()))
            self._changed.wait(wait)
            self._tick()
        if isinstance(reply, m.Failure):
            return MasterLost(reply.text, refused=True, code=reply.code)
        return reply

    def _tick(self) -> None:
        now = self.now()
        self._from_node(self._node.tick(now, self.clock.boottime_ns()))
        self._perform(self._machine.tick(now))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if effect.session == CLIENT_SESSION:
                if effect.request_id in self._replies:
                    self._replies[effect.request_id] = effect.message
                    self._changed.notify_all()
            else:
                replies = self._node.handle(
                    effect.message,  # type: ignore[arg-type]
                    self.now(),
                    self.clock.boottime_ns(),
                )
                self._from_node(replies)

    def _from_node(self, messages: list[m.NodeToMaster]) -> None:
        for message in messages:
            self._perform(
                self._machine.handle(NODE_SESSION, 0, message, self.now(), self.clock.wall_ms())
            )
        while self._node.inventory_pending():
            chunk = self._node.inventory_chunk()
            self._perform(
                self._machine.handle(NODE_SESSION, 0, chunk, self.now(), self.clock.wall_ms())
            )


def local_pool(memory: str | int, *, slots: int = 0, headroom: str | int = "auto") -> Pool:
    """An embedded pool of `memory` bytes ("1GiB"). Raises BadConfig, BadSize, SegmentError."""
    room = headroom if headroom == "auto" else parse_bytes(headroom)
    try:
        config = NodeConfig(
            memory=parse_bytes(memory),
            headroom=room,  # type: ignore[arg-type]
            slots=slots,
        )
    except ValueError as error:
        raise BadConfig(f"an embedded pool cannot be made so: {error}") from error
    return Pool(LocalShell(config), ClientConfig())
