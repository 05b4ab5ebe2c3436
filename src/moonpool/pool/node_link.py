"""A node's way to its master: connect, join, obey, report, and again when the connection breaks.

One follower serves one segment's machine; memory and each tier below it have their own, so that
one that hangs keeps none of the others from being heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from moonpool.core.clock import Clock
from moonpool.core.errors import BadFrame, MoonpoolError
from moonpool.pool import messages as m
from moonpool.pool.link import AsyncLink
from moonpool.pool.node_machine import NodeMachine

log = logging.getLogger("moonpool.node")

RECONNECT_S = (0.05, 1.0)  # first and longest pause between attempts
TICK_MIN_S = 0.005
SILENCE_S = 10.0  # a master that says nothing for so long is gone, whatever its connection says
INBOX_MAX = 65_536  # orders not yet obeyed; beyond it the node rejoins


class Follower:
    """`copying(link, order)` begins a copy that the master ordered; `heard(message)` is told of
    everything the master says."""

    def __init__(
        self,
        connect: Callable[[Callable[[m.Message], None]], Any],
        master: str,
        machine: NodeMachine,
        clock: Clock,
        copying: Callable[[AsyncLink, m.Copy], None],
        heard: Callable[[m.Message], None] = lambda message: None,
    ) -> None:
        self._connect = connect
        self._master = master
        self.machine = machine
        self._clock = clock
        self._copying = copying
        self._heard = heard
        self._link: AsyncLink | None = None
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self, adopted: Callable[[], None] | None = None) -> None:
        """Until `stop`. `adopted` is called once, at the first adoption."""
        ticker = asyncio.get_running_loop().create_task(self._tick_forever())
        pause = RECONNECT_S[0]
        try:
            while not self._stop.is_set():
                try:
                    await self._follow(adopted)
                    pause = RECONNECT_S[0]
                except MoonpoolError as error:
                    log.info("master %s: %s", self._master, error)
                if self.machine.adopted:
                    adopted = None
                self.machine.disconnected()
                self._link = None
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), pause)
                pause = min(pause * 2, RECONNECT_S[1])
        finally:
            ticker.cancel()

    async def _follow(self, adopted: Callable[[], None] | None) -> None:
        """One connection's life: join, then obey until it breaks."""
        inbox: asyncio.Queue[m.Message] = asyncio.Queue(maxsize=INBOX_MAX)

        def take(message: m.Message) -> None:
            if inbox.full():
                raise BadFrame(f"the master sends faster than this node obeys ({INBOX_MAX} wait)")
            inbox.put_nowait(message)

        link = await self._connect(take)
        self._link = link
        for message in self.machine.connected(self._clock.monotonic()):
            link.tell(message)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            while not link.closed and not self._stop.is_set():
                got = asyncio.ensure_future(inbox.get())
                waited: set[asyncio.Future[Any]] = {got, link.lost, stopped}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if not got.done():
                    got.cancel()
                    continue
                self._obey(link, got.result())
                await self._report_inventory(link)
                if adopted is not None and self.machine.adopted:
                    adopted()
                    adopted = None
        finally:
            stopped.cancel()
            link.close()

    def _obey(self, link: AsyncLink, message: m.Message) -> None:
        self._heard(message)
        replies = self.machine.handle(
            message,  # type: ignore[arg-type]  # the machine ignores what is not for it
            self._clock.monotonic(),
            self._clock.boottime_ns(),
        )
        for reply in replies:
            link.tell(reply)
        while self.machine.copies:
            self._copying(link, self.machine.copies.popleft())
        if self.machine.refusal:
            log.error("the master refused this node: %s", self.machine.refusal)
            self.machine.refusal = ""

    async def _report_inventory(self, link: AsyncLink) -> None:
        while self.machine.inventory_pending() and not link.closed:
            link.tell(self.machine.inventory_chunk())
            await asyncio.sleep(0)
        self._tick(link)

    def _tick(self, link: AsyncLink | None) -> None:
        now = self._clock.monotonic()
        messages = self.machine.tick(now, self._clock.boottime_ns())
        if link is None or link.closed:
            return
        if now - self.machine.heard_at > SILENCE_S:
            log.warning("master %s: silent for %g s; joining anew", self._master, SILENCE_S)
            link.close()
            return
        for message in messages:
            link.tell(message)

    async def _tick_forever(self) -> None:
        while True:
            self._tick(self._link)
            due = self.machine.next_deadline() - self._clock.monotonic()
            await asyncio.sleep(max(TICK_MIN_S, due))
