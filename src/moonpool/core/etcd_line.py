"""One connection to one member of etcd: HTTP, its answers as they come. It never connects anew.

Whoever has it closes it, whatever happened; `interrupt` alone is for other threads.
"""

from __future__ import annotations

import http.client
import socket
from contextlib import suppress

from moonpool.core.errors import BadFrame

COMPLAINT_BYTES = 4096


class Busy(OSError):
    """A member that cannot answer now (it has no leader, say): another one may."""


class EtcdLine:
    """Connected within `timeout_s`, or it raises OSError and leaves nothing open."""

    def __init__(self, host: str, port: int, tls: bool, timeout_s: float) -> None:
        kind = http.client.HTTPSConnection if tls else http.client.HTTPConnection
        self._connection = kind(host, port, timeout=timeout_s)
        self._connection.auto_open = 0  # what closed it would find it open again
        self._answer: http.client.HTTPResponse | None = None
        try:
            self._connection.connect()
        except BaseException:
            self._connection.close()
            raise
        # Of its own: an answer with "Connection: close" takes the connection's away.
        self._sock: socket.socket = self._connection.sock

    @property
    def spent(self) -> bool:
        """Its member takes no further question here."""
        return self._connection.sock is None

    def ask(self, path: str, body: bytes, timeout_s: float) -> http.client.HTTPResponse:
        """Raises OSError, HTTPException; BadFrame when etcd refuses."""
        self._sock.settimeout(timeout_s)
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        self._answer = response = self._connection.getresponse()
        if response.status != 200:
            text = response.read(COMPLAINT_BYTES).decode(errors="replace").strip()
            if response.status in (502, 503, 504):
                raise Busy(f"{response.status} {text}")
            raise BadFrame(f"etcd answered {path} with {response.status}: {text}")
        return response

    def wait_at_most(self, seconds: float) -> None:
        """For each further piece of an answer; TimeoutError beyond."""
        self._sock.settimeout(seconds)

    def interrupt(self) -> None:
        """From another thread: whoever waits here stops waiting, with an OSError or an end."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._connection.close()
        self._sock.close()
