"""Which port a client gets to a segment: shared memory on the same host, TCP elsewhere, frames to
a tier below memory."""

from __future__ import annotations

import os
import secrets
import ssl
import threading
from typing import TYPE_CHECKING

from moonpool.core.errors import TransferError
from moonpool.core.host import host_id
from moonpool.pool.agent_control import ConnectionControl
from moonpool.pool.messages import MEMORY, SegmentEndpoint
from moonpool.pool.port_shm import ShmPort
from moonpool.pool.port_tcp import TcpPort
from moonpool.pool.port_tier import TierPort
from moonpool.pool.ports import Port

if TYPE_CHECKING:
    from moonpool._core import Connection, Endpoint
    from moonpool.transfer.tunnels import Tunnels

CONNECT_MS = 1000


class PortOpener:
    """Owns the process's native endpoint for outgoing connections; made on first use."""

    def __init__(
        self,
        token: str,
        shared_memory: bool = True,
        tls: ssl.SSLContext | None = None,
        host: str = "",
    ) -> None:
        """`tls`: how other hosts' endpoints are reached; None: without TLS. `host`: the one to
        count as, if not this machine."""
        self._host_id = host_id(host)
        self._token = token.encode()
        self._tls = tls
        self._tunnels: Tunnels | None = None
        if tls is not None:
            from moonpool.transfer.tunnels import Tunnels

            self._tunnels = Tunnels(tls, None)
        self._shared_memory = shared_memory
        self._endpoint: Endpoint | None = None
        self._lock = threading.Lock()

    def open(self, endpoint: SegmentEndpoint) -> Port:
        """Raises OSError when the segment cannot be reached at all."""
        if endpoint.medium != MEMORY:
            return TierPort(
                *(endpoint.tcp, self._token.decode(), endpoint.incarnation, endpoint.node),
                medium=endpoint.medium,
                tls=self._tls,
            )
        if self._shared_memory and self.can_map(endpoint):
            try:
                return self._map(endpoint)
            except OSError:
                if not endpoint.tcp:
                    raise
        return TcpPort(self._connector(endpoint.tcp), endpoint.incarnation, endpoint.node)

    def can_map(self, endpoint: SegmentEndpoint) -> bool:
        """Worth a try: same host and user, and the file is there (containers may not share it)."""
        return (
            endpoint.host_id == self._host_id
            and endpoint.uid == os.getuid()
            and bool(endpoint.path)
            and os.path.exists(endpoint.path)
        )

    def _map(self, endpoint: SegmentEndpoint) -> ShmPort:
        from moonpool import _core

        try:
            segment = _core.SegmentClient(endpoint.path)
        except _core.SegmentError as error:
            raise OSError(f"{endpoint.path} cannot be mapped: {error}") from error
        if segment.incarnation != endpoint.incarnation:
            segment.close()
            raise FileNotFoundError(f"{endpoint.path} holds another segment")
        control = ConnectionControl(self._connector(f"unix:{endpoint.unix}"), endpoint.incarnation)
        return ShmPort(segment, control, endpoint.node, "shm")

    def _connector(self, address: str) -> _Connector:
        return _Connector(self, address)

    def connect(self, address: str, timeout_s: float) -> Connection:
        with self._lock:
            if self._endpoint is None:
                from moonpool._core import Endpoint

                self._endpoint = Endpoint(secrets.randbits(63), self._token)
        timeout_ms = min(CONNECT_MS, max(1, int(timeout_s * 1000)))
        if self._tunnels is None or address.startswith("unix:"):
            return self._endpoint.connect(address, timeout_ms)
        try:
            near = self._tunnels.connect(address, timeout_ms / 1000)
        except TransferError as error:
            raise ConnectionError(str(error)) from error
        return self._endpoint.connect_over(near.detach(), f"tls:{address}", timeout_ms)

    def close(self) -> None:
        with self._lock:
            if self._endpoint is not None:
                self._endpoint.close()
                self._endpoint = None
        if self._tunnels is not None:
            self._tunnels.close()


class _Connector:
    def __init__(self, opener: PortOpener, address: str) -> None:
        self._opener = opener
        self._address = address

    def __call__(self, timeout_s: float) -> Connection:
        return self._opener.connect(self._address, timeout_s)
