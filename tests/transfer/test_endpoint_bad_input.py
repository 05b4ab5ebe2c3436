"""Whatever comes in at the endpoint's port, it answers clearly or closes, and goes on serving."""

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from moonpool import _core
from tests.transfer import wire
from tests.transfer.endpoints import Pair, connected, done, random_bytes, u64
from tests.transfer.wire import WireClient, WireServer, frame, receive, receive_frame

BOUNDS, NOT_FOUND, CORRUPT = 3, 11, 2


@pytest.fixture
def pair() -> Iterator[Pair]:
    with connected(hello_ms=1000, stall_ms=200, frame_payload_bytes_max=1 << 30) as made:
        yield made
        assert done(made.connection.ping()).ok  # whatever came in: others are served


def raw_block(offset: int, length: int) -> bytes:
    return struct.pack("<QQ", offset, length)


def write_frame(client: WireClient, region: int, data: bytes, crc: int | None = None) -> bytes:
    crcs = struct.pack("<I", _core.crc32c(data) if crc is None else crc)
    return (
        frame(
            wire.WRITE_RAW,
            raw_block(0, len(data)),
            count=1,
            payload_bytes=len(data),
            target=client.region(region),
            flags=wire.CHECKSUM,
        )
        + data
        + crcs
        + struct.pack("<I", _core.crc32c(crcs))
    )


def answer_status(client: WireClient) -> int:
    reply = receive_frame(client.sock)
    records = receive(client.sock, 32 * reply.blocks + 8)
    return records[0]


def test_the_twin_speaks_the_protocol(pair: Pair) -> None:
    memory = bytearray(100)
    region = pair.server.register(memory, writable=True)
    client = WireClient(pair.port)
    assert client.ping() == 7
    client.send(write_frame(client, region, b"hello"))
    assert answer_status(client) == 0 and memory[:5] == b"hello"
    client.send(
        frame(wire.READ_RAW, raw_block(1, 4), count=1, target=client.region(region), request_id=9)
    )
    reply = receive_frame(client.sock)
    assert reply == wire.Frame(wire.READ_RAW | wire.REPLY, 9, 1, 4, struct.pack("<Q", 4))
    assert receive(client.sock, 4) == b"ello"
    client.close()


def test_wrong_token(pair: Pair) -> None:
    with pytest.raises(_core.RefusedError, match="wrong token"):
        _core.Endpoint(token=b"guess").connect(f"127.0.0.1:{pair.port}")
    with pytest.raises(_core.RefusedError, match="wrong token"):
        _core.Endpoint().connect(f"127.0.0.1:{pair.port}")
    assert pair.server.stats()["hellos_refused"] == 2


def test_a_server_that_cannot_prove_the_token() -> None:
    server = WireServer(wire.until_closed, token=b"guess")
    client = _core.Endpoint(token=b"token")
    with pytest.raises(_core.RefusedError, match="could not prove"):
        client.connect(server.address)
    client.close()
    server.close()


def test_wrong_version_gets_a_text(pair: Pair) -> None:
    client = WireClient(pair.port, hello=False)
    client.send(frame(wire.HELLO, bytes(24), version=9))
    answer = receive_frame(client.sock)
    assert answer.type == wire.REFUSED and b"protocol version 1" in answer.meta
    assert client.is_closed()


def test_a_server_of_another_version() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    client = _core.Endpoint(token=b"token")

    def script() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.sendall(frame(wire.CHALLENGE, bytes(24), version=2))
            wire.until_closed(sock)

    thread = threading.Thread(target=script)
    thread.start()
    with pytest.raises(_core.RefusedError, match="version 2"):
        client.connect(f"127.0.0.1:{listener.getsockname()[1]}")
    thread.join()
    listener.close()
    client.close()


def test_requests_before_the_proof(pair: Pair) -> None:
    client = WireClient(pair.port, hello=False)
    client.send(frame(wire.PING))
    assert client.is_closed()
    assert pair.server.stats()["protocol_errors"] == 1


def test_a_silent_peer_is_dropped(pair: Pair) -> None:
    client = WireClient(pair.port, hello=False)
    client.send(frame(wire.HELLO, bytes(24)))
    assert client.is_closed()
    assert pair.server.stats()["hellos_timed_out"] == 1


BAD_FRAMES = {
    "unknown type": frame(99),
    "a reply": frame(wire.PING | wire.REPLY),
    "a second hello": frame(wire.HELLO, bytes(24)),
    "unknown flag": frame(wire.PING, flags=0x8000),
    "ping with meta": frame(wire.PING, b"meta"),
    "ping with payload": frame(wire.PING, payload_bytes=5),
    "ping with blocks": frame(wire.PING, count=3),
    "huge count and meta": frame(wire.READ_RAW, count=wire.HUGE, meta_bytes=wire.HUGE),
    "fewer descriptors than blocks": frame(wire.READ_RAW, raw_block(0, 1), count=2),
    "sum of lengths over the limit": frame(wire.READ_RAW, raw_block(0, 2**63) * 2, count=2),
    "sum of lengths past u64": frame(wire.READ_RAW, raw_block(0, 2**64 - 1) * 2, count=2),
    "payload too short": frame(wire.WRITE_RAW, raw_block(0, 2), count=1, payload_bytes=1),
    "payload too long": frame(wire.WRITE_RAW, raw_block(0, 2), count=1, payload_bytes=3),
    "huge payload": frame(wire.WRITE_RAW, raw_block(0, 2**63), count=1, payload_bytes=2**63),
    "write lengths past u64": frame(wire.WRITE_RAW, raw_block(0, 2**63) * 2, count=2),
    "damaged header": frame(wire.PING)[:-1] + b"\xff",
    "damaged meta": frame(wire.READ_RAW, raw_block(0, 1), count=1)[:-1] + b"\xff",
    "zeros": bytes(72),
    "another protocol": b"GET / HTTP/1.1\r\nHost: moonpool\r\n\r\n" + bytes(72),
}


@pytest.mark.parametrize("bad", BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_a_frame_that_breaks_the_protocol_ends_its_connection(pair: Pair, bad: bytes) -> None:
    client = WireClient(pair.port)
    client.send(bad)
    assert client.is_closed()
    assert pair.server.stats()["protocol_errors"] == 1


@pytest.mark.parametrize(
    ("offset", "length"), [(100, 1), (0, 101), (2**64 - 1, 2), (2**64 - 1, 1), (101, 0), (50, 51)]
)
def test_blocks_outside_the_region(pair: Pair, offset: int, length: int) -> None:
    region = pair.server.register(bytearray(100), writable=True)
    client = WireClient(pair.port)
    target = client.region(region)
    client.send(frame(wire.READ_RAW, raw_block(offset, length), count=1, target=target))
    # The sum of lengths is bounded too: what passes the limit is no valid frame.
    assert answer_status(client) == BOUNDS
    if length < 200:
        body = bytes(length) + bytes(4) + struct.pack("<I", _core.crc32c(bytes(4)))
        meta = raw_block(offset, length)
        client.send(
            frame(wire.WRITE_RAW, meta, count=1, target=target, payload_bytes=length) + body
        )
        assert answer_status(client) == BOUNDS
    client.close()


def test_a_region_of_another_life(pair: Pair) -> None:
    region = pair.server.register(bytes(10))
    client = WireClient(pair.port)
    client.peer_epoch += 1
    client.send(frame(wire.READ_RAW, raw_block(0, 1), count=1, target=client.region(region)))
    assert answer_status(client) == NOT_FOUND
    client.close()


def test_a_wrong_checksum_is_said(pair: Pair) -> None:
    region = pair.server.register(bytearray(100), writable=True)
    client = WireClient(pair.port)
    client.send(write_frame(client, region, b"hello", crc=1))
    assert answer_status(client) == CORRUPT
    client.close()


def test_a_truncated_frame_changes_nothing_more(pair: Pair) -> None:
    memory = bytearray(100)
    region = pair.server.register(memory, writable=True)
    client = WireClient(pair.port)
    client.send(write_frame(client, region, bytes([7]) * 50)[:120])
    client.close()
    assert done(pair.connection.ping()).ok
    assert memory[50:] == bytes(50)


def test_a_stalled_frame_loses_its_memory_then_its_connection(pair: Pair) -> None:
    memory = bytearray(100)
    region = pair.server.register(memory, writable=True)
    client = WireClient(pair.port)
    data = frame(
        wire.WRITE_RAW,
        raw_block(0, 50),
        count=1,
        payload_bytes=50,
        target=client.region(region),
        deadline_ms=1,
    )
    client.send(data + b"a" * 10)
    assert client.is_closed()
    assert pair.server.stats()["stalls"] == 1
    assert memory[10:] == bytes(90)


def test_replies_that_nobody_takes_end_the_connection(pair: Pair) -> None:
    region = pair.server.register(random_bytes(64 << 20))
    client = WireClient(pair.port)
    meta = raw_block(0, 64 << 20)
    client.send(frame(wire.READ_RAW, meta, count=1, target=client.region(region), deadline_ms=50))
    while pair.server.stats()["stalls"] == 0:
        time.sleep(0.01)
    assert pair.server.stats()["connections_open"] == 1
    client.close()


def test_random_bytes(pair: Pair) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    region = pair.server.register(bytearray(1000), writable=True)
    good = WireClient(pair.port)
    sample = write_frame(good, region, b"x" * 100) + frame(
        wire.READ_RAW, raw_block(0, 100), count=1, target=good.region(region)
    )
    good.close()
    for round_number in range(60):
        client = WireClient(pair.port, hello=round_number % 3 > 0)
        if round_number % 2:
            data = dice.randbytes(dice.randrange(1, 2000))
        else:
            spoiled = bytearray(sample * 3)
            for _ in range(dice.randrange(1, 10)):
                spoiled[dice.randrange(len(spoiled))] = dice.randrange(256)
            data = bytes(spoiled)
        try:
            client.send(data)
            client.sock.shutdown(socket.SHUT_WR)
            assert client.is_closed()
        except (BrokenPipeError, ConnectionResetError, OSError):
            pass
        client.close()


# ---- a peer that answers badly ----


def bad_reply(*parts: bytes) -> WireServer:
    def script(sock: socket.socket) -> None:
        receive(sock, 72 + 16)
        for part in parts:
            sock.sendall(part)
        wire.until_closed(sock)

    return WireServer(script)


OK_RECORD = (0, 0, 8, 0, 0)
LENGTH = struct.pack("<Q", 8)


@pytest.mark.parametrize(
    "parts",
    [
        [bytes(72)],
        [frame(wire.PING | wire.REPLY)],
        [frame(wire.READ_RAW, LENGTH, count=1, payload_bytes=8)],
        [frame(wire.READ_RAW | wire.REPLY, LENGTH, count=2, payload_bytes=8)],
        [frame(wire.READ_RAW | wire.REPLY, LENGTH, count=1, payload_bytes=9), bytes(9)],
        [frame(wire.READ_RAW | wire.REPLY, struct.pack("<Q", 2**63), count=1, payload_bytes=2**20)],
        [frame(wire.READ_RAW | wire.REPLY, LENGTH, count=1, payload_bytes=8, request_id=1000)],
        [frame(wire.READ_RAW | wire.REPLY, LENGTH, count=1, payload_bytes=8), bytes(8), bytes(40)],
    ],
)
def test_a_peer_that_answers_nonsense(parts: list[bytes]) -> None:
    server = bad_reply(*parts)
    client = _core.Endpoint(token=b"token")
    copy = np.zeros(16, np.uint8)
    op = client.connect(server.address).read_raw(1, u64(0), u64(8), copy, u64(4))
    assert op.wait() and op.state == "FAILED" and "protocol" in op.error
    assert (copy[:4] == 0).all() and (copy[12:] == 0).all()
    assert client.stats()["protocol_errors"] == 1
    client.close()
    server.close()


def test_bytes_that_differ_from_the_senders_checksum() -> None:
    trailer = wire.reply_trailer([(0, 12345, 8, 0, 0)])
    reply = frame(wire.READ_RAW | wire.REPLY, LENGTH, count=1, payload_bytes=8)
    server = bad_reply(reply, b"12345678", trailer)
    client = _core.Endpoint(token=b"token")
    op = client.connect(server.address).read_raw(1, u64(0), u64(8), bytearray(8), u64(0))
    assert op.wait() and op.state == "DONE" and op.status.tolist() == [CORRUPT]
    client.close()
    server.close()
