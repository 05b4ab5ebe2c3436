"""A master's machine and simulated nodes that speak its messages to it, in one process.

Every message is encoded and decoded as on the wire; time counts on the master's side only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np

from moonpool.bench.scale_nodes import OBJECT_BYTES, SimulatedNode, keys_of
from moonpool.core.sections import MasterConfig
from moonpool.pool import messages as m
from moonpool.pool.catalog.base import I64
from moonpool.pool.columns import u16, u64
from moonpool.pool.effects import Effect
from moonpool.pool.master_machine import MasterMachine

R = TypeVar("R", bound=m.Message)
CLIENT: Final = 1 << 20  # its session
WALL_MS: Final = 1_700_000_000_000


class ScalePool:
    """`objects` room for objects in all, spread over the nodes. `handling_ns`: time that the master
    took for the messages of clients and nodes since it was set."""

    def __init__(self, objects: int, nodes: int) -> None:
        slots = -(-objects // nodes)
        self.nodes = [SimulatedNode(number, slots) for number in range(nodes)]
        self._by_session = {node.session: node for node in self.nodes}
        self.config = MasterConfig(
            grace_ms=0, rows_max=objects + (1 << 20), slow_start_s=0.0, nodes_expected=nodes
        )
        self.now = 1000.0
        self.handling_ns = 0
        self.start(1)

    def start(self, instance: int) -> None:
        """A new master, and all nodes join."""
        term = instance * 1000
        self.master = MasterMachine(self.config, instance.to_bytes(16, "little"), first_term=term)
        self.master.connected(CLIENT, "client", "bench", "elsewhere", self.now)
        for node in self.nodes:
            self.master.connected(node.session, "node", f"node{node.session}", "h", self.now)
            for message in node.machine.connected(self.now):
                self.say(node, message)
            self._report(node)

    def _report(self, node: SimulatedNode) -> None:
        while node.machine.inventory_pending():
            self.say(node, node.machine.inventory_chunk())

    def say(self, node: SimulatedNode, message: m.Message) -> None:
        """A node to the master, and what comes of it."""
        waiting = [message]
        while waiting:
            for effect in self._handle(node.session, 0, waiting.pop(0)):
                waiting += self._told(effect)

    def _told(self, effect: Effect) -> list[m.Message]:
        node = self._by_session.get(effect.session)
        if node is None:
            return []
        answers = node.machine.handle(effect.message, self.now, int(self.now * 1e9))  # type: ignore[arg-type]
        return [one for one in answers if not isinstance(one, m.RetireDone)]

    def _handle(self, session: int, request: int, message: m.Message) -> list[Effect]:
        frame = m.encode(message, request)
        start = time.thread_time_ns()
        effects = self.master.handle(session, request, m.decode(frame).body, self.now, WALL_MS)
        for effect in effects:
            m.encode(effect.message, effect.request_id)
        self.handling_ns += time.thread_time_ns() - start
        return effects

    def ask(self, message: m.Message, kind: type[R]) -> tuple[R, int]:
        """The answer, and the master's nanoseconds for it."""
        before = self.handling_ns
        effects = self._handle(CLIENT, 1, message)
        took = self.handling_ns - before
        reply = None
        for effect in effects:
            if effect.session == CLIENT:
                reply = effect.message
            else:
                self._told(effect)
        assert isinstance(reply, kind), reply
        return reply, took

    def put(self, numbers: I64) -> tuple[int, int]:
        """Reserve, seal, commit; nanoseconds of the master for the first and for the last."""
        count = numbers.size
        sizes, none = np.full(count, OBJECT_BYTES, np.uint64), np.full(count, -1, np.int32)
        ask = m.Reserve(keys_of(numbers), sizes.tobytes(), none.tobytes())
        reserved, reserve_ns = self.ask(ask, m.Reserved)
        assert set(reserved.status) == {m.PutStatus.GRANTED}, "a put of the bench was refused"
        segments = u16(reserved.segments).reshape(count, -1)[:, 0]
        sequences = u64(reserved.attempt)
        slots, generations = np.zeros(count, np.uint32), np.zeros(count, np.uint64)
        for number in np.unique(segments).tolist():
            mine = segments == number
            agent = self.nodes[self._node_of(number)].agent
            slots[mine], generations[mine] = agent.seal(numbers[mine], sequences[mine])
        where = m.ReplicaColumn(
            bytes([1]) * count, segments.tobytes(), slots.tobytes(), generations.tobytes()
        )
        commit = m.Commit(reserved.term, reserved.row, reserved.attempt, bytes(4 * count), where)
        committed, commit_ns = self.ask(commit, m.Committed)
        assert set(committed.status) == {m.PutStatus.COMMITTED}, (
            "a put of the bench was not committed"
        )
        return reserve_ns, commit_ns

    def _node_of(self, segment: int) -> int:
        return int.from_bytes(self.master.catalog.segments[segment].incarnation, "little")

    def heartbeats(self) -> Sequence[int]:
        """One of each node; the master's nanoseconds for each."""
        laps = []
        self.now += 1.0
        for node in self.nodes:
            for message in node.machine.tick(self.now, int(self.now * 1e9)):
                before = self.handling_ns
                self.say(node, message)
                laps.append(self.handling_ns - before)
            self._report(node)  # more had changed than an agent remembers
        return laps

    def tick_ns(self) -> int:
        """The master's own round: what is due, and when the next one is."""
        start = time.thread_time_ns()
        self.master.tick(self.now, WALL_MS)
        self.master.next_deadline()
        return time.thread_time_ns() - start
