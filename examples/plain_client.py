"""A client written from docs/wire.md alone: sockets and the standard library, nothing of Moonpool.

moonpool up                                   # in one terminal
python examples/plain_client.py               # in another; MOONPOOL_MASTER for another address
"""

import hashlib
import hmac
import os
import socket
import struct
from typing import Any

TOKEN = os.environ.get("MOONPOOL_TOKEN", "").encode()
VERSIONS = [1, 2]
MESSAGE, HELLO, CHALLENGE, PROOF, WELCOME, REFUSAL = 6, 1, 2, 3, 4, 5
CONTROL = struct.Struct("<4sBBHII")
DATA = struct.Struct("<IBBHQIIQ16sQIII")
READ_OBJECTS, PUT_OBJECTS, REPLY = 19, 20, 0x80


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def pack(value: Any) -> bytes:
    """msgpack: as much of it as requests need."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        if 0 <= value < 128:
            return bytes([value])
        return (
            b"\xcf" + struct.pack(">Q", value) if value > 0 else b"\xd3" + struct.pack(">q", value)
        )
    if isinstance(value, str):
        return b"\xdb" + struct.pack(">I", len(value.encode())) + value.encode()
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(pack, value))


def unpack(data: bytes) -> Any:
    return _unpack(data, 0)[0]


_SIZED = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
_NUMBERS |= {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_LISTS = {0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}


def _unpack(data: bytes, at: int) -> tuple[Any, int]:
    """msgpack: all that answers hold. The value at `at`, and where the next one begins."""
    head, at = data[at], at + 1
    if head < 0x80 or head >= 0xE0:
        return head - (256 if head >= 0xE0 else 0), at
    if head in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[head], at
    if head in _NUMBERS:
        (number,) = struct.unpack_from(_NUMBERS[head], data, at)
        return number, at + struct.calcsize(_NUMBERS[head])
    count, is_text, is_map = head & 0x1F, 0xA0 <= head < 0xC0, False
    if head in _SIZED:
        (count,) = struct.unpack_from(_SIZED[head], data, at)
        at += struct.calcsize(_SIZED[head])
        is_text = head >= 0xD9
    if is_text or head in _SIZED:
        raw = data[at : at + count]
        return (raw.decode() if is_text else raw), at + count
    if head in _LISTS:
        (count,) = struct.unpack_from(_LISTS[head], data, at)
        at += struct.calcsize(_LISTS[head])
        is_map = head >= 0xDE
    else:
        count, is_map = head & 0x0F, head < 0x90
    items = []
    for _ in range(count * (2 if is_map else 1)):
        item, at = _unpack(data, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if is_map else items), at


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += sock.recv(size - len(data)) or exit("the peer ended the connection")
    return data


def columns(keys: list[bytes]) -> list[bytes]:
    ends, end = [], 0
    for key in keys:
        ends.append(end := end + len(key))
    return [b"".join(keys), struct.pack(f"<{len(keys)}I", *ends)]


class Master:
    """The control plane: the handshake, then one request and its answer after the other."""

    def __init__(self, address: str) -> None:
        self._sock = connect(address)
        self._number = 0
        hello = pack([os.urandom(32), "client", "plain", "0", "", VERSIONS])
        self._send(HELLO, hello)
        challenge = self._receive(CHALLENGE)
        self._send(PROOF, pack([self._prove("client", hello, challenge)]))
        mac, _, _, _, _, self.version = unpack(self._receive(WELCOME))
        assert hmac.compare_digest(mac, self._prove("server", hello, challenge))

    @staticmethod
    def _prove(side: str, hello: bytes, challenge: bytes) -> bytes:
        text = b"moonpool-handshake-1 " + side.encode()
        for payload in (hello, challenge):
            text += struct.pack("<I", len(payload)) + payload
        return hmac.digest(TOKEN, text, hashlib.sha256)

    def ask(self, tag: int, *fields: Any) -> list[Any]:
        """The fields of the answer, its tag first."""
        self._number += 1
        self._send(MESSAGE, pack([self.version, self._number, 5000, [tag, *fields]]))
        _, number, _, answer = unpack(self._receive(MESSAGE))[:4]
        assert number == self._number
        if answer[0] == 29:
            exit(f"the master refuses: {answer[1:]}")
        return list(answer)

    def close(self) -> None:
        self._sock.close()

    def _send(self, kind: int, payload: bytes) -> None:
        head = CONTROL.pack(b"MOON", 1, kind, 0, len(payload), crc32c(payload))
        self._sock.sendall(head + payload)

    def _receive(self, wanted: int) -> bytes:
        _, _, kind, _, length, crc = CONTROL.unpack(receive(self._sock, CONTROL.size))
        payload = receive(self._sock, length)
        assert crc32c(payload) == crc
        if kind != wanted:
            exit(f"the master refuses: {unpack(payload)}")
        return payload


class Agent:
    """The data plane of one segment."""

    def __init__(self, address: str, incarnation: bytes) -> None:
        self._sock = connect(address)
        self._incarnation = incarnation
        hello = struct.pack("<Q", 1) + os.urandom(16)
        self._send(HELLO, hello)
        challenge, _ = self._receive_head(CHALLENGE)
        proof = b"moonpool hello 1 client" + hello + challenge
        self._send(PROOF, hmac.digest(TOKEN, proof, hashlib.sha256))
        self._receive_head(WELCOME)

    def put(self, key: bytes, value: bytes, term: int, sequence: int) -> tuple[int, int]:
        """Claim, bytes and seal in one frame: the slot and its generation."""
        writer = struct.pack("<iIQ", -1, 0, 0)
        record = struct.pack(
            "<QQQqIHHBBHI", len(value), term, sequence, 0, 0, len(key), 0, 1, 0, 0, 0
        )
        crc = struct.pack("<I", crc32c(value))
        trailer = crc + struct.pack("<I", crc32c(crc))
        self._send(PUT_OBJECTS, writer + record + key, 1, value, trailer, term)
        self._receive_head(PUT_OBJECTS | REPLY)
        status, _, _, generation, slot = self._records(1)[0]
        assert status == 0, f"the agent answers status {status}"
        return slot, generation

    def get(self, slot: int, generation: int, size: int) -> bytes | None:
        block = struct.pack("<IIQQQ", slot, 1, generation, 0, size)
        self._send(READ_OBJECTS, block, 1)
        _, length = self._receive_head(READ_OBJECTS | REPLY)
        data = receive(self._sock, length)
        status, crc, *_ = self._records(1)[0]
        return data if status == 0 and crc32c(data) == crc else None

    def close(self) -> None:
        self._sock.close()

    def _records(self, count: int) -> list[tuple[int, ...]]:
        """(status, crc, size, generation, slot) of each block: before them nothing is believed."""
        raw = receive(self._sock, 32 * count)
        crc, magic = struct.unpack("<II", receive(self._sock, 8))
        assert crc == crc32c(raw) and magic == 0x4C4F504D
        return [struct.unpack("<B3xIQQI4x", raw[32 * i : 32 * i + 32]) for i in range(count)]

    def _send(
        self,
        kind: int,
        meta: bytes,
        count: int = 0,
        payload: bytes = b"",
        trailer: bytes = b"",
        term: int = 0,
    ) -> None:
        head = DATA.pack(
            *(0x4C4F504D, 1, kind, 1 if count else 0, 1, count, 5000, len(payload)),
            *(self._incarnation if count else bytes(16), term, len(meta), crc32c(meta), 0),
        )
        self._sock.sendall(head + struct.pack("<I", crc32c(head)) + meta + payload + trailer)

    def _receive_head(self, wanted: int) -> tuple[bytes, int]:
        """Meta, and bytes of the payload that follows."""
        raw = receive(self._sock, DATA.size + 4)
        head = DATA.unpack(raw[: DATA.size])
        assert struct.unpack("<I", raw[DATA.size :])[0] == crc32c(raw[: DATA.size])
        meta = receive(self._sock, head[10])
        receive(self._sock, head[12])
        if head[2] != wanted:
            exit(f"the agent refuses: {meta.decode(errors='replace')}")
        return meta, head[7]


def main() -> None:
    master = Master(os.environ.get("MOONPOOL_MASTER", "127.0.0.1:7400"))
    _, _, term, segments = master.ask(22)
    agents = {
        segment[0]: Agent(segment[4], segment[1])
        for segment in segments
        if segment[10] and (len(segment) < 13 or segment[12] == "memory")
    }
    key, value = b"plain/greeting", b"hello from the standard library"
    master.ask(15, columns([key]))

    no_keys = [b"", b""]
    reserved = master.ask(
        1, columns([key]), struct.pack("<Q", len(value)), struct.pack("<i", -1), no_keys
    )
    _, term, status, row, attempt, chosen = reserved[:6]
    assert status == b"\0", f"reserve: status {status!r}"
    (segment,) = struct.unpack("<H", chosen)
    slot, generation = agents[segment].put(key, value, term, struct.unpack("<Q", attempt)[0])
    crc = struct.pack("<I", crc32c(value))
    replica = [b"\1", chosen, struct.pack("<I", slot), struct.pack("<Q", generation)]
    assert master.ask(3, term, row, attempt, crc, replica)[1] == b"\x08"
    print(f"put: {len(value)} bytes in slot {slot} of segment {segment}")

    assert master.ask(13, columns([key, b"plain/none"]))[1] == b"\1\0"
    found = master.ask(11, columns([key]))
    assert found[1] == b"\0"
    (size,) = struct.unpack("<Q", found[5])
    _, segment_of, slots, generations = found[7]
    where = struct.unpack("<H", segment_of[:2])[0]
    place = struct.unpack("<I", slots[:4])[0], struct.unpack("<Q", generations[:8])[0]
    data = agents[where].get(*place, size)
    print(f"get: {data!r}")
    assert data == value

    assert master.ask(15, columns([key]))[1] == b"\0"
    assert agents[where].get(*place, size) is None
    print("removed: its slot answers nothing any more")
    for one in (master, *agents.values()):
        one.close()


if __name__ == "__main__":
    main()
