"""The asyncio shell: the same protocols as the blocking one, driven by an event loop.

Requests to the master share one connection. Copies run in a small thread pool: they release the
GIL, so the loop goes on meanwhile. What waits for an agent has a larger one, so that a node that is
silent does not keep others' threads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from moonpool.core.clock import Deadline, SystemClock
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
from moonpool.pool.link import CONNECT_S, AsyncLink
from moonpool.pool.openers import PortOpener
from moonpool.pool.ports import (
    AgentCall,
    GatherCall,
    Outcome,
    Port,
    ReadCall,
    ReadRangeCall,
    WriteRangeCall,
)
from moonpool.pool.protocol import CallAgents, CallMaster, Context, MasterLost, Pause, RaceAgents
from moonpool.pool.protocol import Protocol as Dialogue
from moonpool.pool.protocol_reserve import abort_granted
from moonpool.pool.read_race import ReadRace, run_race
from moonpool.pool.shell import AGAIN_S, run_agents

T = TypeVar("T")
COPY_THREADS = 4
WAIT_THREADS = 64  # started as they are needed
_COPIES = (ReadCall, ReadRangeCall, WriteRangeCall, GatherCall)  # where memory is mapped
GIVE_BACK_S = 2.0  # how long a cancelled put tries to tell the master


class AsyncShell:
    """Drives protocols on the running event loop."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.clock = SystemClock()
        self._tls = client_context(config)
        self.opener = PortOpener(config.token, config.shared_memory, self._tls, config.host_id)
        self.leader = LeaderFinder(config.master, self._led_by)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.state = ClientState(
            host_id(config.host_id),
            self.opener.open,
            cache_entries_max=config.cache_entries_max,
            hedge_ms=config.hedge_ms,
            labels=config.labels,
        )
        self._copies = ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="moonpool-copy")
        self._waits = ThreadPoolExecutor(WAIT_THREADS, thread_name_prefix="moonpool-wait")
        self._link: AsyncLink | None = None
        self._linking = asyncio.Lock()
        self._beside: set[asyncio.Task[None]] = set()
        self._closed = False
        self.agents: Callable[[CallAgents], list[Outcome]] = run_agents
        self.race: Callable[[ReadRace, Callable[[], float]], None] = run_race

    def now(self) -> float:
        return self.clock.monotonic()

    async def connect(self, timeout_s: float) -> AsyncLink:
        """The link to the master, opened (again) when there is none."""
        deadline = Deadline(self.now() + timeout_s)
        async with self._linking:
            if self._link is None or self._link.closed:
                address = await self._address(deadline)
                if not self.leader.fixed:
                    # One that has stopped takes connections and says nothing: ask who leads now.
                    left = deadline.check(self.now(), f"connect to {address}")
                    timeout_s = min(CONNECT_S, left)
                try:
                    self._link = await AsyncLink.connect(
                        address,
                        self.config.token,
                        f"client-{os.getpid()}",
                        timeout_s=timeout_s,
                        tls=self._tls,
                        host=self.config.host_id,
                    )
                except TransferError:
                    self.leader.wrong(address)
                    raise
            return self._link

    async def reach(self, timeout_s: float) -> None:
        """The first connection: a wrong address or token is said at once; between two leaders there
        is nobody for a moment."""
        deadline = self.now() + timeout_s
        while True:
            try:
                await self.connect(max(0.001, deadline - self.now()))
                return
            except (Unreachable, DeadlineExceeded):
                if self.leader.fixed or deadline - self.now() <= AGAIN_S:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _address(self, deadline: Deadline) -> str:
        if self.leader.fixed:
            return self.leader.address()
        self._loop = asyncio.get_running_loop()
        return await asyncio.to_thread(self.leader.address, deadline)

    def _led_by(self, address: str) -> None:
        """In the finder's thread. Nobody waits for an answer of the last leader."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            with suppress(RuntimeError):  # it closed meanwhile
                loop.call_soon_threadsafe(self._leave, address)

    def _leave(self, address: str) -> None:
        if self._link is not None and self._link.address != address:
            self._link.abort()
            self._link = None

    async def run(self, build: Callable[[Context], Dialogue[T]], timeout_s: float) -> T:
        if self._closed:
            raise Closed("this pool was closed; connect again")
        deadline = self.now() + timeout_s
        context = Context(self.state, self.now, deadline)
        dialogue = build(context)
        try:
            effect = next(dialogue)
            while True:
                effect = dialogue.send(await self._perform(effect, deadline))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            if context.reserved is not None:
                self.beside(self._give_back(context.reserved))
            raise

    async def copy(self, act: Callable[..., T], *args: Any, waits: bool = False) -> T:
        """Run what moves bytes in a thread; `waits`: it waits for somebody else's answer, too.
        Cancelled, it ends before the caller's call does: the caller's memory is quiet then."""
        threads = self._waits if waits else self._copies
        copying = asyncio.get_running_loop().run_in_executor(threads, act, *args)
        try:
            return await asyncio.shield(copying)
        except asyncio.CancelledError:
            while not copying.done():  # cancelled again meanwhile: it still must end
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([copying])
            raise

    def beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run what nobody waits for; `close` does."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task

    async def close(self) -> None:
        while self._beside:
            await asyncio.wait(self._beside)
        self._closed = True
        self.leader.close()
        if self._link is not None:
            self._link.close()
        self._copies.shutdown(wait=True)
        self._waits.shutdown(wait=True)
        self.state.close()
        self.opener.close()

    async def _perform(self, effect: Any, deadline: float) -> Any:
        match effect:
            case CallMaster():
                if effect.meanwhile is not None:
                    effect.meanwhile()
                return await self._ask(effect.message, deadline)
            case CallAgents():
                due = self.now() + effect.timeout_s
                waits = any(_waits(port, call) for port, call in effect.calls)
                return await self.copy(self._call_agents, effect, due, waits=waits)
            case RaceAgents():
                await self.copy(self.race, effect.race, self.now, waits=True)
            case Pause():
                await asyncio.sleep(effect.seconds)
        return None

    def _call_agents(self, effect: CallAgents, due: float) -> list[Outcome]:
        """In a thread that may have come late: there is that much less time then."""
        left = max(0.001, due - self.now())
        return self.agents(CallAgents(effect.calls, left))

    async def _reserve(self, link: AsyncLink, message: m.Reserve, left: float) -> m.Message:
        """Cancelled, it still learns what was granted, and gives it back."""
        asking = asyncio.ensure_future(link.request(message, left))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            self.beside(self._give_back_answer(asking))
            raise

    async def _give_back_answer(self, asking: asyncio.Future[m.Message]) -> None:
        with suppress(TransferError):
            reply = await asking
            if isinstance(reply, m.Reserved):
                await self._give_back(reply)

    async def _give_back(self, reserved: m.Reserved) -> None:
        """The keys of a cancelled put are not in flight any more. What was committed stays, and
        what the master cannot be told it finds out after `reservation_ms`."""
        with suppress(TransferError):
            link = await self.connect(GIVE_BACK_S)
            await link.request(abort_granted(reserved), GIVE_BACK_S)

    async def _ask(self, message: m.ClientRequest, deadline: float) -> m.Message | MasterLost:
        left = max(0.001, deadline - self.now())
        link: AsyncLink | None = None
        try:
            link = await self.connect(left)
            if isinstance(message, m.Reserve):
                reply = await self._reserve(link, message, left)
            else:
                reply = await link.request(message, left)
        except (Refused, ProtocolMismatch) as error:
            return MasterLost(str(error), refused=True, code=error.code)
        except TransferError as error:
            self.leader.wrong(link.address if link is not None else "")
            return MasterLost(str(error), code=error.code)
        if isinstance(reply, m.Failure) and reply.code == NotLeader.code:
            self.leader.wrong(link.address)
            link.close()
            self._link = None
            return MasterLost(reply.text, code=reply.code)
        if isinstance(reply, m.Failure):
            return MasterLost(reply.text, refused=True, code=reply.code)
        return reply


def _waits(port: Port, call: AgentCall) -> bool:
    """Whether an agent, or a tier, is asked."""
    return not (port.local and isinstance(call, _COPIES))
