"""A node's shell: owns one segment, serves it through the native endpoint, obeys one master."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from moonpool.core.address import cannot_listen
from moonpool.core.clock import Clock, SystemClock
from moonpool.core.errors import BadConfig
from moonpool.core.host import host_id
from moonpool.core.sections import NodeConfig
from moonpool.core.tenants import load_tenants
from moonpool.core.tls import client_context, server_context
from moonpool.pool import messages as m
from moonpool.pool.link import AsyncLink
from moonpool.pool.node_control import CONTROL_SUFFIX, NodeControl
from moonpool.pool.node_copies import fetch, keep
from moonpool.pool.node_link import Follower
from moonpool.pool.node_machine import NodeMachine
from moonpool.pool.node_mounts import Mounts
from moonpool.pool.node_segments import SOCKET_SUFFIX, open_segment, segment_errors
from moonpool.pool.openers import PortOpener
from moonpool.pool.tier_node import TierNode
from moonpool.pool.tier_open import open_tiers
from moonpool.transfer.tunnels import Tunnels

if TYPE_CHECKING:
    from moonpool._core import SegmentAgent

log = logging.getLogger("moonpool.node")

TIER_JOIN_S = 2.0  # how long memory waits for a tier that does not join


def tenant_openers(config: NodeConfig) -> list[tuple[int, bytes]]:
    """Who else may use the endpoint: number and token of each tenant. Raises BadConfig."""
    tenants = load_tenants(config.tenants, config.token)
    if config.tenant and (tenants is None or tenants.named(config.tenant) is None):
        raise BadConfig(
            f"node.tenant = {config.tenant!r} is not in the tenants file "
            f"({config.tenants or 'none is given'})"
        )
    if tenants is None:
        return []
    mine = [one for one in tenants if one.token and config.tenant in ("", one.name)]
    return [(one.number, one.token.encode()) for one in mine]


class NodeServer:
    """The running node."""

    def __init__(self, config: NodeConfig, clock: Clock | None = None) -> None:
        from moonpool._core import Endpoint

        self.config = config
        self.clock = clock or SystemClock()
        openers = tenant_openers(config)
        self.agent, self.name = open_segment(config)
        self.endpoint = Endpoint(secrets.randbits(63), config.token.encode(), openers)
        self._tls = client_context(config)
        self._tunnels = Tunnels(None, serving) if (serving := server_context(config)) else None
        self._socket = config.directory / f"{self.name}{SOCKET_SUFFIX}"
        try:
            self.tcp = self._listen()
        except BaseException:
            self._end_endpoint()
            if self.agent.term == 0:  # never seen a master: nothing is in it
                self.agent.destroy()
            else:
                self.agent.close()
            raise
        self.endpoint.attach(self.agent)
        path = config.directory / f"{self.name}.seg"
        endpoint = self.describe(self.agent, path)
        self.machine = NodeMachine(self.agent, endpoint, config.heartbeat_ms / 1000)
        self._follower = self.follower(self.agent, self.machine)
        self.tiers = self._open_tiers()
        self._opener = PortOpener(config.token, tls=self._tls, host=config.host_id)
        self._fetches: set[asyncio.Task[None]] = set()
        self.mounts = Mounts(self)
        self._control = NodeControl(self.mounts, config.directory / f"{self.name}{CONTROL_SUFFIX}")

    def _listen(self) -> str:
        """The address for other hosts. Raises TransferError when the port is taken, BadConfig when
        there is no place for the socket."""
        host, port = self.config.host, self.config.port
        try:
            if self._tunnels is not None:
                port = self._tunnels.listen(host, port, self.endpoint.serve)
            else:
                port = self.endpoint.listen_tcp(host, port)
        except OSError as error:
            raise cannot_listen(host, port, error) from None
        with segment_errors(self._socket):
            with contextlib.suppress(FileNotFoundError):
                self._socket.unlink()  # ours: we hold the segment's lock
            self.endpoint.listen_unix(str(self._socket))
        return f"{host}:{port}"

    def _open_tiers(self) -> list[TierNode]:
        try:
            return open_tiers(self.config, self.name, self.clock)
        except BaseException:
            self.endpoint.close()
            self.agent.close()
            raise

    def _start_tiers(self) -> None:
        """They join first: a master that starts hears of what they hold before it lets puts in."""
        for tier in self.tiers:
            try:
                tier.start()
            except OSError as error:
                raise cannot_listen(self.config.host, 0, error) from None
        for tier in self.tiers:
            tier.await_adoption(TIER_JOIN_S)

    def _end_endpoint(self) -> None:
        if self._tunnels is not None:
            self._tunnels.close()
        self.endpoint.close()

    def follower(self, agent: SegmentAgent, machine: NodeMachine) -> Follower:
        """What makes one of this node's segments obey a master."""
        fetching = partial(self._fetching, agent)
        return Follower(self.config, self.name, machine, self.clock, fetching)

    def describe(self, agent: SegmentAgent, path: Path) -> m.SegmentEndpoint:
        return m.SegmentEndpoint(
            segment=0,
            incarnation=agent.incarnation,
            node=self.name,
            host_id=host_id(self.config.host_id),
            tcp=self.tcp,
            unix=str(self._socket),
            path=str(path),
            uid=os.getuid(),
            trust_domain=self.config.tenant.encode(),
            capacity_bytes=agent.capacity_bytes,
            labels=dict(self.config.labels),
        )

    def stop(self) -> None:
        self._follower.stop()

    async def run(self, ready: Callable[[NodeServer], None] | None = None) -> None:
        """Serve until `stop`. `ready` is called once: adopted, and what is put here can be read."""
        try:
            await asyncio.to_thread(self._start_tiers)
            await self.mounts.adopt_all()
            await self._control.start()
            await self._follower.run(None if ready is None else lambda: ready(self))
        finally:
            self._control.stop()
            await self.mounts.stop()
            for task in [*self._fetches]:
                task.cancel()
            await asyncio.gather(*self._fetches, return_exceptions=True)
            for tier in self.tiers:
                await asyncio.to_thread(tier.stop)
            self._opener.close()
            self._end_endpoint()
            self.mounts.close()
            self.give_back(self.agent)
            with contextlib.suppress(FileNotFoundError):
                self._socket.unlink()

    def give_back(self, agent: SegmentAgent) -> None:
        if self.config.persist:
            agent.close()
        else:
            agent.destroy()

    def _fetching(self, agent: SegmentAgent, link: AsyncLink, order: m.Copy) -> None:
        task = asyncio.get_running_loop().create_task(self._fetch(agent, link, order))
        self._fetches.add(task)
        task.add_done_callback(self._fetches.discard)

    async def _fetch(self, agent: SegmentAgent, link: AsyncLink, order: m.Copy) -> None:
        """Bytes in a thread; claim and seal here, where the agent's other orders are obeyed."""
        data = await asyncio.to_thread(fetch, order, self._opener.open)
        if not link.closed:
            link.tell(keep(agent, order, data))


def _server_of(config: NodeConfig) -> NodeServer:
    if not config.tracing:
        return NodeServer(config)
    from moonpool.pool.tracing_server import TracedNode

    return TracedNode(config)


async def serve(config: NodeConfig, ready: Callable[[NodeServer], None]) -> None:
    """Run until SIGTERM or SIGINT."""
    node = _server_of(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.stop)
    await node.run(ready)


def announce(node: NodeServer) -> None:
    """One JSON line on stdout: this node is adopted and ready."""
    line = {
        "ready": "node",
        "name": node.name,
        "tcp": node.tcp,
        "path": str(Path(node.machine.endpoint.path)),
        "pid": os.getpid(),
    }
    print(json.dumps(line), flush=True)


def run_node(config: NodeConfig, ready: Callable[[NodeServer], None] = announce) -> None:
    """The node process."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, ready))
