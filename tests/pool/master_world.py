"""A master with real nodes over anonymous segments; messages arrive at once, or when told to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from moonpool._core import SegmentAgent, crc32c
from moonpool.core.sections import MasterConfig
from moonpool.core.tenants import Tenants
from moonpool.pool import messages as m
from moonpool.pool.columns import i32, pack_keys, u16, u32, u64
from moonpool.pool.effects import Effect
from moonpool.pool.master_limits import MasterLimits
from moonpool.pool.master_machine import MasterMachine
from moonpool.pool.node_copies import keep
from moonpool.pool.node_machine import NodeMachine
from moonpool.pool.ports import CLAIM_DTYPE
from moonpool.pool.snapshot.saved import Saved

R = TypeVar("R", bound=m.Message)
CONFIG = MasterConfig(
    grace_ms=0,
    rows_max=4096,
    events_max=256,
    node_lease_ms=3000,
    clock_slack_ms=200,
    reservation_ms=10_000,
    forget_after_s=60,
)


class Node:
    def __init__(self, name: str, capacity: int = 1 << 16, medium: str = m.MEMORY) -> None:
        self.name = name
        self.medium = medium
        self.agent = SegmentAgent.create(None, capacity, capacity, 256, populate=False)
        self.session = 0
        self.deaf = False  # what is sent to it waits
        self.inbox: list[m.MasterToNode] = []
        self.restart(capacity)

    def restart(self, capacity: int) -> None:
        endpoint = m.SegmentEndpoint(
            0,
            self.agent.incarnation,
            self.name,
            "h",
            capacity_bytes=capacity,
            medium=self.medium,
        )
        self.machine = NodeMachine(self.agent, endpoint)


class MasterWorld:
    """Sessions, time and delivery. Clients are session numbers."""

    tenants: Tenants | None = None

    def __init__(
        self,
        config: MasterConfig = CONFIG,
        *,
        instance: int = 1,
        limits: MasterLimits | None = None,
        nodes_expected: int = 0,
    ) -> None:
        self.limits = limits
        self.copying = True  # nodes do at once what they are to copy
        self.restoring = True  # a snapshot is taken in at once
        self.config = config
        self.now = 100.0
        self.nodes: list[Node] = []
        self.replies: dict[int, list[m.Message]] = {}  # by request
        self._session = 0
        self._request = 0
        self.start(instance, nodes_expected)

    def start(
        self,
        instance: int,
        nodes_expected: int = 0,
        first_term: int = 1,
        saved: Saved | None = None,
    ) -> None:
        """A new master; nobody is connected to it yet."""
        self.master = MasterMachine(
            self.config,
            instance.to_bytes(16, "little"),
            limits=self.limits,
            nodes_expected=nodes_expected,
            first_term=first_term,
            tenants=self.tenants,
            saved=saved,
        )
        for node in self.nodes:
            node.session = 0
            node.machine.disconnected()

    @property
    def wall_ms(self) -> int:
        return round(self.now * 1000)

    # Nodes.

    def add_node(self, name: str = "", capacity: int = 1 << 16, medium: str = m.MEMORY) -> Node:
        node = Node(name or f"n{len(self.nodes)}", capacity, medium)
        self.nodes.append(node)
        self.join(node)
        return node

    def join(self, node: Node) -> None:
        self._session += 1
        node.session = self._session
        node.inbox.clear()
        self.perform(self.master.connected(node.session, "node", node.name, "h", self.now))
        for message in node.machine.connected(self.now):
            self.from_node(node, message)
        self.pump(node)

    def leave(self, node: Node) -> None:
        session, node.session = node.session, 0
        node.machine.disconnected()
        self.perform(self.master.disconnected(session, self.now))

    def from_node(self, node: Node, message: m.NodeToMaster) -> None:
        effects = self.master.handle(node.session, 0, message, self.now, self.wall_ms)
        self.perform(effects)

    def pump(self, node: Node) -> None:
        """The node handles what waits for it, and reports what it has to report."""
        while node.session and not node.deaf and (node.inbox or node.machine.inventory_pending()):
            if node.inbox:
                for answer in node.machine.handle(node.inbox.pop(0), self.now, self.boottime_ns):
                    self.from_node(node, answer)
            else:
                self.from_node(node, node.machine.inventory_chunk())
            if self.copying:
                self.fetch_copies(node)

    def fetch_copies(self, node: Node) -> None:
        """What the node is to copy from others, by the way of their agents."""
        by_incarnation = {one.agent.incarnation: one for one in self.nodes}
        while node.machine.copies:
            order = node.machine.copies.popleft()
            source = by_incarnation[order.source.incarnation]
            data: list[bytes | None] = []
            for slot, generation in zip(
                u32(order.slot).tolist(), u64(order.generation).tolist(), strict=True
            ):
                held = source.agent.inventory(slot, 1)["generation"].tolist()
                there = source.session and held == [generation]
                data.append(self.bytes_of(source.agent, slot, generation) if there else None)
            self.from_node(node, keep(node.agent, order, data))

    @property
    def boottime_ns(self) -> int:
        return int(self.now * 1e9)

    def hear(self, node: Node) -> None:
        self.pump(node)
        for message in node.machine.tick(self.now, self.boottime_ns):
            self.from_node(node, message)
        self.pump(node)

    # Time.

    def pass_time(self, seconds: float, step: float = 0.5) -> None:
        """Nodes that are connected and not deaf report, the master ticks when it is due."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + step, end)
            for node in self.nodes:
                if node.session and not node.deaf:
                    self.hear(node)
            due = self.master.next_deadline()
            if due is not None and due <= self.now:
                self.perform(self.master.tick(self.now))

    # Clients.

    def client(self, host: str = "h") -> int:
        self._session += 1
        self.perform(self.master.connected(self._session, "client", "c", host, self.now))
        return self._session

    def ask(self, session: int, message: m.Message, deadline_ms: int = 0) -> int:
        """Send; returns the request number, `answers` holds what came."""
        self._request += 1
        self.replies[self._request] = []
        effects = self.master.handle(
            session, self._request, message, self.now, self.wall_ms, deadline_ms
        )
        self.perform(effects)
        return self._request

    def call(self, session: int, message: m.Message, kind: type[R]) -> R:
        """The one answer of a request that is answered at once."""
        (reply,) = self.replies[self.ask(session, message)]
        assert isinstance(reply, kind), reply
        return reply

    def answer(self, request: int, kind: type[R]) -> R:
        (reply,) = self.replies[request]
        assert isinstance(reply, kind), reply
        return reply

    def perform(self, effects: Sequence[Effect]) -> None:
        by_session = {node.session: node for node in self.nodes if node.session}
        touched = []
        for effect in effects:
            node = by_session.get(effect.session)
            if node is not None:
                node.inbox.append(effect.message)  # type: ignore[arg-type]
                touched.append(node)
            elif effect.request_id:
                self.replies[effect.request_id].append(effect.message)
        for node in touched:
            if not node.deaf:
                self.pump(node)
        while self.restoring and self.master.restoring:
            self.take_piece()

    def take_piece(self) -> None:
        """The next piece of the snapshot that the master restores from."""
        effects = self.master.restore(self.now, self.wall_ms)
        restoring, self.restoring = self.restoring, False
        self.perform(effects)
        self.restoring = restoring

    # Calls in full.

    def reserve(
        self, session: int, keys: Sequence[bytes], size: int = 64, **how: Any
    ) -> m.Reserved:
        return self.call(session, reserve_message(keys, size, **how), m.Reserved)

    def seal(self, reserved: m.Reserved, keys: Sequence[bytes], size: int = 64) -> m.Commit:
        """Claim and seal every promised replica at its agent."""
        count = len(keys)
        promised = u16(reserved.segments).reshape(count, -1)
        places = [i for i in range(count) if reserved.status[i] == m.PutStatus.GRANTED]
        counts, flat = [], []
        crcs = np.zeros(len(places), np.uint32)
        for place in places:
            sequence = int(u64(reserved.attempt)[place])
            mine = [s for s in promised[place].tolist() if s != 0xFFFF]
            counts.append(len(mine))
            for segment in mine:
                slot, generation = self.claim(segment, keys[place], sequence, size, reserved.term)
                flat.append((segment, slot, generation))
                crcs[len(counts) - 1] = self.crc(segment, slot, generation)
        at = np.array(places, np.int64)
        return m.Commit(
            reserved.term,
            i32(reserved.row)[at].tobytes(),
            u64(reserved.attempt)[at].tobytes(),
            crcs.tobytes(),
            m.ReplicaColumn(
                bytes(counts),
                np.array([one[0] for one in flat], np.uint16).tobytes(),
                np.array([one[1] for one in flat], np.uint32).tobytes(),
                np.array([one[2] for one in flat], np.uint64).tobytes(),
            ),
        )

    def crc(self, segment: int, slot: int, generation: int) -> int:
        return crc32c(self.bytes_of(self.agent(segment), slot, generation))

    @staticmethod
    def bytes_of(agent: SegmentAgent, slot: int, generation: int) -> bytes:
        """What `claim` wrote there: its own key again and again."""
        held = agent.inventory(slot, 1)
        assert held["generation"].tolist() == [generation]
        return stamp(bytes(held["keys"]), int(held["size"][0]))

    def agent(self, segment: int) -> SegmentAgent:
        incarnation = self.master.catalog.segments[segment].incarnation
        return next(n.agent for n in self.nodes if n.agent.incarnation == incarnation)

    def claim(
        self, segment: int, key: bytes, sequence: int, size: int, term: int
    ) -> tuple[int, int]:
        records = np.zeros(1, CLAIM_DTYPE)
        records[0] = (size, term, sequence, 0, 0, len(key), 0, 1, 0, 0, 0)
        agent = self.agent(segment)
        status, slots, generations = agent.claim(records, key, term)
        assert status.tolist() == [0], status
        agent.write(int(slots[0]), int(generations[0]), 0, stamp(key, size))
        sealed = agent.seal(slots, generations, np.zeros(1, np.uint32), 1, term)
        assert sealed.tolist() == [0], sealed
        return int(slots[0]), int(generations[0])

    def put(
        self, session: int, keys: Sequence[bytes], size: int = 64, **how: Any
    ) -> list[m.PutStatus]:
        reserved = self.reserve(session, keys, size, **how)
        commit = self.seal(reserved, keys, size)
        status = [m.PutStatus(byte) for byte in reserved.status]
        if commit.row:
            done = self.call(session, commit, m.Committed)
            granted = [i for i, one in enumerate(status) if one is m.PutStatus.GRANTED]
            for i, byte in zip(granted, done.status, strict=True):
                status[i] = m.PutStatus(byte)
        return status

    def look(self, session: int, *keys: bytes) -> list[m.LookupStatus]:
        found = self.call(session, m.Lookup(pack_keys(keys)), m.Found)
        return [m.LookupStatus(byte) for byte in found.status]

    def placed(self, session: int, key: bytes) -> list[tuple[int, int, int]]:
        """(segment, slot, generation) of each replica."""
        found = self.call(session, m.Lookup(pack_keys([key])), m.Found).replicas
        columns = u16(found.segment), u32(found.slot), u64(found.generation)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def stat(self, session: int) -> dict[str, Any]:
        return self.call(session, m.Stat(), m.Status).values


def stamp(key: bytes, size: int) -> bytes:
    return (key * (size // len(key) + 1))[:size]


def reserve_message(
    keys: Sequence[bytes],
    size: int = 64,
    *,
    parents: Sequence[int] | None = None,
    chain: bool = False,
    **how: Any,
) -> m.Reserve:
    if parents is None:
        parents = [i - 1 if chain else -1 for i in range(len(keys))]
    return m.Reserve(
        pack_keys(keys),
        np.full(len(keys), size, np.uint64).tobytes(),
        np.array(parents, np.int32).tobytes(),
        chain=chain,
        **how,
    )
