"""The data plane's wire format in plain Python: an independent twin for tests of bad input.

`WireClient` speaks to a real endpoint, `WireServer` lets a real endpoint speak to a script.
"""

import hashlib
import hmac
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple

from moonpool import _core

MAGIC = 0x4C4F504D
VERSION = 1
HELLO, CHALLENGE, PROOF, WELCOME, REFUSED = 1, 2, 3, 4, 5
PING, READ_RAW, WRITE_RAW, READ_OBJECTS, PUT_OBJECTS, CLAIM, SEAL, ABORT, WRITE_OBJECT = range(
    16, 25
)
REPLY = 0x80
HEADER = struct.Struct("<IBBHQIIQ16sQIII")
RECORD = struct.Struct("<B3xIQQI4x")
CHECKSUM = 1
HUGE = 0xFFFF_FFFF


class Frame(NamedTuple):
    type: int
    request_id: int
    blocks: int
    payload_bytes: int
    meta: bytes


def frame(
    kind: int,
    meta: bytes = b"",
    *,
    count: int = 0,
    payload_bytes: int = 0,
    target: bytes = bytes(16),
    request_id: int = 1,
    flags: int = 0,
    deadline_ms: int = 5000,
    term: int = 0,
    version: int = VERSION,
    meta_bytes: int | None = None,
) -> bytes:
    head = HEADER.pack(
        MAGIC,
        version,
        kind,
        flags,
        request_id,
        count,
        deadline_ms,
        payload_bytes,
        target,
        term,
        len(meta) if meta_bytes is None else meta_bytes,
        _core.crc32c(meta),
        0,
    )
    return head + struct.pack("<I", _core.crc32c(head)) + meta


def prove(token: bytes, role: bytes, client: bytes, server: bytes) -> bytes:
    return hmac.digest(token, b"moonpool hello 1 " + role + client + server, hashlib.sha256)


def reply_trailer(records: list[tuple[int, int, int, int, int]]) -> bytes:
    """Records are (status, crc, size, generation, slot)."""
    body = b"".join(RECORD.pack(*record) for record in records)
    return body + struct.pack("<II", _core.crc32c(body), MAGIC)


def receive(sock: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            raise ConnectionResetError(f"closed after {len(parts)} of {size} bytes")
        parts += part
    return parts


def receive_frame(sock: socket.socket) -> Frame:
    """Header, meta and padding; a payload stays in the socket."""
    fields = HEADER.unpack(receive(sock, HEADER.size + 4)[: HEADER.size])
    meta = receive(sock, fields[10])
    receive(sock, fields[12])
    return Frame(fields[2], fields[4], fields[5], fields[7], meta)


def until_closed(sock: socket.socket) -> None:
    """Drops what comes until the peer ends the connection (socket.timeout when it does not)."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass


class WireClient:
    def __init__(self, port: int, token: bytes = b"token", *, hello: bool = True) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.peer_epoch = 0
        if hello:
            self.hello(token)

    def hello(self, token: bytes) -> Frame:
        mine = struct.pack("<Q", 1) + os.urandom(16)
        self.sock.sendall(frame(HELLO, mine))
        theirs = receive_frame(self.sock).meta
        self.peer_epoch = struct.unpack_from("<Q", theirs)[0]
        self.sock.sendall(frame(PROOF, prove(token, b"client", mine, theirs)))
        return receive_frame(self.sock)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def region(self, region: int) -> bytes:
        return struct.pack("<QQ", region, self.peer_epoch)

    def is_closed(self) -> bool:
        """Waits for the end of the stream, dropping what still comes, and closes its own end."""
        with self.sock:
            until_closed(self.sock)
        return True

    def ping(self) -> int:
        self.send(frame(PING, request_id=7))
        answer = receive_frame(self.sock)
        receive(self.sock, 8)
        return answer.request_id

    def close(self) -> None:
        self.sock.close()


class WireServer:
    """Accepts one connection, does the hello, then runs `script(socket)` in a thread."""

    def __init__(self, script: Callable[[socket.socket], None], token: bytes = b"token") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, args=(script, token))
        self._thread.start()

    def _serve(self, script: Callable[[socket.socket], None], token: bytes) -> None:
        sock, _ = self._listener.accept()
        with sock:
            sock.settimeout(10)
            theirs = receive_frame(sock).meta
            mine = struct.pack("<Q", 99) + os.urandom(16)
            sock.sendall(frame(CHALLENGE, mine))
            receive_frame(sock)
            mac = prove(token, b"server", theirs, mine)
            sock.sendall(frame(WELCOME, mac + struct.pack("<II", 0, 0)))
            try:
                script(sock)
            except OSError:
                pass  # the endpoint under test may close first

    def close(self) -> None:
        self._listener.close()
        self._thread.join(10)
        assert not self._thread.is_alive()
