"""A node's shell: owns one segment, serves it through the native endpoint, obeys one master."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from moonpool.core.address import cannot_listen
from moonpool.core.clock import Clock, SystemClock
from moonpool.core.errors import (
    BadConfig,
    SegmentDamaged,
    SegmentError,
    SegmentLocked,
    SegmentSpace,
)
from moonpool.core.host import host_id
from moonpool.core.sections import NodeConfig
from moonpool.core.tenants import load_tenants
from moonpool.core.tls import client_context, server_context
from moonpool.core.units import format_bytes
from moonpool.pool import messages as m
from moonpool.pool.link import AsyncLink
from moonpool.pool.node_copies import fetch, keep
from moonpool.pool.node_link import Follower
from moonpool.pool.node_machine import NodeMachine
from moonpool.pool.openers import PortOpener
from moonpool.pool.tier_node import TierNode
from moonpool.pool.tier_open import open_tiers
from moonpool.transfer.room import require_room
from moonpool.transfer.tunnels import Tunnels

if TYPE_CHECKING:
    from moonpool._core import SegmentAgent

log = logging.getLogger("moonpool.node")

SLOT_DATA_BYTES = 8192  # one slot for so many bytes of data, unless `slots` says otherwise
SHARED_MEMORY = "/dev/shm"
SOCKET_SUFFIX, SOCKET_PATH_MAX = ".sock", 107
SLOTS_MIN = 1024
HEADROOM_MIN = 16 << 20
NAMES_MAX = 256
TIER_JOIN_S = 2.0  # how long memory waits for a tier that does not join


def headroom_bytes(config: NodeConfig) -> int:
    """Memory on top of the capacity: what is in flight, retired or pinned lives there."""
    if config.headroom != "auto":
        return config.headroom
    return max(HEADROOM_MIN, config.memory // 8)


def slot_count(config: NodeConfig) -> int:
    return config.slots or min(m.SLOTS_MAX, max(SLOTS_MIN, config.memory // SLOT_DATA_BYTES))


def open_segment(config: NodeConfig) -> tuple[SegmentAgent, str]:
    """Adopt the segment file of this node's last life, or format a new one; with its name.

    Raises SegmentLocked (a living node owns it), SegmentError, BadConfig (the folder is no good, or
    the file has another capacity than asked for).
    """
    directory = config.directory
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadConfig(f"node.dir = {directory} cannot be made: {error.strerror}") from None
    if config.name:
        return _open_named(config, config.name), config.name
    base = socket.gethostname()
    for number in range(NAMES_MAX):
        name = f"{base}-{number}"
        try:
            return _open_named(config, name), name
        except SegmentLocked:
            continue
    raise SegmentError(f"{NAMES_MAX} nodes already run in {directory}; give this one a --name")


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


@contextlib.contextmanager
def segment_errors(where: object) -> Iterator[None]:
    """Native errors as those of our tree."""
    from moonpool import _core

    try:
        yield
    except _core.SegmentLocked as error:
        raise SegmentLocked(_naming(where, error)) from None
    except _core.SegmentFormat as error:
        raise SegmentDamaged(f"{_naming(where, error)}; remove it to start empty") from None
    except _core.SegmentSpace as error:
        raise SegmentSpace(f"{_naming(where, error)}; ask for less --memory or free some") from None
    except _core.SegmentError as error:
        raise SegmentError(_naming(where, error)) from None
    except (OSError, ValueError) as error:
        raise BadConfig(_naming(where, error)) from None


def _naming(where: object, error: Exception) -> str:
    """The error's text with the segment's name, which most have already."""
    text = str(error)
    return text if str(where) in text else f"{where}: {text}"


def _open_named(config: NodeConfig, name: str) -> SegmentAgent:
    from moonpool import _core

    path = config.directory / f"{name}.seg"
    socket_path = config.directory / f"{name}{SOCKET_SUFFIX}"  # names may have dots
    if len(os.fsencode(socket_path)) > SOCKET_PATH_MAX:
        raise BadConfig(f"{socket_path} is too long for a socket; shorten --dir")
    with segment_errors(path):
        if not path.exists():
            if path.is_relative_to(SHARED_MEMORY):
                require_room(config.memory + headroom_bytes(config))
            return _core.SegmentAgent.create(
                str(path), config.memory, headroom_bytes(config), slot_count(config), config.rows
            )
        agent = _core.SegmentAgent.adopt(str(path))
    if agent.capacity_bytes != config.memory:
        held = agent.capacity_bytes
        agent.close()
        raise BadConfig(
            f"{path} holds a segment of {format_bytes(held)}, asked for "
            f"{format_bytes(config.memory)}; ask for the same, or remove the file to start empty"
        )
    return agent


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
        self.machine = NodeMachine(self.agent, self._describe(), config.heartbeat_ms / 1000)
        self._follower = Follower(config, self.name, self.machine, self.clock, self._fetching)
        self.tiers = self._open_tiers()
        self._opener = PortOpener(config.token, tls=self._tls)
        self._fetches: set[asyncio.Task[None]] = set()

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

    def _describe(self) -> m.SegmentEndpoint:
        return m.SegmentEndpoint(
            segment=0,
            incarnation=self.agent.incarnation,
            node=self.name,
            host_id=host_id(),
            tcp=self.tcp,
            unix=str(self._socket),
            path=str(self.config.directory / f"{self.name}.seg"),
            uid=os.getuid(),
            trust_domain=self.config.tenant.encode(),
            capacity_bytes=self.agent.capacity_bytes,
            labels=dict(self.config.labels),
        )

    def stop(self) -> None:
        self._follower.stop()

    async def run(self, ready: Callable[[NodeServer], None] | None = None) -> None:
        """Serve until `stop`. `ready` is called once, at the first adoption."""
        try:
            await asyncio.to_thread(self._start_tiers)
            await self._follower.run(None if ready is None else lambda: ready(self))
        finally:
            for task in [*self._fetches]:
                task.cancel()
            await asyncio.gather(*self._fetches, return_exceptions=True)
            for tier in self.tiers:
                await asyncio.to_thread(tier.stop)
            self._opener.close()
            self._end_endpoint()
            if self.config.persist:
                self.agent.close()
            else:
                self.agent.destroy()
            with contextlib.suppress(FileNotFoundError):
                self._socket.unlink()

    def _fetching(self, link: AsyncLink, order: m.Copy) -> None:
        task = asyncio.get_running_loop().create_task(self._fetch(link, order))
        self._fetches.add(task)
        task.add_done_callback(self._fetches.discard)

    async def _fetch(self, link: AsyncLink, order: m.Copy) -> None:
        """Bytes in a thread; claim and seal here, where the agent's other orders are obeyed."""
        data = await asyncio.to_thread(fetch, order, self._opener.open)
        if not link.closed:
            link.tell(keep(self.agent, order, data))


async def serve(config: NodeConfig, ready: Callable[[NodeServer], None]) -> None:
    """Run until SIGTERM or SIGINT."""
    node = NodeServer(config)
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
