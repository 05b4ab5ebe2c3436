"""Prefill and decode machines on simulated time, over links that lose, delay and break, with
processes that stop, go on and die. Every write of a push is checked against who owns the block at
the moment it lands."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from moonpool.transfer.handoff import actions as a
from moonpool.transfer.handoff import messages as m
from moonpool.transfer.handoff.decode_machine import DecodeMachine
from moonpool.transfer.handoff.prefill_machine import PrefillMachine

LAYERS = 3
STEP = 4
BLOCKS = 12
PREFILL_BLOCKS = 30
NEVER = float("inf")


@dataclass
class Faults:
    """Probabilities of one message lost, and of one event a tick of the world."""

    lose: float = 0.0
    cut: float = 0.0
    stop: float = 0.0
    kill: float = 0.0
    abort: float = 0.0
    push_fails: float = 0.0


@dataclass
class Session:
    prefill: "Prefill"
    decode: "Decode"
    open: bool = True
    revoked: bool = False
    at_prefill: bool = False
    last_s: dict[str, float] = field(default_factory=dict)


@dataclass
class Prefill:
    name: str
    machine: PrefillMachine
    until_s: float = 0.0
    alive: bool = True
    blocks: dict[int, str] = field(default_factory=dict)
    held: dict[str, list[int]] = field(default_factory=dict)
    released: dict[str, bool] = field(default_factory=dict)


@dataclass
class Decode:
    name: str
    machine: DecodeMachine
    until_s: float = 0.0
    alive: bool = True
    owner: dict[int, str] = field(default_factory=dict)
    held: dict[str, list[int]] = field(default_factory=dict)
    bytes: dict[tuple[int, int], str] = field(default_factory=dict)
    settled: dict[str, a.Settled] = field(default_factory=dict)
    session: int = 0


class World:
    def __init__(self, seed: int, faults: Faults, times: a.Times | None = None) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.times = times or a.Times()
        self.now_s = 0.0
        self.sessions: dict[int, Session] = {}
        self.decodes: list[Decode] = []
        self.log: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self._session = count(1)
        self._asked: dict[str, tuple[int, int]] = {}
        self.prefill = self.new_prefill()

    # ---- time ----

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._number), what))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self._events)
            what()
        self.now_s = until_s

    # ---- processes ----

    def new_prefill(self) -> Prefill:
        self.prefill = Prefill("p", PrefillMachine(LAYERS, self.times))
        self.prefill.blocks = dict.fromkeys(range(PREFILL_BLOCKS), "")
        self._tick_prefill(self.prefill)
        return self.prefill

    def new_decode(self, name: str) -> Decode:
        decode = Decode(name, DecodeMachine(LAYERS, self.times))
        decode.owner = dict.fromkeys(range(BLOCKS), "")
        self.decodes.append(decode)
        self._tick_decode(decode)
        return decode

    def stop_for(self, process: Prefill | Decode, seconds: float) -> None:
        self.log.append(f"{self.now_s:.3f} stop {process.name} {seconds:.2f}")
        process.until_s = max(process.until_s, self.now_s + seconds)

    def kill_prefill(self) -> None:
        self.log.append(f"{self.now_s:.3f} kill prefill")
        dead = self.prefill
        dead.alive = False
        for number, session in list(self.sessions.items()):
            if session.prefill is dead:
                self.after(0.001, lambda number=number: self._eof_at_decode(number))  # type: ignore[misc]
        self.new_prefill()

    def _when_awake(self, process: Prefill | Decode, what: Callable[[], None]) -> None:
        if not process.alive:
            return
        if self.now_s < process.until_s:
            self.after(process.until_s - self.now_s, lambda: self._when_awake(process, what))
        else:
            what()

    def _tick_prefill(self, prefill: Prefill) -> None:
        def tick() -> None:
            self._prefill_acts(prefill, prefill.machine.tick(self.now_s))
            self.after(0.05, lambda: self._when_awake(prefill, tick))

        self._when_awake(prefill, tick)

    def _tick_decode(self, decode: Decode) -> None:
        def tick() -> None:
            self._decode_acts(decode, decode.machine.tick(self.now_s))
            self.after(0.05, lambda: self._when_awake(decode, tick))

        self._when_awake(decode, tick)

    # ---- requests ----

    def session_of(self, decode: Decode) -> int:
        session = self.sessions.get(decode.session)
        if session is None or not session.open or session.revoked:
            decode.session = number = next(self._session)
            self.sessions[number] = Session(self.prefill, decode)
            decode.machine.session_new(number)
            self.after(0.002, lambda: self._connect(number))
        return decode.session

    def _connect(self, number: int) -> None:
        session = self.sessions[number]
        prefill, decode = session.prefill, session.decode

        def accept() -> None:
            if session.revoked:
                return
            prefill.machine.session_up(number, STEP, self.now_s)
            session.at_prefill = True
            self._when_awake(
                decode,
                lambda: self._decode_acts(decode, decode.machine.session_up(number, self.now_s)),
            )

        if not prefill.alive:
            self._eof_at_decode(number)
            return
        self._when_awake(prefill, accept)
        self.after(1.0, lambda: None if session.at_prefill else self._eof_at_decode(number))

    def request_at_prefill(self, transfer: str, tokens: int) -> None:
        def come() -> None:
            prefill = self.prefill
            free = [block for block, owner in prefill.blocks.items() if not owner]
            need = -(-tokens // STEP)
            if len(free) < need:
                self._prefill_acts(
                    prefill, prefill.machine.close(transfer, "busy", "full", self.now_s)
                )
                return
            mine = free[:need]
            prefill.held[transfer] = mine
            for block in mine:
                prefill.blocks[block] = transfer
            self._prefill_acts(prefill, prefill.machine.open(transfer, tokens, self.now_s))
            self._compute(prefill, transfer, tokens, 0, 0)

        self._when_awake(self.prefill, come)

    def _compute(self, prefill: Prefill, transfer: str, tokens: int, layer: int, at: int) -> None:
        """Layer after layer of one chunk, then the next chunk."""
        if at >= tokens or transfer not in prefill.held:
            return
        chunk = min(tokens, at + 5)

        def computed() -> None:
            done = prefill.machine.computed(transfer, layer, chunk, self.now_s)
            self._prefill_acts(prefill, done)
            if layer + 1 < LAYERS:
                self._compute(prefill, transfer, tokens, layer + 1, at)
            else:
                self._compute(prefill, transfer, tokens, 0, chunk)

        self.after(self.random.uniform(0.001, 0.03), lambda: self._when_awake(prefill, computed))

    def abort_at_prefill(self, transfer: str) -> None:
        prefill = self.prefill
        self._when_awake(
            prefill,
            lambda: self._prefill_acts(
                prefill, prefill.machine.close(transfer, "cancelled", "aborted", self.now_s)
            ),
        )

    def claim(self, decode: Decode, transfer: str) -> None:
        def come() -> None:
            if transfer in decode.settled:
                return
            sessions = (self.session_of(decode),)
            self._decode_acts(decode, decode.machine.claim(transfer, sessions, self.now_s))

        self._when_awake(decode, come)

    def request_at_decode(self, decode: Decode, transfer: str, first: int, tokens: int) -> None:
        def come() -> None:
            free = [block for block, owner in decode.owner.items() if not owner]
            need = -(-tokens // STEP) - first // STEP
            if transfer in decode.settled:
                return
            if len(free) < need:
                self.after(0.05, lambda: self._when_awake(decode, come))
                return
            mine = free[:need]
            for block in mine:
                decode.owner[block] = transfer
            decode.held[transfer] = mine
            self._asked[transfer] = (first, tokens)
            sessions = (self.session_of(decode),)
            self._decode_acts(
                decode,
                decode.machine.announce(transfer, sessions, first, tokens, b"", self.now_s),
            )

        self._when_awake(decode, come)

    def abort_at_decode(self, decode: Decode, transfer: str) -> None:
        self._when_awake(
            decode,
            lambda: self._decode_acts(
                decode, decode.machine.cancel(transfer, "cancelled", "aborted", self.now_s)
            ),
        )

    # ---- what the machines want ----

    def _prefill_acts(self, prefill: Prefill, actions: list[a.PrefillAction]) -> None:
        for action in actions:
            if isinstance(action, a.Send):
                self._send(action.session, "to decode", action.message)
            elif isinstance(action, a.Push):
                self._push(prefill, action)
            elif isinstance(action, a.Drop):
                self.after(0.001, lambda n=action.session: self._eof_at_decode(n))  # type: ignore[misc]
            else:
                assert action.transfer not in prefill.released, "released twice"
                prefill.released[action.transfer] = action.ok
                for block in prefill.held.pop(action.transfer, []):
                    prefill.blocks[block] = ""

    def _decode_acts(self, decode: Decode, actions: list[a.DecodeAction]) -> None:
        for action in actions:
            if isinstance(action, a.Send):
                self._send(action.session, "to prefill", action.message)
            elif isinstance(action, a.Revoke):
                self._close_at_decode(action.session, action.text)
            elif isinstance(action, a.Settled):
                self._settled(decode, action)
            elif isinstance(action, a.Verify):
                raise AssertionError("no sums were asked for")

    def _settled(self, decode: Decode, action: a.Settled) -> None:
        transfer = action.transfer
        assert transfer not in decode.settled, "settled twice"
        decode.settled[transfer] = action
        mine = decode.held.pop(transfer, [])
        if action.ok:
            first, tokens = self._asked[transfer]
            assert len(mine) == -(-tokens // STEP) - first // STEP
            for layer in range(LAYERS):
                for at, block in enumerate(mine):
                    assert decode.bytes.get((layer, block)) == f"{transfer}/{first // STEP + at}"
        for block in mine:
            decode.owner[block] = ""

    # ---- wires ----

    def _send(self, number: int, way: str, message: m.Message) -> None:
        session = self.sessions[number]
        if not session.open or self.random.random() < self.faults.lose:
            return
        at = max(session.last_s.get(way, 0.0), self.now_s + self.random.uniform(0.0002, 0.01))
        session.last_s[way] = at

        def arrive() -> None:
            if not session.open:
                return
            if way == "to decode" and not session.revoked:
                found = session.decode.machine.handle(number, message, self.now_s)  # type: ignore[arg-type]
                self._decode_acts(session.decode, found)
            elif way == "to prefill":
                done = session.prefill.machine.handle(number, message, self.now_s)  # type: ignore[arg-type]
                self._prefill_acts(session.prefill, done)

        process = session.decode if way == "to decode" else session.prefill
        self.after(at - self.now_s, lambda: self._when_awake(process, arrive))

    def _push(self, prefill: Prefill, push: a.Push) -> None:
        """The bytes of every block land one by one, later; the op ends after the last."""
        session = self.sessions[push.session]
        blocks = range(push.first // STEP, -(-push.last // STEP))
        fails = self.random.random() < self.faults.push_fails
        failed = [fails]
        at_s = 0.0

        def read(block: int) -> None:
            # The sender's kernel takes the bytes while it runs; they land when they land.
            mine = prefill.held.get(push.transfer)
            assert mine is not None, f"{push} reads blocks that were released"
            assert prefill.blocks[mine[block]] == push.transfer
            value = f"{push.transfer}/{block}"
            # Bytes of an op that failed may land long after it was given up.
            self.after(self.random.uniform(0.0, 0.5 if fails else 0.02), lambda: land(block, value))

        def land(block: int, value: str) -> None:
            decode = session.decode
            if session.revoked or not decode.alive:
                failed[0] = True
                return
            first, _ = self._asked[push.transfer]
            mine = decode.held.get(push.transfer)
            assert mine is not None, f"{push} writes blocks that decode has taken back"
            target = mine[block - first // STEP]
            assert decode.owner[target] == push.transfer
            decode.bytes[push.layer, target] = value

        def end() -> None:
            ok = not failed[0]
            self._prefill_acts(
                prefill, prefill.machine.pushed(push.push, ok, "it failed", self.now_s)
            )

        for block in blocks:
            at_s += self.random.uniform(0.0, 0.02)
            self.after(at_s, lambda block=block: self._when_awake(prefill, lambda: read(block)))  # type: ignore[misc]
        # A stopped sender reads late: its op ends after its last block in any case.
        self.after(at_s + 0.03, lambda: self._end_after(prefill, end))

    def _end_after(self, prefill: Prefill, end: Callable[[], None]) -> None:
        self._when_awake(prefill, lambda: self.after(0.03, lambda: self._when_awake(prefill, end)))

    def cut(self, number: int) -> None:
        session = self.sessions[number]
        if session.open:
            self.log.append(f"{self.now_s:.3f} cut {number}")
            self._eof_at_decode(number)

    def _eof_at_decode(self, number: int) -> None:
        session = self.sessions[number]
        self._when_awake(session.decode, lambda: self._close_at_decode(number, "eof"))

    def _close_at_decode(self, number: int, text: str) -> None:
        """What the shell does: withdraw the memory, close, tell the machine; prefill sees it."""
        session = self.sessions[number]
        if session.revoked:
            return
        session.revoked = True
        session.open = False
        decode, prefill = session.decode, session.prefill
        done = decode.machine.session_gone(number, "unreachable", text, self.now_s)
        self._decode_acts(decode, done)
        self.after(
            0.001,
            lambda: self._when_awake(
                prefill,
                lambda: self._prefill_acts(
                    prefill, prefill.machine.session_gone(number, self.now_s)
                ),
            ),
        )
