"""The least a read or write over TCP can be: a request of 17 bytes, and the bytes. It checks
nothing: it is the limit beside our figures and serves nothing else.
"""

from __future__ import annotations

import socket
import struct
import threading

_REQUEST = struct.Struct("<BQQ")  # 1 to write, offset, bytes
_DONE = b"\x01"


class PlainServer:
    """Serves `memory` to one client after the other, on a thread; `address` is where."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, name="plain-socket", daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = bytearray(_REQUEST.size)
            with client:
                while _receive(client, memoryview(request)):
                    write, offset, nbytes = _REQUEST.unpack(request)
                    part = self._memory[offset : offset + nbytes]
                    if write:
                        _receive(client, part)
                        client.sendall(_DONE)
                    else:
                        client.sendall(part)


class PlainSocket:
    """The client's end."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def move(self, write: bool, offset: int, memory: memoryview) -> None:
        """The bytes at `offset` of the server's memory from or to `memory`."""
        self._socket.sendall(_REQUEST.pack(write, offset, len(memory)))
        if write:
            self._socket.sendall(memory)
            memory = memoryview(bytearray(1))
        if not _receive(self._socket, memory):
            raise ConnectionError("the plain server is gone")

    def close(self) -> None:
        self._socket.close()


def _receive(end: socket.socket, into: memoryview) -> bool:
    while len(into):
        if not (count := end.recv_into(into)):
            return False
        into = into[count:]
    return True
