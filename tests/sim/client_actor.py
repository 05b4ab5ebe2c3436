"""A simulated client: the product's protocols, one at a time, as the blocking shell runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from moonpool import _core
from moonpool.pool import messages as m
from moonpool.pool.client_state import ClientState
from moonpool.pool.ports import Outcome
from moonpool.pool.protocol import (
    CallAgents,
    CallMaster,
    Context,
    MasterLost,
    Pause,
    RaceAgents,
)
from moonpool.pool.protocol import Protocol as Dialogue
from moonpool.pool.read_race import ReadRace
from tests.sim.master_actor import MasterActor
from tests.sim.node_actor import NodeActor
from tests.sim.ports import Rpc, SimPort, Steps, TierRpc, TierSimPort
from tests.sim.segment_actor import SegmentActor
from tests.sim.tier_actor import TierActor
from tests.sim.world import Connection, Process, World

T = TypeVar("T")
HEDGE_MS = 5  # most answers are there by then


class ClientActor(Process):
    """Runs one protocol at a time, as the blocking shell does."""

    def __init__(
        self,
        world: World,
        name: str,
        master: MasterActor,
        nodes: dict[bytes, SegmentActor],
        host: str,
    ) -> None:
        super().__init__(world, name)
        self.master = master
        self.nodes = nodes
        self.host = host
        self._connection: Connection | None = None
        self._request = 0
        self._waiting_for: Callable[[Any], None] | None = None
        self.views: list[_core.SegmentView] = []
        self.state = ClientState(host, self._open_port, hedge_ms=HEDGE_MS)

    def _open_port(self, endpoint: m.SegmentEndpoint) -> Any:
        node = self.nodes[endpoint.incarnation]
        if isinstance(node, TierActor):
            return TierSimPort(node, endpoint.incarnation)
        assert isinstance(node, NodeActor)
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
        self.state = ClientState(self.host, self._open_port, hedge_ms=HEDGE_MS)

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
                case RaceAgents():
                    self._race(effect.race, lambda: resume(None))
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
            assert isinstance(port, SimPort | TierSimPort)
            self._drive(
                port.steps(call, self.world),
                self.world.now + effect.timeout_s,
                lambda outcome, index=index: finished(index, outcome),  # type: ignore[misc]
            )

    def _race(self, race: ReadRace, done: Callable[[], None]) -> None:
        """As `run_race`: what is still under way at the end is broken off, and writes no more."""
        began = self.world.now
        under_way: dict[int, Steps] = {}
        over = False

        def start(numbers: Iterable[int]) -> None:
            for number in numbers:
                entry = race.entries[number]
                assert isinstance(entry.port, SimPort)
                under_way[number] = entry.port.steps(entry.call, self.world)
                self._drive(
                    under_way[number],
                    self.world.now + race.timeout_s(self.world.now - began, number),
                    lambda outcome, number=number: finished(number, outcome),  # type: ignore[misc]
                )

        def finished(number: int, outcome: Outcome) -> None:
            nonlocal over
            if over:
                return
            del under_way[number]
            race.ended(number, outcome, self.world.now - began)
            if race.over:
                over = True
                for steps in under_way.values():
                    steps.close()
                done()

        def due() -> None:
            if over:
                return
            start(race.begin(self.world.now - began))
            moment = race.next_due_s()
            if moment is not None and not over:
                self.later(max(0.0, began + moment - self.world.now) + 1e-6, due)

        start(range(race.firsts))
        due()

    def _drive(self, steps: Steps, deadline: float, finished: Callable[[Outcome], None]) -> None:
        def resume(value: Any) -> None:
            try:
                step = steps.send(value)
            except StopIteration as stop:
                finished(stop.value)
                return
            if isinstance(step, Rpc | TierRpc):
                self._rpc(step, deadline, resume)
            else:
                self.later(step, lambda: resume(None))

        resume(None)

    def _rpc(self, rpc: Rpc | TierRpc, deadline: float, resume: Callable[[Any], None]) -> None:
        answered = False

        def answer(value: Any) -> None:
            nonlocal answered
            if not answered:
                answered = True
                resume(value)

        node, life = rpc.node, rpc.node.life

        def serve() -> None:
            def send(value: Any) -> None:
                self.later(self.world.delay(), lambda: answer(value))

            if node.life != life:
                send(None)
            elif isinstance(rpc, TierRpc):
                rpc.node.read_all(rpc.slots, rpc.generations, send)
            else:
                send(rpc.act(rpc.node.agent))

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
