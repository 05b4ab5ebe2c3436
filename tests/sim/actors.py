"""The processes of a simulated pool: a master, nodes with real segments, clients."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from moonpool import _core
from moonpool.core.sections import MasterConfig
from moonpool.pool import messages as m
from moonpool.pool.client_state import ClientState
from moonpool.pool.effects import Effect
from moonpool.pool.master_machine import MasterMachine
from moonpool.pool.node_copies import keep
from moonpool.pool.node_machine import NodeMachine
from moonpool.pool.open_claims import LOST, OpenClaims
from moonpool.pool.ports import BatchPutCall, Buffer, Outcome, PutCall, ReadCall, Status, failed
from moonpool.pool.protocol import CallAgents, CallMaster, Context, MasterLost, Pause
from moonpool.pool.protocol import Protocol as Dialogue
from moonpool.pool.snapshot.saved import Saved
from moonpool.pool.snapshot.writer import frames
from tests.sim.world import Connection, Process, World

T = TypeVar("T")
CONNECT_RETRY_S = 0.05


class MasterActor(Process):
    """MasterMachine behind simulated connections. A restart knows nothing of its last life but,
    with `snapshots`, the last one of these that was written to its end."""

    def __init__(self, world: World, config: MasterConfig, snapshots: bool = False) -> None:
        super().__init__(world, "master")
        self.config = config
        self.snapshots = snapshots
        self.snapshot = b""
        self.restored = 0  # segments, over all lives
        self.sessions: dict[int, Connection] = {}
        self._connecting: set[Connection] = set()
        self._next_session = 1
        self._tick_at = float("inf")
        self.start()

    def start(self) -> None:
        self.alive, self.stopped = True, False
        self.machine = MasterMachine(
            self.config,
            instance=self.world.random.randbytes(16),
            first_term=self.world.wall_ms(),
            saved=self._saved(),
        )
        self.sessions = {}
        self._tick_at = float("inf")
        self._schedule()
        if self.snapshots:
            self._write(iter(()), [])

    def _saved(self) -> Saved | None:
        data = self.snapshot
        return Saved(lambda at, length: data[at : at + length], len(data)) if data else None

    def _write(self, pieces: Iterator[bytes], written: list[bytes]) -> None:
        """A piece now and then; it may die in between."""
        if self.machine.recovering or self.machine.restoring:
            pieces, written = iter(()), []
        elif piece := next(pieces, None):
            written.append(piece)
        else:
            self.snapshot = b"".join(written) or self.snapshot
            catalog, links = self.machine.catalog, self.machine.nodes.links
            pieces, written = frames(catalog, links, self.world.wall_ms(), 64), []
        self.later(self.world.random.uniform(0.001, 0.05), lambda: self._write(pieces, written))

    def _take(self) -> None:
        """A piece of the snapshot into the catalog, between other work."""
        before = self.machine.nodes.restoring.segments
        if self.machine.restoring:
            self._perform(self.machine.restore(self.world.now, self.world.wall_ms()))
        self.restored += self.machine.nodes.restoring.segments - before

    def died(self) -> None:
        for connection in [*self.sessions.values(), *self._connecting]:
            connection.break_off()
        self.sessions = {}
        self._connecting.clear()

    def connect(
        self,
        peer: Process,
        role: Literal["client", "node"],
        host: str,
        receive: Callable[[object], None],
        broken: Callable[[], None],
    ) -> Connection | None:
        """None: nobody listens."""
        if not self.alive:
            return None
        session = self._next_session
        self._next_session += 1
        connection = Connection(
            self.world,
            (peer, self),
            (receive, lambda message: self._receive(session, message)),
            (broken, lambda: self._gone(session)),
        )
        life = self.life
        self._connecting.add(connection)

        def accept() -> None:
            if self.life == life and connection.open:
                self._connecting.discard(connection)
                self.sessions[session] = connection
                self._perform(
                    self.machine.connected(session, role, peer.name, host, self.world.now)
                )

        self.world.after(self.world.delay(), lambda: self.deliver(accept))
        # Nothing sent on the connection may overtake its acceptance.
        connection.hold(0.1)
        return connection

    def _receive(self, session: int, message: object) -> None:
        envelope = m.decode(message)  # type: ignore[arg-type]
        if session in self.sessions:
            self._perform(
                self.machine.handle(
                    session, envelope.id, envelope.body, self.world.now, self.world.wall_ms()
                )
            )

    def _gone(self, session: int) -> None:
        if self.sessions.pop(session, None) is not None:
            self._perform(self.machine.disconnected(session, self.world.now))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            connection = self.sessions.get(effect.session)
            if connection is not None:
                connection.send(1, m.encode(effect.message, effect.request_id))
        if self.machine.restoring:
            self.later(self.world.random.uniform(0.0, 0.05), self._take)
        self._schedule()

    def _schedule(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline < self._tick_at:
            self._tick_at = deadline
            self.later(max(0.0, deadline - self.world.now), self._tick)

    def _tick(self) -> None:
        self._tick_at = float("inf")
        self._perform(self.machine.tick(self.world.now))


class SimAgent:
    """A real segment agent on the world's clock. `valid_until` is kept by the world: readers in
    the simulation ask it instead of the machine's boot clock."""

    def __init__(self, node: NodeActor, agent: _core.SegmentAgent) -> None:
        self._node = node
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    @property
    def valid_until_ns(self) -> int:
        return self._node.valid_until_ns

    def set_valid_until(self, boottime_ns: int) -> None:
        self._node.valid_until_ns = boottime_ns

    def drain(self) -> int:
        return self._agent.drain(self._node.world.boottime_ns())

    def retire(self, slot: Any, generation: Any, term: int, hold_ms: int = 0) -> Any:
        now = self._node.world.boottime_ns()
        return self._agent.retire(slot, generation, term, hold_ms, now)


class NodeActor(Process):
    """A node: its segment file outlives it."""

    def __init__(
        self,
        world: World,
        name: str,
        master: MasterActor,
        path: Path,
        capacity: int,
        host: str,
        slots: int = 256,
    ) -> None:
        super().__init__(world, name)
        self.master = master
        self.path = path
        self.host = host
        self.capacity = capacity
        self.valid_until_ns = 0
        self.peers: dict[bytes, NodeActor] = {}
        self._agent: _core.SegmentAgent | None = _core.SegmentAgent.create(
            str(path), capacity, capacity, slots, 16, b"", False, 64
        )
        self.incarnation = self._agent.incarnation
        self._connection: Connection | None = None
        self._begin()

    @property
    def agent(self) -> _core.SegmentAgent:
        assert self._agent is not None, f"{self.name} is dead"
        return self._agent

    def _begin(self) -> None:
        endpoint = m.SegmentEndpoint(
            0,
            self.incarnation,
            self.name,
            self.host,
            tcp=self.name,
            path=str(self.path),
            capacity_bytes=self.capacity,
        )
        self.machine = NodeMachine(SimAgent(self, self.agent), endpoint, 0.2)
        self._connect()
        self._tick()

    def died(self) -> None:
        if self._connection is not None:
            self._connection.break_off()
            self._connection = None
        self.agent.close()  # the kernel gives the lock back; the file stays as it is
        self._agent = None

    def restart(self) -> None:
        if self.alive:
            return
        self.world.note(f"{self.name} restarted")
        self.alive = True
        self._agent = _core.SegmentAgent.adopt(str(self.path))
        self._begin()

    def _connect(self) -> None:
        self._connection = self.master.connect(self, "node", self.host, self._receive, self._broken)
        if self._connection is None:
            self.later(CONNECT_RETRY_S, self._connect)
            return
        self._send(self.machine.connected(self.world.now))

    def _broken(self) -> None:
        self.machine.disconnected()
        self._connection = None
        self.later(CONNECT_RETRY_S, self._connect)

    def _receive(self, message: object) -> None:
        body = m.decode(message).body  # type: ignore[arg-type]
        self._send(self.machine.handle(body, self.world.now, self.world.boottime_ns()))  # type: ignore[arg-type]
        while self.machine.copies:
            self._fetch(self.machine.copies.popleft())
        self._inventory()

    def _fetch(self, order: m.Copy) -> None:
        """Bytes of another node, a while later; claimed and sealed here a while after that."""
        source = self.peers[order.source.incarnation]
        connection = self._connection

        def keep_them(data: list[bytes | None]) -> None:
            if connection is self._connection:
                self._send([keep(self.agent, order, data, self.world.boottime_ns())])

        def read() -> None:
            data = []
            for slot, generation in zip(
                np.frombuffer(order.slot, np.uint32).tolist(),
                np.frombuffer(order.generation, np.uint64).tolist(),
                strict=True,
            ):
                valid = source.alive and self.world.boottime_ns() < source.valid_until_ns
                got = source.agent.read(slot, generation) if valid else -1
                data.append(got if isinstance(got, bytes) else None)
            self.later(self.world.delay(), lambda: keep_them(data))

        self.later(self.world.delay(), lambda: source.deliver(read))

    def _inventory(self) -> None:
        while self.machine.inventory_pending():
            self._send([self.machine.inventory_chunk()])
        self._send(self.machine.tick(self.world.now, self.world.boottime_ns()))

    def _tick(self) -> None:
        self._send(self.machine.tick(self.world.now, self.world.boottime_ns()))
        self.later(0.05, self._tick)

    def _send(self, messages: list[m.NodeToMaster]) -> None:
        for message in messages:
            if self._connection is not None:
                self._connection.send(0, m.encode(message, 0))


@dataclass(frozen=True)
class Rpc:
    """Run `act` in the node's process; resumed with what it returns, None: no answer."""

    node: NodeActor
    act: Callable[[_core.SegmentAgent], Any]


Steps = Generator[Any, Any, Outcome]  # yields Rpc, or seconds to let pass in the client


class SimPort:
    """A client's way to a segment. With `segment` it maps the memory, else it sends bytes."""

    def __init__(self, node: NodeActor, segment: _core.SegmentClient | None) -> None:
        self.actor = node
        self.segment = segment
        self.incarnation = node.incarnation
        self.node = node.name
        self.local = segment is not None
        self.kind = "sim"
        self.claims = OpenClaims(segment) if segment is not None else None

    def close(self) -> None:
        if self.segment is not None:
            self.segment.close()

    def steps(self, call: Any, world: World) -> Steps:
        match call:
            case PutCall():
                return self._counted_put(call, world)
            case BatchPutCall():
                return self._counted_put(call.written_out(), world)
            case ReadCall():
                return self._read(call, world)
        raise AssertionError(call)

    def _counted_put(self, call: PutCall, world: World) -> Steps:
        """As the product's port: a claim whose answer was lost is disowned."""
        if self.claims is None:
            return (yield from self._put(call, world, 0))
        outcome = yield from self._put(call, world, self.claims.begin())
        self.claims.end(1, bool(np.isin(outcome.status, LOST).any()))
        return outcome

    def _put(self, call: PutCall, world: World, epoch: int) -> Steps:
        count = len(call.records)
        row = self.segment.row if self.segment else -1
        given_up = False

        def ask(agent: _core.SegmentAgent) -> Any:
            # A frame on a connection that its client has closed is never taken up.
            if given_up and self.segment is None:
                return None
            return agent.claim(call.records, call.blob, call.term, row, epoch, world.boottime_ns())

        claim = yield Rpc(self.actor, ask)
        if claim is None:
            given_up = True
            return failed(count, Status.UNREACHABLE)
        status, slots, generations = (column.copy() for column in claim)
        crcs = np.zeros(count, np.uint32)
        for i in np.flatnonzero(status == Status.OK).tolist():
            data = bytes(call.sources[i])
            half = len(data) // 2
            slot, generation = int(slots[i]), int(generations[i])
            for offset, piece in ((0, data[:half]), (half, data[half:])):
                written = yield from self._write_piece(slot, generation, offset, piece)
                if written != Status.OK:
                    status[i] = Status.UNREACHABLE if written is None else written
                    break
                yield world.delay()
            crcs[i] = _core.crc32c(data)
        good = np.flatnonzero(status == Status.OK)
        if len(good):
            sealed = yield Rpc(
                self.actor,
                lambda agent: agent.seal(slots[good], generations[good], crcs[good], 0, call.term),
            )
            status[good] = Status.UNREACHABLE if sealed is None else sealed
        bad = np.flatnonzero((status != Status.OK) & (generations != 0))
        if len(bad):
            yield Rpc(self.actor, lambda agent: agent.abort(slots[bad], generations[bad]))
        return Outcome(status, slots, generations, crcs)

    def _write_piece(
        self, slot: int, generation: int, offset: int, piece: bytes
    ) -> Generator[Any, Any, int | None]:
        if self.segment is not None:
            # A writer that mapped the memory writes without asking anybody, stale or not.
            return self.segment.write_range(slot, generation, offset, piece)
        written: int | None = yield Rpc(
            self.actor, lambda agent: agent.write(slot, generation, offset, piece)
        )
        return written

    def _read(self, call: ReadCall, world: World) -> Steps:
        count = len(call.slots)
        status = np.zeros(count, np.uint8)
        sizes = np.zeros(count, np.uint64)
        for i in range(count):
            slot, generation = int(call.slots[i]), int(call.generations[i])
            result, size = yield from self._read_one(slot, generation, call.buffers[i], world)
            status[i], sizes[i] = result, size
        return Outcome(status, call.slots, call.generations, sizes=sizes)

    def _read_one(
        self, slot: int, generation: int, buffer: Buffer, world: World
    ) -> Generator[Any, Any, tuple[int, int]]:
        if self.segment is None:
            node = self.actor

            def read(agent: _core.SegmentAgent) -> bytes | int:
                if world.boottime_ns() >= node.valid_until_ns:
                    return -1 - Status.EXPIRED
                return agent.read(slot, generation)

            data = yield Rpc(node, read)
            if data is None:
                return Status.UNREACHABLE, 0
            if isinstance(data, int):
                return -1 - data, 0
            memoryview(buffer).cast("B")[: len(data)] = data
            return Status.OK, len(data)
        view = memoryview(buffer).cast("B")
        half = len(view) // 2
        for offset, piece in ((0, view[:half]), (half, view[half:])):
            if world.boottime_ns() >= self.actor.valid_until_ns:
                return Status.EXPIRED, 0
            got = self.segment.read_range(slot, generation, offset, piece)
            if got < 0:
                return -1 - got, 0
            yield world.delay()
        if world.boottime_ns() >= self.actor.valid_until_ns:
            return Status.EXPIRED, 0
        # The product sums up what it copied in one go; here the copy took its time, so the same
        # check is made on a second copy and both must agree.
        again = bytearray(len(view))
        size = self.segment.read_one(slot, generation, again, True)
        if size < 0:
            return -1 - size, 0
        return (Status.OK, size) if again == view else (Status.CORRUPT, 0)


class ClientActor(Process):
    """Runs one protocol at a time, as the blocking shell does."""

    def __init__(
        self, world: World, name: str, master: MasterActor, nodes: dict[bytes, NodeActor], host: str
    ) -> None:
        super().__init__(world, name)
        self.master = master
        self.nodes = nodes
        self.host = host
        self._connection: Connection | None = None
        self._request = 0
        self._waiting_for: Callable[[Any], None] | None = None
        self.views: list[_core.SegmentView] = []
        self.state = ClientState(host, self._open_port)

    def _open_port(self, endpoint: m.SegmentEndpoint) -> Any:
        node = self.nodes[endpoint.incarnation]
        segment = None
        if node.host == self.host:
            segment = _core.SegmentClient(str(node.path))
        return SimPort(node, segment)

    def died(self) -> None:
        if self._connection is not None:
            self._connection.break_off()
            self._connection = None
        for view in self.views:
            view.release()
        self.views.clear()
        self.state.close()  # the kernel gives row locks back

    def restart(self) -> None:
        if self.alive:
            return
        self.alive = True
        self._waiting_for = None
        self.state = ClientState(self.host, self._open_port)

    def run(
        self,
        build: Callable[[Context], Dialogue[T]],
        timeout_s: float,
        done: Callable[[T], None],
    ) -> None:
        deadline = self.world.now + timeout_s
        dialogue = build(Context(self.state, lambda: self.world.now, deadline))
        life = self.life

        def resume(value: Any) -> None:
            if self.life != life:
                return  # an answer to a process that is no more
            try:
                effect = dialogue.send(value)
            except StopIteration as stop:
                done(stop.value)
                return
            match effect:
                case CallMaster():
                    if effect.meanwhile is not None:
                        effect.meanwhile()
                    self._ask(effect.message, deadline, resume)
                case CallAgents():
                    self._call_agents(effect, resume)
                case Pause():
                    self.later(effect.seconds, lambda: resume(None))

        resume(None)

    # --- effects ----------------------------------------------------------------------------------

    def _ask(
        self, message: m.ClientRequest, deadline: float, resume: Callable[[Any], None]
    ) -> None:
        if self._connection is None or not self._connection.open:
            self._connection = self.master.connect(
                self, "client", self.host, self._receive, self._broken
            )
        if self._connection is None:
            self.later(self.world.delay(), lambda: resume(MasterLost("refused")))
            return
        self._request += 1
        number = self._request
        self._waiting_for = resume
        self._connection.send(0, m.encode(message, number))

        def too_late() -> None:
            if self._request == number and self._waiting_for is not None:
                if self._connection is not None:
                    self._connection.break_off()
                    self._connection = None
                self._answer(MasterLost("the deadline passed"))

        self.later(max(0.0, deadline - self.world.now), too_late)

    def _receive(self, message: object) -> None:
        envelope = m.decode(message)  # type: ignore[arg-type]
        if envelope.id != self._request:
            return
        body = envelope.body
        if isinstance(body, m.Failure):
            self._answer(MasterLost(body.text, refused=True, code=body.code))
        else:
            self._answer(body)

    def _broken(self) -> None:
        self._connection = None
        self._answer(MasterLost("the connection broke"))

    def _answer(self, value: Any) -> None:
        resume, self._waiting_for = self._waiting_for, None
        if resume is not None:
            resume(value)

    def _call_agents(self, effect: CallAgents, resume: Callable[[Any], None]) -> None:
        outcomes: list[Outcome | None] = [None] * len(effect.calls)

        def finished(index: int, outcome: Outcome) -> None:
            outcomes[index] = outcome
            if all(o is not None for o in outcomes):
                resume(outcomes)

        for index, (port, call) in enumerate(effect.calls):
            assert isinstance(port, SimPort)
            self._drive(
                port.steps(call, self.world),
                self.world.now + effect.timeout_s,
                lambda outcome, index=index: finished(index, outcome),  # type: ignore[misc]
            )

    def _drive(self, steps: Steps, deadline: float, finished: Callable[[Outcome], None]) -> None:
        def resume(value: Any) -> None:
            try:
                step = steps.send(value)
            except StopIteration as stop:
                finished(stop.value)
                return
            if isinstance(step, Rpc):
                self._rpc(step, deadline, resume)
            else:
                self.later(step, lambda: resume(None))

        resume(None)

    def _rpc(self, rpc: Rpc, deadline: float, resume: Callable[[Any], None]) -> None:
        answered = False

        def answer(value: Any) -> None:
            nonlocal answered
            if not answered:
                answered = True
                resume(value)

        node, life = rpc.node, rpc.node.life

        def serve() -> None:
            value = rpc.act(node.agent) if node.life == life else None
            self.later(self.world.delay(), lambda: answer(value))

        def arrive() -> None:
            if node.alive and node.life == life:
                node.deliver(serve)
            else:
                self.later(0.0, lambda: answer(None))

        def check_alive() -> None:
            """A broken connection is noticed while waiting."""
            if not answered:
                if node.life != life:
                    answer(None)
                elif self.world.now < deadline:
                    self.later(0.05, check_alive)

        self.later(self.world.delay(), arrive)
        self.later(0.05, check_alive)
        self.later(max(0.0, deadline - self.world.now), lambda: answer(None))
