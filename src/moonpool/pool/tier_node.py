"""A node's shell for one tier below memory: a segment of its own, in a thread of its own.

It joins the master as the memory segment does, fetches what it is ordered to keep, and serves
reads. A medium that hangs takes this thread's segment out of the pool, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Any

import numpy as np

from moonpool._core import crc32c
from moonpool.core.clock import Clock
from moonpool.core.host import host_id
from moonpool.core.sections import NodeConfig
from moonpool.core.tenants import load_tenants
from moonpool.core.tls import client_context, server_context
from moonpool.pool import messages as m
from moonpool.pool.columns import u8, u32, u64, unpack_keys
from moonpool.pool.link import AsyncLink
from moonpool.pool.node_copies import fetch
from moonpool.pool.node_link import Follower
from moonpool.pool.node_machine import NodeMachine
from moonpool.pool.openers import PortOpener
from moonpool.pool.tier_server import TierServer
from moonpool.pool.tiers.agent import TierAgent
from moonpool.pool.tiers.base import Buffer, Entry, Finished, Status, TierOp, Write
from moonpool.pool.tiers.threaded import ThreadedTier

log = logging.getLogger("moonpool.tier")

JOIN_S = 60.0
STOP_S = 10.0


class TierNode:
    """Serves `agent`'s store between `start` and `stop`; both are called from another thread."""

    def __init__(self, config: NodeConfig, name: str, agent: TierAgent, clock: Clock) -> None:
        self.agent = agent
        self.tcp = ""
        self._config = config
        self._name = name
        self._clock = clock
        self._opener = PortOpener(config.token, tls=client_context(config), host=config.host_id)
        tenants = load_tenants(config.tenants, config.token)
        self._tenants = tenants.tokens if tenants is not None else {}
        self._thread = threading.Thread(target=self._run, name="moonpool-tier-node", daemon=True)
        self._serving = threading.Event()
        self._adopted = threading.Event()
        self._failed: OSError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._follower: Follower | None = None
        self._waiting: dict[int, asyncio.Future[Finished]] = {}
        self._keeping: set[asyncio.Task[None]] = set()
        self._forget_ms = 0

    def start(self) -> None:
        """Returns when it serves; it joins its master by itself. Raises OSError."""
        self._thread.start()
        self._serving.wait()
        if self._failed is not None:
            raise self._failed

    def await_adoption(self, timeout_s: float) -> bool:
        return self._adopted.wait(timeout_s)

    def stop(self) -> None:
        """The store is closed, unless its medium hangs."""
        if self._loop is not None and self._follower is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                self._loop.call_soon_threadsafe(self._follower.stop)
        self._thread.join(STOP_S)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tier = ThreadedTier(self.agent.store, wake=self._wake)
        server = TierServer(
            *(self.agent, self._submit, self._config.token, self._clock, self._tenants),
            server_context(self._config),
        )
        try:
            try:
                self.tcp = await server.start(self._config.host)
            except OSError as error:
                self._failed = error
                return
            machine = NodeMachine(self.agent, self._describe(), self._config.heartbeat_ms / 1000)
            self._follower = Follower(
                self._config, self._name, machine, self._clock, self._keep_for, self._heard
            )
            self._serving.set()
            await self._follower.run(self._adopted.set)
        finally:
            self._serving.set()
            server.stop()
            await self._end()

    async def _end(self) -> None:
        for task in [*self._keeping]:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await asyncio.to_thread(self._tier.close)
        self._opener.close()
        self.agent.close()

    def _describe(self) -> m.SegmentEndpoint:
        return m.SegmentEndpoint(
            segment=0,
            incarnation=self.agent.incarnation,
            node=self._name,
            host_id=host_id(self._config.host_id),
            tcp=self.tcp,
            trust_domain=self._config.tenant.encode(),
            capacity_bytes=self.agent.capacity_bytes,
            labels=dict(self._config.labels),
            medium=self.agent.store.medium,
        )

    def _heard(self, message: m.Message) -> None:
        if isinstance(message, m.Adopt):
            self._forget_ms = message.forget_ms
        self.agent.heard(self._clock.wall_ms(), self._forget_ms)

    # The tier's threads.

    def _submit(self, op: TierOp) -> asyncio.Future[Finished] | None:
        assert self._loop is not None
        ticket = self._tier.submit(op)
        if ticket is None:
            return None
        future: asyncio.Future[Finished] = self._loop.create_future()
        self._waiting[ticket] = future
        return future

    def _wake(self) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._poll)

    def _poll(self) -> None:
        for finished in self._tier.poll():
            future = self._waiting.pop(finished.ticket, None)
            if future is not None and not future.done():
                future.set_result(finished)

    # Orders.

    def _keep_for(self, link: AsyncLink, order: m.Copy) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._keep(link, order))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def _keep(self, link: AsyncLink, order: m.Copy) -> None:
        data = await asyncio.to_thread(fetch, order, self._opener.open)
        kept = []
        for entry, one in entries_of(order, data):
            kept.append(await self._store(entry, one, order))
        if not link.closed:
            link.tell(
                m.Copied(
                    order.id,
                    order.segment,
                    bytes(status for status, _, _ in kept),
                    np.array([slot for _, slot, _ in kept], np.uint32).tobytes(),
                    np.array([generation for _, _, generation in kept], np.uint64).tobytes(),
                )
            )

    async def _store(
        self, entry: Entry, data: Buffer | None, order: m.Copy
    ) -> tuple[Status, int, int]:
        if data is None:
            return Status.UNREACHABLE, 0, 0
        claimed = self.agent.claim(entry, order.term, self._clock.wall_ms())
        if isinstance(claimed, Status):
            return claimed, 0, 0
        future = self._submit(Write(claimed, data))
        if future is None:
            self.agent.abort(claimed)
            return Status.BUSY, 0, 0
        finished = await asyncio.shield(future)
        if finished.status is not Status.OK:
            self.agent.abort(claimed)
            return finished.status, 0, 0
        return self.agent.seal(claimed, order.term), claimed.slot, claimed.generation


def entries_of(order: m.Copy, data: list[Any]) -> list[tuple[Entry, Buffer | None]]:
    """What is to be stored; no data where it did not come, or is not what the master knows."""
    columns = zip(
        unpack_keys(order.keys),
        unpack_keys(order.parents),
        u64(order.version_term).tolist(),
        u64(order.version_sequence).tolist(),
        u64(order.size).tolist(),
        u32(order.crc).tolist(),
        u32(order.tenant).tolist(),
        np.frombuffer(order.expiry_ms, np.int64).tolist(),
        u8(order.replicas).tolist(),
        u8(order.pin).tolist(),
        strict=True,
    )
    entries = [Entry(0, 0, *column) for column in columns]
    return [
        (entry, one if one is not None and crc32c(one) == entry.crc else None)
        for entry, one in zip(entries, data, strict=True)
    ]
