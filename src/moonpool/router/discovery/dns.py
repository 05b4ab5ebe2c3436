"""Workers behind one DNS name, such as a headless Kubernetes service: each address is one."""

from __future__ import annotations

import asyncio
import socket

from moonpool.core.address import Address, parse_address
from moonpool.core.errors import Unreachable
from moonpool.router.service.specs import WorkerSpec, parse_spec


class DnsSource:
    """'NAME:PORT', with settings of a worker after commas."""

    name = "dns"

    def __init__(self, text: str) -> None:
        where, _, self._settings = text.partition(",")
        self._address = parse_address(where)
        self._spec("127.0.0.1")

    async def look(self) -> list[WorkerSpec]:
        host, port = self._address.host, self._address.port
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )
        except OSError as error:
            raise Unreachable(f"the name {host} is not resolved: {error}") from None
        return [self._spec(address) for address in sorted({str(entry[4][0]) for entry in found})]

    def _spec(self, host: str) -> WorkerSpec:
        url = f"http://{Address(host, self._address.port)}"
        return parse_spec(f"{url},{self._settings}" if self._settings else url, "both")
