"""Noise at the doors beside those of master and node: a tier's port, a node's control socket. Both
lie in the node's process, which goes on serving."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import moonpool
from moonpool.core.address import parse_address
from moonpool.core.clock import Deadline, SystemClock
from moonpool.core.handshake import NONCE_BYTES, ClientHandshake
from moonpool.core.stream import FrameStream
from moonpool.core.wire import MESSAGE, Frame, Kind, encode_frame
from moonpool.pool import messages as m
from moonpool.pool.messages_tier import TierPieces, TierRead, decode, encode
from moonpool.pool.node_control import LINE_BYTES_MAX, tell_node
from moonpool.pool.pool import Pool
from tests.faults.pool_rig import MIB, Rig, running, seed, stamp
from tests.faults.test_pool_hostile import ROUNDS, TOKEN, link, noise, request

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=1, memory=16 * MIB, token=TOKEN, disk_size=64 * MIB) as rig:
        yield rig


@pytest.fixture
def pool(rig: Rig) -> Iterator[Pool]:
    """A client that wrote before and reads and writes after."""
    pool = rig.connect()
    pids = [child.pid for child in rig.cluster.children]
    pool.put("good", stamp("good", 20_000))
    yield pool
    assert [child.pid for child in rig.cluster.children if child.alive] == pids
    assert pool.get("good") == rig.connect(shared_memory=False).get("good") == stamp("good", 20_000)
    assert pool.put("after", stamp("after", 50_000), replace=True).ok


def soon() -> Deadline:
    return Deadline.after(SystemClock().monotonic(), 10)


@pytest.fixture(scope="module")
def tier(rig: Rig) -> Callable[[], socket.socket]:
    """Knocks at the tier's port."""
    asking = link(rig)
    topology = request(asking, m.Topology())
    asking.close()
    assert isinstance(topology, m.TopologyIs)
    (address,) = {one.tcp for one in topology.segments if one.medium == "disk"}
    host, port, _ = parse_address(address)
    return lambda: socket.create_connection((host, port), timeout=10)


def accepted(tier: Callable[[], socket.socket]) -> tuple[socket.socket, FrameStream]:
    """A connection whose handshake went well."""
    sock = tier()
    stream = FrameStream(sock)
    nonce = os.urandom(NONCE_BYTES)
    handshake = ClientHandshake(TOKEN, "client", "hostile", moonpool.__version__, nonce)
    frame: Frame | None = handshake.start()
    while frame is not None:
        stream.send(frame.kind, frame.payload, soon())
        frame = handshake.receive(stream.recv(soon()))
    return sock, stream


def assert_it_answers(tier: Callable[[], socket.socket]) -> None:
    """To a proper question about an object that nobody stored."""
    sock, stream = accepted(tier)
    read = TierRead(7, bytes(4), struct.pack("<Q", 2**40), bytes(8), struct.pack("<Q", 100))
    stream.send(MESSAGE, encode(read), soon())
    answer = decode(stream.recv(soon()).payload)
    assert isinstance(answer, TierPieces) and answer.id == 7
    assert answer.status != b"\0" and answer.pieces == b""
    sock.close()


def read_of(draw: random.Random) -> bytes:
    """A read whose columns fit each other, or do not, or ask for too much."""
    count = draw.choice([0, 1, 2, 5000])
    more = draw.choice([0, 0, 0, 1, 8])
    slots, generations = draw.randbytes(4 * count + more), draw.randbytes(8 * count)
    lengths = draw.choice([bytes(8 * count), b"\xff" * (8 * count)])
    return encode_frame(
        MESSAGE, encode(TierRead(1, slots, generations, draw.randbytes(8 * count), lengths))
    )


def test_noise_at_a_tier_before_the_proof(pool: Pool, tier: Callable[[], socket.socket]) -> None:
    draw = seed()
    hello = encode_frame(Kind.HELLO, b"\x95\xc4\x20" + bytes(32) + b"\xa6client\xa1n\xa11\xa1h")
    for _ in range(ROUNDS):
        with tier() as sock, suppress(OSError):
            sock.sendall(noise(draw, hello))
        assert pool.get("good") == stamp("good", 20_000)
    assert_it_answers(tier)


def test_noise_at_a_tier_after_the_proof(pool: Pool, tier: Callable[[], socket.socket]) -> None:
    draw = seed()
    for _ in range(ROUNDS):
        sock, _ = accepted(tier)
        with sock, suppress(OSError):
            for _ in range(3):
                sent = read_of(draw)
                sock.sendall(sent if draw.random() < 0.5 else noise(draw, sent))
    assert_it_answers(tier)


def test_a_message_before_the_proof_is_not_served(
    pool: Pool, tier: Callable[[], socket.socket]
) -> None:
    with tier() as sock, suppress(ConnectionError):
        sock.sendall(encode_frame(MESSAGE, encode(TierRead(1, b"", b"", b"", b""))))
        said = b""
        while part := sock.recv(4096):
            said += part
        assert not said or said[5] == Kind.REFUSAL
    assert_it_answers(tier)


def line_of(draw: random.Random) -> bytes:
    """No order, or one that cannot be obeyed."""
    kind = draw.randrange(5)
    if kind == 0:
        return draw.randbytes(draw.randrange(1, 4000)) + b"\n"
    if kind == 1:
        return b'{"do": "mounts"'  # and no end of it
    if kind == 2:
        return b"x" * (LINE_BYTES_MAX + 100)
    if kind == 3:
        return b"[" * 5000 + b"\n"
    orders = [
        b'{"do": "mount", "size": 0}',
        b'{"do": "mount", "size": -1}',
        b'{"do": "mount", "size": 1e99}',
        b'{"do": "unmount", "segment": 1}',
        b'{"do": "unmount", "segment": -9223372036854775808, "stay": true}',
        b'{"do": ["mounts"]}',
        b'{"do": "mounts", "more": 1}',
    ]
    return draw.choice(orders) + b"\n"


def test_noise_at_a_nodes_control_socket(rig: Rig, pool: Pool) -> None:
    draw, path = seed(), Path(rig.directory / "n0.control")
    for _ in range(ROUNDS):
        with socket.socket(socket.AF_UNIX) as sock, suppress(OSError):
            sock.settimeout(10)
            sock.connect(str(path))
            sock.sendall(line_of(draw))
            sock.shutdown(socket.SHUT_WR)
            said = b""
            while part := sock.recv(4096):
                said += part
            assert not said or b'"error"' in said
        assert pool.get("good") == stamp("good", 20_000)
    assert tell_node(path, 10, do="mounts") == {"segments": []}
