"""A segment's way to its masters: connect, join, obey one, report to those that stand by.

One follower serves one segment's machine; memory and each tier below it have their own, so that
one that hangs keeps none of the others from being heard.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from moonpool.core.clock import Clock
from moonpool.core.errors import BadFrame
from moonpool.core.sections import NodeConfig
from moonpool.core.tls import client_context
from moonpool.pool import messages as m
from moonpool.pool.link import AsyncLink
from moonpool.pool.node_directory import MasterDirectory
from moonpool.pool.node_machine import NodeMachine
from moonpool.pool.node_masters import NodeMasters, Tell

log = logging.getLogger("moonpool.node")

TICK_MIN_S = 0.005
SILENCE_S = 10.0  # a master that says nothing for so long is gone, whatever its connection says
INBOX_MAX = 65_536  # orders not yet obeyed; beyond it the node rejoins


class Follower:
    """`copying(link, order)` begins a copy that the master ordered; `heard(message)` is told of
    everything a master says."""

    def __init__(
        self,
        config: NodeConfig,
        name: str,
        machine: NodeMachine,
        clock: Clock,
        copying: Callable[[AsyncLink, m.Copy], None],
        heard: Callable[[m.Message], None] = lambda message: None,
    ) -> None:
        self.machine = machine
        self.masters = NodeMasters(machine)
        self._config = config
        self._tls = client_context(config)
        self._name = name
        self._clock = clock
        self._copying = copying
        self._heard = heard
        self._links: dict[int, AsyncLink] = {}
        self._due: dict[int, asyncio.Event] = {}  # links that have pieces of the inventory to tell
        self._next_link = 1
        self._stop = asyncio.Event()
        self._ready: Callable[[], None] | None = None

    def stop(self) -> None:
        self._stop.set()

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Until `stop`. `ready` is called once: adopted, and what is put here can be read."""
        self._ready = ready
        ticker = asyncio.get_running_loop().create_task(self._tick_forever())
        ticker.add_done_callback(lambda _: self.stop())  # without it nobody would hear of us
        directory = MasterDirectory(self._config.master)
        try:
            await directory.run(self._stop, self._serve_master)
        finally:
            ticker.cancel()
            directory.close()
        with suppress(asyncio.CancelledError):
            await ticker

    async def _serve_master(self, address: str) -> None:
        """One connection's life: join, then obey (or report to) it until it breaks."""
        inbox: asyncio.Queue[m.Message] = asyncio.Queue(maxsize=INBOX_MAX)

        def take(message: m.Message) -> None:
            if inbox.full():
                raise BadFrame(f"the master sends faster than this node obeys ({INBOX_MAX} wait)")
            inbox.put_nowait(message)

        link = await AsyncLink.connect(
            *(address, self._config.token, self._name, "node", take),
            tls=self._tls,
            host=self._config.host_id,
        )
        number, self._next_link = self._next_link, self._next_link + 1
        self._links[number], self._due[number] = link, asyncio.Event()
        self._tell(self.masters.connected(number, self._clock.monotonic(), link.version))
        stopped = asyncio.ensure_future(self._stop.wait())
        reporting = asyncio.ensure_future(self._report_inventory(number, link))
        try:
            while not link.closed and not self._stop.is_set():
                got = asyncio.ensure_future(inbox.get())
                waited: set[asyncio.Future[Any]] = {got, link.lost, stopped, reporting}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if reporting.done():
                    reporting.result()  # what went wrong there ends this connection
                if not got.done():
                    got.cancel()
                    continue
                self._obey(number, link, got.result())
                self._tick()
        finally:
            stopped.cancel()
            reporting.cancel()
            link.close()
            del self._links[number], self._due[number]
            self.masters.disconnected(number)

    def _tell(self, tells: list[Tell]) -> None:
        for number, message in tells:
            link = self._links.get(number)
            if link is not None and not link.closed:
                link.tell(message)

    def leaving(self, what: str) -> bool:
        """Whether there is a master that is obeyed, and is told."""
        link = self._links.get(self.masters.obeyed or 0)
        if link is None or link.closed or not self.machine.adopted:
            return False
        self._tell(self.masters.leaving(what))
        return True

    def _obey(self, number: int, link: AsyncLink, message: m.Message) -> None:
        self._heard(message)
        now, boottime_ns = self._clock.monotonic(), self._clock.boottime_ns()
        self._tell(self.masters.handle(number, message, now, boottime_ns))
        while self.machine.copies:
            self._copying(link, self.machine.copies.popleft())
        if self.machine.refusal:
            log.error("the master refused this node: %s", self.machine.refusal)
            self.machine.refusal = ""

    async def _report_inventory(self, number: int, link: AsyncLink) -> None:
        """Whenever it is due, and as fast as the master takes it; orders are obeyed meanwhile."""
        due = self._due[number]
        while not link.closed:
            await due.wait()
            due.clear()
            told = False
            while not link.closed and self.masters.pending(number):
                self._tell([self.masters.chunk(number)])
                told = True
                await asyncio.sleep(0)
                await link.writable()
            if self._ready is not None and self._readable():
                self._ready()
                self._ready = None
            if told:
                self._tick()

    def _readable(self) -> bool:
        return self.machine.readable(self._clock.boottime_ns())

    def _tick(self) -> None:
        now = self._clock.monotonic()
        obeyed = self._links.get(self.masters.obeyed or 0)
        silent = now - self.machine.heard_at > SILENCE_S
        if obeyed is not None and silent and not obeyed.closed:
            master = self._config.master
            log.warning("master %s: silent for %g s; joining anew", master, SILENCE_S)
            obeyed.abort()  # it may not read either: close() would wait for that
        # Those that stand by are told all the same: what a tick says of changes, it says once.
        self._tell(self.masters.tick(now, self._clock.boottime_ns()))
        for number, due in self._due.items():
            ready = self._ready is not None and self._readable()
            if ready or self.masters.pending(number):
                due.set()

    async def _tick_forever(self) -> None:
        while True:
            self._tick()
            due = self.masters.next_deadline() - self._clock.monotonic()
            await asyncio.sleep(max(TICK_MIN_S, due))
