"""The decode rank's shell: connects to prefill workers, lends them its memory, takes it back.

claim? ──> announce ──> Settled          whatever happens in between
"""

import asyncio
from collections.abc import Callable

import numpy as np

from moonpool.core.address import parse_address
from moonpool.core.errors import (
    BadFrame,
    Closed,
    DeadlineExceeded,
    MoonpoolError,
    PeerRestarted,
    Unreachable,
    error_from_code,
)
from moonpool.core.sections import HandoffConfig
from moonpool.transfer.handoff import messages as m
from moonpool.transfer.handoff.actions import DecodeAction, Progress, Revoke, Send, Settled, Verify
from moonpool.transfer.handoff.decode_machine import DecodeMachine
from moonpool.transfer.handoff.layout import sources_of
from moonpool.transfer.handoff.link import SideLink
from moonpool.transfer.handoff.mapping import BlockMap, Ids
from moonpool.transfer.handoff.memory import KVMemory
from moonpool.transfer.handoff.node import HandoffNode
from moonpool.transfer.handoff.prefill import check_hello
from moonpool.transfer.handoff.remote import Asked, Remote, Session, Waiting

REMOTES_MAX = 1024


class DecodeNode(HandoffNode[Settled]):
    """One decode rank. Blocks given to announce() belong to the transfer until take() yields its
    Settled: that comes for every transfer, within a lease and a fence of any failure."""

    def __init__(
        self,
        name: str,
        memory: KVMemory,
        config: HandoffConfig | None = None,
        notify: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name, memory, config, notify)
        self.machine = DecodeMachine(memory.layout.layers, self.times)
        self.data = self.engine.listen(self.config.host)
        self.connect_s = max(self.times.lease_s, 1.0)
        self._remotes: dict[str, Remote] = {}
        self._sessions: dict[int, Session] = {}
        self._next_session = 1
        self._asked: dict[str, Asked] = {}
        self._progress: dict[str, dict[int, int]] = {}

    # ---- the engine's side, any thread ----

    def claim(self, transfer: str, remote: str, engine: str | None = None) -> None:
        """Has the prefill worker at `remote` hold this transfer until blocks are announced.
        `engine`: the name it must have. Raises BadInput for an address that is none."""
        parse_address(remote)
        self.post(
            lambda: self._with(
                remote,
                Waiting(
                    transfer,
                    engine,
                    lambda sessions: self.machine.claim(transfer, sessions, self.now_s()),
                ),
            )
        )

    def announce(
        self,
        transfer: str,
        remote: str,
        first_token: int,
        tokens: int,
        blocks: Ids,
        engine: str | None = None,
        prompt: str = "",
    ) -> None:
        """Lends blocks to the transfer: `blocks` take tokens `first_token` (a multiple of a block)
        up to `tokens`, the whole prompt's, of which `prompt` is a digest. Raises BadInput for an
        address that is none."""
        parse_address(remote)
        ids = np.array(blocks, dtype=np.int64)
        told = ids.astype("<i4").tobytes()

        def step() -> None:
            self._asked.setdefault(transfer, Asked(first_token, tokens, ids))
            self._with(
                remote,
                Waiting(
                    transfer,
                    engine,
                    lambda sessions: self.machine.announce(
                        transfer, sessions, first_token, tokens, told, self.now_s(), prompt
                    ),
                ),
            )

        self.post(step)

    def cancel(
        self,
        transfer: str,
        code: str = "cancelled",
        text: str = "aborted",
        remote: str | None = None,
    ) -> None:
        """Not wanted any more; Settled follows for a transfer that is not over. With `remote` the
        prefill worker there is told also of one that was neither claimed nor announced."""

        def step() -> None:
            waits = False
            for other in self._remotes.values():
                mine = [one for one in other.waiting if one.transfer == transfer]
                if mine:
                    waits = True
                    left = [one for one in other.waiting if one not in mine]
                    other.waiting = [*left, self._rejection(transfer)]
                    self._settle(Settled(transfer, False, code, text))
            if transfer in self.machine.imports:
                self._act(self.machine.cancel(transfer, code, text, self.now_s()))
            elif remote is not None and not waits:
                self._with(remote, self._rejection(transfer))

        self.post(step)

    @staticmethod
    def _rejection(transfer: str) -> Waiting:
        """Tells a worker, once it is reached, that it need not hold the transfer."""
        return Waiting(
            None,
            None,
            lambda sessions: [Send(number, m.Cancel(transfer)) for number in sessions],
        )

    def progress(self, transfer: str) -> dict[int, int]:
        """Tokens in place by layer, as far as told; empty for a transfer that is over."""
        return dict(self._progress.get(transfer, {}))

    # ---- prefill workers ----

    def _with(self, address: str, wish: Waiting) -> None:
        """Carries out `wish` once every rank needed at `address` is reached."""
        remote = self._remotes.get(address)
        if remote is None:
            if len(self._remotes) >= REMOTES_MAX:
                self._prune()
            remote = self._remotes[address] = Remote(address)
        if remote.ready:
            self._grant_wish(remote, wish)
            return
        remote.waiting.append(wish)
        if remote.task is None:
            remote.task = self.loop.create_task(self._reach(remote))

    def _grant_wish(self, remote: Remote, wish: Waiting) -> None:
        if wish.transfer is not None and wish.engine not in (None, remote.engine):
            text = f"{remote.address} is engine {remote.engine!r} now, not {wish.engine!r}"
            self._settle(Settled(wish.transfer, False, PeerRestarted.code, text))
            return
        numbers = tuple(session.number for session in remote.ranks.values())
        self._act(wish.step(numbers))

    async def _reach(self, remote: Remote) -> None:
        try:
            async with asyncio.timeout(self.connect_s):
                await self._reach_all(remote)
            error: MoonpoolError | None = None
        except TimeoutError:
            error = DeadlineExceeded(f"no answer from {remote.address} in {self.connect_s:g} s")
        except MoonpoolError as failed:
            error = failed
        except OSError as failed:
            error = Unreachable(f"no prefill worker at {remote.address}: {failed}")
        remote.task = None
        waiting, remote.waiting = remote.waiting, []
        if error is None:
            remote.ready = True
        else:
            self.count("unreachable")
            for session in list(remote.ranks.values()):
                self._close(session, error.code, str(error))
        for wish in waiting:
            if error is None:
                self._grant_wish(remote, wish)
            elif wish.transfer is not None:
                self._settle(Settled(wish.transfer, False, error.code, str(error)))

    async def _reach_all(self, remote: Remote) -> None:
        layout = remote.layout
        if layout is None:
            first = await self._open(remote, 0)
            layout, remote.engine = first.layout, first.engine
        needed = sources_of(layout, self.memory.layout)
        for rank, session in list(remote.ranks.items()):
            if rank not in needed:
                self._close(session, "cancelled", "not needed")
        for rank in needed:
            if rank not in remote.ranks:
                remote.engine = (await self._open(remote, rank)).engine
        remote.layout = layout

    async def _open(self, remote: Remote, rank: int) -> m.Hello:
        """A session with one rank, up. Raises MoonpoolError, OSError."""
        number = self._next_session
        self._next_session += 1
        grant = self.memory.grant(self.engine, f"kv.{number}")
        session = Session(number, remote, rank, grant)
        self._sessions[number] = session
        self.machine.session_new(number)
        remote.ranks[rank] = session
        try:
            hello = await self._greet(session)
            check_hello(hello, self.config)
            if hello.layout.tp_rank != rank:
                raise Unreachable(f"rank {hello.layout.tp_rank} answers in place of rank {rank}")
        except BaseException as error:
            code = error.code if isinstance(error, MoonpoolError) else "unreachable"
            self._close(session, code, str(error))
            raise
        session.up, session.layout = True, hello.layout
        self.count("sessions")
        self._act(self.machine.session_up(number, self.now_s()))
        return hello

    async def _greet(self, session: Session) -> m.Hello:
        host, port, _ = parse_address(session.remote.address)

        def made() -> SideLink:
            session.link = SideLink.client(
                self.config.token,
                self.name,
                lambda _, message: self._message(session, message),
                lambda _, reason: self._close(session, "unreachable", reason),
            )
            return session.link

        _, link = await self.loop.create_connection(made, host, port + session.rank)
        await link.ready
        link.send(
            self.hello(
                data=self.data,
                data_epoch=self.engine.epoch,
                blocks=self.memory.blocks,
                layers=session.grant.layers,
            )
        )
        return await session.hello

    def _message(self, session: Session, message: m.Message) -> None:
        if not session.hello.done():
            if isinstance(message, m.Refuse):
                session.hello.set_exception(error_from_code(message.code, message.text))
            elif isinstance(message, m.Hello):
                session.hello.set_result(message)
            else:
                raise BadFrame(f"side channel: {type(message).__name__} before the hello")
            return
        if not isinstance(message, m.ToDecode):
            raise BadFrame(f"side channel: {type(message).__name__} out of turn")
        self._act(self.machine.handle(session.number, message, self.now_s()))

    def _close(self, session: Session, code: str, text: str) -> None:
        """Withdraws the memory first: after that the peer may do what it likes."""
        if self._sessions.pop(session.number, None) is None:
            return
        session.grant.withdraw()
        if session.up:
            self.count("withdrawn")
        remote = session.remote
        if remote.ranks.get(session.rank) is session:
            del remote.ranks[session.rank]
            remote.ready = False
            if not remote.ranks:
                remote.layout = None  # who comes next at this address may be another
        if not session.hello.done():
            session.hello.set_exception(Unreachable(text))
            session.hello.exception()  # it may be that nobody waits
        if session.link is not None:
            session.link.abort(text)
        self._act(self.machine.session_gone(session.number, code, text, self.now_s()))

    def _prune(self) -> None:
        idle = [name for name, one in self._remotes.items() if not one.ranks and not one.waiting]
        for name in idle:
            del self._remotes[name]

    # ---- what the machine wants ----

    def _act(self, actions: list[DecodeAction]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send(action)
            elif isinstance(action, Progress):
                self._progress.setdefault(action.transfer, {})[action.layer] = action.upto
            elif isinstance(action, Verify):
                self._verify(action)
            elif isinstance(action, Revoke):
                if (session := self._sessions.get(action.session)) is not None:
                    self._close(session, "unreachable", action.text)
            else:
                self._settle(action)
        self.arm()

    def _send(self, send: Send) -> None:
        session = self._sessions.get(send.session)
        if session is None or session.link is None:
            return
        try:
            session.link.send(send.message)
        except Closed:
            return  # _close() tells the machine

    def _verify(self, wish: Verify) -> None:
        session, asked = self._sessions.get(wish.session), self._asked.get(wish.transfer)
        if session is None or asked is None or session.layout is None:
            return
        mine = self.memory.layout
        plan = BlockMap(session.layout, mine, None, self.stride)
        # Only the target's side of the ranges counts here; any source blocks do.
        count = -(-asked.tokens // plan.source.block_tokens)
        source = np.zeros(count, dtype=np.int64)
        got = plan.pieces(source, asked.blocks, asked.first_token, asked.first_token, asked.tokens)
        sums = tuple(
            self.memory.crc(layer, part, got.target, got.lengths)
            for layer in range(mine.layers)
            for part in range(mine.parts)
        )
        self._act(
            self.machine.verified(wish.session, wish.transfer, sums == wish.crcs, self.now_s())
        )

    def _settle(self, settled: Settled) -> None:
        self.count("arrived" if settled.ok else "failed")
        self._asked.pop(settled.transfer, None)
        self._progress.pop(settled.transfer, None)
        self.tell(settled)

    def next_s(self) -> float:
        return self.machine.next_s()

    def tick(self) -> None:
        self._act(self.machine.tick(self.now_s()))

    async def shut(self) -> None:
        for remote in self._remotes.values():
            if remote.task is not None:
                remote.task.cancel()
        for session in list(self._sessions.values()):
            self._close(session, "closed", "this decode worker closes")
