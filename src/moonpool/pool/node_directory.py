"""Which masters a node talks to: the one it was given, or all that etcd names; a task for each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from moonpool.core.address import is_etcd
from moonpool.core.errors import MoonpoolError
from moonpool.pool.ha_registry import Registry

log = logging.getLogger("moonpool.node")

RECONNECT_S = (0.05, 1.0)  # first and longest pause between attempts
LOOK_S = 0.5


class MasterDirectory:
    """`run` keeps a connection to each master; one that etcd no longer names is not dialled again,
    but a connection that lives is left alone, whatever etcd says or does not say."""

    def __init__(self, master: str) -> None:
        self._master = master
        self._registry = Registry(master, timeout_s=2.0, try_s=0.5) if is_etcd(master) else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="moonpool-masters")
        self._named: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self, stop: asyncio.Event, serve: Callable[[str], Awaitable[None]]) -> None:
        """Until `stop`; `serve(address)` is one connection's life."""
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                await self._look()
                for address in self._named:
                    if address not in self._tasks:
                        self._tasks[address] = asyncio.ensure_future(
                            self._keep(address, stop, serve)
                        )
                await self._wait(stopped)
        finally:
            stopped.cancel()
            for task in self._tasks.values():
                if not stop.is_set():
                    task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _wait(self, stopped: asyncio.Task[Literal[True]]) -> None:
        waited: set[asyncio.Task[Any]] = {stopped, *self._tasks.values()}
        look_s = LOOK_S if self._registry is not None else None
        await asyncio.wait(waited, timeout=look_s, return_when=asyncio.FIRST_COMPLETED)
        for address, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[address]
                task.result()  # what nobody expected ends the node

    def close(self) -> None:
        self._thread.shutdown(wait=False)
        if self._registry is not None:
            self._registry.close()

    async def _look(self) -> None:
        if self._registry is None:
            self._named = {self._master}
            return
        try:
            seen = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._registry.read
            )
        except MoonpoolError as error:
            log.info("masters: %s", error)
            return
        self._named = set(seen.masters)
        if seen.leader is not None and seen.beat_revision and not seen.beat.resigned:
            self._named.add(seen.leader.address)

    async def _keep(
        self, address: str, stop: asyncio.Event, serve: Callable[[str], Awaitable[None]]
    ) -> None:
        pause = RECONNECT_S[0]
        while not stop.is_set() and address in self._named:
            try:
                await serve(address)
                pause = RECONNECT_S[0]
            except MoonpoolError as error:
                log.info("master %s: %s", address, error)
            await _sleep(stop, pause)
            pause = min(pause * 2, RECONNECT_S[1])


async def _sleep(stop: asyncio.Event, seconds: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
