"""The prefill rank's shell: listens on the side channel, obeys its machine, pushes.

open ── computed... ──> (pushes) ──> Release          whatever happens in between
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from moonpool.core.errors import (
    BadFrame,
    Closed,
    LayoutMismatch,
    MoonpoolError,
    ProtocolMismatch,
    TransferError,
)
from moonpool.core.sections import HandoffConfig
from moonpool.transfer.handoff import messages as m
from moonpool.transfer.handoff.actions import Drop, PrefillAction, Push, Release, Send
from moonpool.transfer.handoff.layout import check_fit
from moonpool.transfer.handoff.link import SideLink
from moonpool.transfer.handoff.mapping import I64, Ids
from moonpool.transfer.handoff.memory import KVMemory, check_parts
from moonpool.transfer.handoff.node import HandoffNode
from moonpool.transfer.handoff.prefill_machine import PrefillMachine
from moonpool.transfer.handoff.pusher import Pusher

DATA_CONNECT_S = 2.0
GREET_S = 5.0


class _Session:
    """A decode rank's connection: `number` is 0 until it was let in."""

    def __init__(self, link: SideLink) -> None:
        self.link = link
        self.number = 0
        self.greeted = False
        self.hello: m.Hello | None = None
        self.pusher: Pusher | None = None


class _Target(NamedTuple):
    """Decode's blocks of one transfer, the token the first of them begins with, and the prompt's
    tokens."""

    blocks: I64
    first_token: int
    tokens: int


class PrefillNode(HandoffNode[Release]):
    """One prefill rank. Blocks given to open() must stay as they are until take() yields their
    Release: that comes for every transfer, within moments of its end."""

    def __init__(
        self,
        name: str,
        memory: KVMemory,
        config: HandoffConfig | None = None,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name, memory, config, notify)
        self.machine = PrefillMachine(memory.layout.layers, self.times)
        self.address = ""
        self.greet_s = GREET_S
        self._source = memory.private(self.engine)
        self._links: dict[SideLink, _Session] = {}
        self._sessions: dict[int, _Session] = {}
        self._next_session = 1
        self._blocks: dict[str, I64] = {}
        self._targets: dict[str, _Target] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- the engine's side, any thread ----

    def start(self) -> str:
        """Listens; returns the address that decode workers are told. Raises TransferError."""
        port = self.config.port + (self.memory.layout.tp_rank if self.config.port else 0)

        async def listen() -> str:
            self._server = await self.loop.create_server(self._accept, self.config.host, port)
            bound = self._server.sockets[0].getsockname()[1]
            return f"{self.config.host}:{bound}"

        try:
            self.address = self.ask(listen())
        except OSError as error:
            text = f"handoff: cannot listen on {self.config.host}:{port}: {error.strerror}"
            raise TransferError(text) from None
        return self.address

    def open(self, transfer: str, tokens: int, blocks: Ids, prompt: str = "") -> None:
        """The request behind `transfer` was given blocks: those of its prompt, from token 0 on, as
        many as it has by now. `prompt` is a digest of its tokens, compared with decode's."""
        ids = np.array(blocks, dtype=np.int64)

        def step() -> None:
            self._blocks.setdefault(transfer, ids)
            self._act(self.machine.open(transfer, tokens, self.now_s(), prompt))

        self.post(step)

    def extend(self, transfer: str, blocks: Ids) -> None:
        """All blocks the prompt has by now."""
        ids = np.array(blocks, dtype=np.int64)

        def step() -> None:
            if transfer in self._blocks:
                self._blocks[transfer] = ids

        self.post(step)

    def computed(self, transfers: Sequence[tuple[str, int]], layer: int) -> None:
        """For each (transfer, upto): tokens before `upto` of `layer` stand in the blocks, written
        by whoever computes them, for good."""

        def step() -> None:
            now_s = self.now_s()
            for transfer, upto in transfers:
                self._act(self.machine.computed(transfer, layer, upto, now_s))

        self.post(step)

    def fail(self, transfer: str, code: str, text: str) -> None:
        """The request failed or was aborted here."""
        self.post(lambda: self._act(self.machine.close(transfer, code, text, self.now_s())))

    # ---- sessions ----

    def _accept(self) -> SideLink:
        link = SideLink.server(self.config.token, self.name, self._message, self._lost)
        session = self._links[link] = _Session(link)

        def too_slow() -> None:
            if not session.greeted:
                link.abort(f"no hello in {self.greet_s:g} s")

        self.loop.call_later(self.greet_s, too_slow)
        return link

    def _message(self, link: SideLink, message: m.Message) -> None:
        session = self._links[link]
        if not session.greeted:
            if not isinstance(message, m.Hello):
                raise BadFrame(f"side channel: {type(message).__name__} before the hello")
            session.greeted = True
            task = self.loop.create_task(self._let_in(session, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        if not session.number or not isinstance(message, m.ToPrefill):
            raise BadFrame(f"side channel: {type(message).__name__} out of turn")
        if isinstance(message, m.Announce):
            self._note_target(session, message)
        self._act(self.machine.handle(session.number, message, self.now_s()))

    async def _let_in(self, session: _Session, hello: m.Hello) -> None:
        try:
            check_hello(hello, self.config)
            check_fit(self.memory.layout, hello.layout)
            check_parts(hello.layout, hello.blocks, hello.layers)
            pusher = Pusher(self.engine, self.memory, self._source, hello, self.times.push_s)
            await self.loop.run_in_executor(None, pusher.connect, DATA_CONNECT_S)
        except MoonpoolError as error:
            self.count("refused")
            self._reply(session.link, m.Refuse(error.code, str(error)))
            session.link.close()
            return
        session.pusher, session.hello = pusher, hello
        if session.link.closed:
            pusher.close()
            return
        session.number = self._next_session
        self._next_session += 1
        self._sessions[session.number] = session
        self.count("sessions")
        self.machine.session_up(session.number, pusher.plan.step_tokens, self.now_s())
        self._reply(session.link, self.hello())
        self.arm()

    def _note_target(self, session: _Session, message: m.Announce) -> None:
        assert session.hello is not None
        if len(message.blocks) % 4:
            raise BadFrame("side channel: block ids of 4 bytes each were expected")
        ids = np.frombuffer(message.blocks, dtype="<i4").astype(np.int64)
        layout, tokens = session.hello.layout, message.tokens - message.first_token
        if tokens < 0 or message.first_token < 0 or message.first_token % layout.block_tokens:
            raise BadFrame(f"side channel: tokens {message.first_token}..{message.tokens}")
        short = len(ids) < -(-tokens // layout.block_tokens)
        if short or (len(ids) and not 0 <= ids.min() <= ids.max() < session.hello.blocks):
            raise BadFrame(f"side channel: {len(ids)} blocks for {tokens} tokens, or out of bounds")
        export = self.machine.exports.get(message.transfer)
        # Another worker's blocks are no target, nor are others once it has said which.
        if export is None or (export.announce is None and export.session in (None, session.number)):
            self._targets[message.transfer] = _Target(ids, message.first_token, message.tokens)

    def _lost(self, link: SideLink, reason: str) -> None:
        session = self._links.pop(link, None)
        if session is not None and session.number:
            self._end(session)
            self._act(self.machine.session_gone(session.number, self.now_s()))

    def _end(self, session: _Session) -> None:
        self._sessions.pop(session.number, None)
        if session.pusher is not None:
            pusher = session.pusher
            # Its ops are ended there, which may wait for the I/O thread.
            self.loop.run_in_executor(None, pusher.close)

    # ---- what the machine wants ----

    def _act(self, actions: list[PrefillAction]) -> None:
        for action in actions:
            if isinstance(action, Push):
                self._push(action)
            elif isinstance(action, Send):
                self._send(action)
            elif isinstance(action, Release):
                self._release(action)
            else:
                self._drop(action)
        if len(self._targets) > len(self.machine.exports):
            # Of transfers that ended before their request came.
            known = self.machine.exports
            self._targets = {name: one for name, one in self._targets.items() if name in known}
        self.arm()

    def _push(self, push: Push) -> None:
        def done(ok: bool, text: str) -> None:
            try:
                self.loop.call_soon_threadsafe(ended, ok, text)
            except RuntimeError:
                return  # the loop is gone, and everything with it

        def ended(ok: bool, text: str) -> None:
            self.count("pushes" if ok else "pushes_failed")
            self._act(self.machine.pushed(push.push, ok, text, self.now_s()))

        session = self._sessions.get(push.session)
        if session is None or session.pusher is None:
            done(False, "the session is gone")
            return
        target = self._targets[push.transfer]
        blocks = self._blocks[push.transfer]
        nbytes = session.pusher.push(push, blocks, target.blocks, target.first_token, done)
        self.count("pushed_bytes", nbytes)

    def _send(self, send: Send) -> None:
        session = self._sessions.get(send.session)
        message = send.message
        if session is None:
            return
        if isinstance(message, m.Complete) and self.config.verify and session.pusher is not None:
            sums = session.pusher.sums(
                self._blocks[message.transfer], *self._targets[message.transfer]
            )
            message = m.Complete(message.transfer, sums)
        self._reply(session.link, message)

    def _release(self, release: Release) -> None:
        self.count("released" if release.ok else "released_failed")
        self._blocks.pop(release.transfer, None)
        self._targets.pop(release.transfer, None)
        self.tell(release)

    def _drop(self, drop: Drop) -> None:
        session = self._sessions.get(drop.session)
        if session is not None:
            self.count("dropped")
            self._end(session)
            session.link.abort(drop.text)

    def _reply(self, link: SideLink, message: m.Message) -> None:
        try:
            link.send(message)
        except Closed:
            return  # _lost() tells the machine

    def next_s(self) -> float:
        return self.machine.next_s()

    def tick(self) -> None:
        self._act(self.machine.tick(self.now_s()))

    async def shut(self) -> None:
        if self._server is not None:
            self._server.close()
        for session in list(self._links.values()):
            session.link.abort("the prefill worker closes")
        for session in list(self._sessions.values()):
            if session.pusher is not None:
                await self.loop.run_in_executor(None, session.pusher.close)


def check_hello(hello: m.Hello, config: HandoffConfig) -> None:
    """Raises ProtocolMismatch, LayoutMismatch."""
    if hello.protocol != m.PROTOCOL_VERSION:
        raise ProtocolMismatch(
            f"the peer speaks side-channel version {hello.protocol}, this side "
            f"{m.PROTOCOL_VERSION}; run the same release of Moonpool on both"
        )
    if hello.beat_ms * 2 > config.lease_ms or config.beat_ms * 2 > hello.lease_ms:
        raise LayoutMismatch(
            f"beats of {hello.beat_ms} and {config.beat_ms} ms do not keep leases of "
            f"{config.lease_ms} and {hello.lease_ms} ms alive; set handoff.* alike on both sides"
        )
    hello.layout.check()
