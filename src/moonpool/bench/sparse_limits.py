"""What the machine can do at all, for the sparse bench: one memcpy, a plain program over TCP."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

import numpy as np

from moonpool.bench.sparse_parts import U8

_CHUNK_BYTES: Final = 4 << 20
_PIECE_BYTES: Final = 256 << 10  # a node packs rows in such pieces
# Bytes wanted, bytes that follow in this message, whether one piece is sent again and again.
_PLAIN_HEAD: Final = struct.Struct("<QQ?")


class Memcpy:
    """Bytes of the pool's memory, copied in order."""

    def __init__(self, source: Path) -> None:
        self._memory: U8 = np.memmap(source, np.uint8, "r")
        self._memory[::4096].max()  # mapped before the clock runs

    def read(self, destination: U8) -> None:
        """As many as `destination` has, from past the segment's tables."""
        flat = destination.reshape(-1)
        np.copyto(flat, self._memory[len(self._memory) - len(flat) :])


class PlainProgram:
    """The plain program over one TCP connection: a child that maps `source` and sends as many of
    its bytes as it is asked for, from where it stopped the last time. What moving bytes costs here
    at all. A context manager."""

    def __init__(self, source: Path) -> None:
        command = [sys.executable, "-m", "moonpool.bench.sparse_limits", str(source)]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert self._child.stdout is not None
            port = int(self._child.stdout.readline())
            self._connection = socket.create_connection(("127.0.0.1", port))
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            self._end_child()
            raise

    def read(self, destination: U8, named_bytes: int = 0, *, again: bool = False) -> None:
        """As many bytes as `destination` has, asked for by a message of `named_bytes` more. With
        `again` they are one piece, over and over, that stays in the sender's caches: as rows do
        that were packed just before."""
        view = destination.reshape(-1).data
        head = _PLAIN_HEAD.pack(len(view), named_bytes, again)
        self._connection.sendall(head + bytes(named_bytes))
        got = 0
        while got < len(view):
            room = view[got : got + _CHUNK_BYTES]
            came = self._connection.recv_into(room, 0, socket.MSG_WAITALL)
            if not came:
                raise ConnectionError(f"the plain program ended after {got} bytes")
            got += came

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()
        self._end_child()

    def _end_child(self) -> None:
        self._child.kill()
        self._child.communicate()


def serve_plain(path: str) -> None:
    """The plain program's other end: sends the file's bytes in order, whenever it is asked."""
    memory = np.memmap(path, np.uint8, "r")
    memory[::4096].max()  # mapped before the clock runs
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            view, at = memory.data, 0
            while head := connection.recv(_PLAIN_HEAD.size, socket.MSG_WAITALL):
                nbytes, named_bytes, again = _PLAIN_HEAD.unpack(head)
                connection.recv(named_bytes, socket.MSG_WAITALL)
                while nbytes > 0:
                    begin, most = (0, _PIECE_BYTES) if again else (at, len(view))
                    part = view[begin : begin + min(nbytes, most)]
                    connection.sendall(part)
                    nbytes -= len(part)
                    at = at if again else (at + len(part)) % len(view)


if __name__ == "__main__":
    serve_plain(sys.argv[1])
