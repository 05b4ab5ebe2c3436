"""Strangers at every door: wrong token, wrong version, broken frames, random bytes. The processes
live, and a client that works meanwhile reads what it wrote."""

import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import pytest

import moonpool
from moonpool.core.address import parse_address
from moonpool.core.clock import Deadline, SystemClock
from moonpool.core.errors import ProtocolMismatch, Refused, TransferError
from moonpool.core.wire import HEADER_BYTES, MAX_FRAME, MAX_HANDSHAKE_FRAME, Kind, encode_frame
from moonpool.pool import messages as m
from moonpool.pool.link import BlockingLink
from moonpool.pool.pool import Pool
from tests.faults.pool_rig import MIB, Rig, eventually, live_nodes, running, seed, stamp
from tests.transfer import wire

pytestmark = pytest.mark.faults

TOKEN = "a long and random text of the cluster"
ROUNDS = 40
DOORS = ["master", "node tcp", "node unix"]


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=1, memory=16 * MIB, token=TOKEN) as rig:
        yield rig


@pytest.fixture
def pool(rig: Rig) -> Iterator[Pool]:
    """A client that wrote before and reads, writes and removes after."""
    pool = rig.connect()
    pids = [child.pid for child in rig.cluster.children]
    keys = [f"good/{i}" for i in range(8)]
    pool.put_many(keys, [stamp(key, 20_000) for key in keys])
    yield pool
    assert [child.pid for child in rig.cluster.children if child.alive] == pids
    for reader in (pool, rig.connect(), rig.connect(shared_memory=False)):
        assert [reader.get(key) for key in keys] == [stamp(key, 20_000) for key in keys]
    assert pool.put("after", stamp("after", 100_000), replace=True).ok
    assert pool.get("after") == stamp("after", 100_000)
    eventually(lambda: live_nodes(pool) == 1, "the node is heard")
    pool.remove(keys)


def knock(rig: Rig, door: str) -> socket.socket:
    if door == "node unix":
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(10)
        sock.connect(str(rig.directory / "n0.sock"))
        return sock
    address = rig.address if door == "master" else rig.nodes[0].ready["tcp"]
    host, port, _ = parse_address(address)
    return socket.create_connection((host, port), timeout=10)


def closed(sock: socket.socket) -> None:
    """The other side ends the connection, whatever it says before."""
    with sock:
        wire.until_closed(sock)


# --- who may not come in --------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "another token"])
def test_a_wrong_token_is_refused_at_the_master(rig: Rig, pool: Pool, token: str) -> None:
    with pytest.raises(Refused):
        moonpool.connect(rig.address, token=token, timeout_s=5)


@pytest.mark.parametrize("door", ["node tcp", "node unix"])
@pytest.mark.parametrize("token", [b"", b"another token"])
def test_a_wrong_token_is_refused_at_the_node(
    rig: Rig, pool: Pool, door: str, token: bytes
) -> None:
    sock = knock(rig, door)
    mine = struct.pack("<Q", 1) + os.urandom(16)
    sock.sendall(wire.frame(wire.HELLO, mine))
    theirs = wire.receive_frame(sock).meta
    sock.sendall(wire.frame(wire.PROOF, wire.prove(token, b"client", mine, theirs)))
    assert wire.receive_frame(sock).type == wire.REFUSED
    closed(sock)


@pytest.mark.parametrize("door", ["node tcp", "node unix"])
def test_requests_before_the_proof_are_not_served(rig: Rig, pool: Pool, door: str) -> None:
    for kind in (wire.PING, wire.READ_OBJECTS, wire.PUT_OBJECTS, wire.CLAIM, wire.SEAL):
        sock = knock(rig, door)
        sock.sendall(wire.frame(kind))
        closed(sock)


def test_messages_before_the_proof_are_not_served(rig: Rig, pool: Pool) -> None:
    sock = knock(rig, "master")
    sock.sendall(encode_frame(Kind.MESSAGE, m.encode(m.Stat(), 1)))
    closed(sock)


def test_another_version_is_told_so_at_the_master(rig: Rig, pool: Pool) -> None:
    sock = knock(rig, "master")
    sock.sendall(b"MOON" + bytes([99]) + bytes(11))
    answer = sock.recv(4096)
    assert answer[:4] == b"MOON" and answer[5] == Kind.REFUSAL
    code, text = msgspec.msgpack.decode(answer[HEADER_BYTES:])
    assert code == ProtocolMismatch.code and "99" in text
    closed(sock)


@pytest.mark.parametrize("door", ["node tcp", "node unix"])
def test_another_version_is_told_so_at_the_node(rig: Rig, pool: Pool, door: str) -> None:
    sock = knock(rig, door)
    sock.sendall(wire.frame(wire.HELLO, bytes(24), version=99))
    answer = wire.receive_frame(sock)
    assert answer.type == wire.REFUSED and b"version" in answer.meta
    closed(sock)


# --- who comes in and misbehaves ------------------------------------------------------------------


@pytest.mark.parametrize("length", [MAX_HANDSHAKE_FRAME + 1, MAX_FRAME, 2**32 - 1])
def test_a_stranger_gets_no_memory_for_a_large_frame(rig: Rig, pool: Pool, length: int) -> None:
    sock = knock(rig, "master")
    sock.sendall(struct.pack("<4sBBHII", b"MOON", 1, Kind.HELLO, 0, length, 0))
    closed(sock)


@pytest.mark.parametrize("door", ["node tcp", "node unix"])
def test_an_oversized_node_frame_ends_the_connection(rig: Rig, pool: Pool, door: str) -> None:
    for oversize in (
        wire.frame(wire.HELLO, bytes(24), payload_bytes=2**63),
        wire.frame(wire.HELLO, bytes(24), meta_bytes=2**31),
        wire.frame(wire.READ_OBJECTS, count=2**32 - 1),
    ):
        sock = knock(rig, door)
        sock.sendall(oversize)
        closed(sock)


def link(rig: Rig) -> BlockingLink:
    """An accepted connection to the master."""
    clock = SystemClock()
    return BlockingLink(rig.address, TOKEN, "hostile", Deadline.after(clock.monotonic(), 10))


def request(link: BlockingLink, message: m.ClientRequest) -> m.Message:
    return link.request(message, Deadline.after(SystemClock().monotonic(), 10))


KEY = m.KeyColumn(b"key", struct.pack("<I", 3))


@pytest.mark.parametrize(
    "message",
    [
        m.Lookup(m.KeyColumn(b"key", struct.pack("<I", 4))),
        m.Lookup(m.KeyColumn(b"key", b"\x03\0\0")),
        m.Lookup(m.KeyColumn(b"key", struct.pack("<II", 3, 2))),
        m.Lookup(m.KeyColumn(b"", struct.pack("<I", 0))),
        m.Exists(m.KeyColumn(bytes(2000), struct.pack("<I", 2000))),
        m.Remove(KEY, -5),
        m.Remove(KEY, 2**62),
        m.Abort(struct.pack("<i", -7), struct.pack("<Q", 1)),
        m.Abort(struct.pack("<i", 2**31 - 1), struct.pack("<Q", 2**64 - 1)),
        m.Commit(
            1,
            struct.pack("<i", 2**30),
            struct.pack("<Q", 1),
            struct.pack("<I", 0),
            m.ReplicaColumn(b"\x01", b"\xff\xff", bytes(4), bytes(8)),
        ),
        m.Report(struct.pack("<i", -1), struct.pack("<Q", 1), b"\xff\xff", bytes(4), bytes(8)),
        m.List(b"", -9, 2**40),
        m.Lease(2**50, struct.pack("<i", 2**30), struct.pack("<Q", 1), 2**50),
        m.EventsFrom(2**60, -3, -1, -1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_malformed_request_is_answered_and_harms_nobody(
    rig: Rig, pool: Pool, message: m.ClientRequest
) -> None:
    intruder = link(rig)
    with suppress(TransferError):
        answer = request(intruder, message)
        assert not isinstance(answer, m.Failure) or answer.code != "internal", answer
    intruder.close()


def test_a_client_cannot_speak_as_a_node(rig: Rig, pool: Pool) -> None:
    intruder = link(rig)
    with suppress(TransferError):
        answer = request(intruder, m.RetireDone(1, 0, b"\0"))  # type: ignore[arg-type]
        assert isinstance(answer, m.Failure) and answer.code != "internal", answer
    intruder.close()


# --- noise ----------------------------------------------------------------------------------------


def noise(draw: random.Random, sample: bytes) -> bytes:
    """Random bytes, or a good frame cut short, spoiled or followed by rubbish."""
    kind = draw.randrange(4)
    if kind == 0:
        return draw.randbytes(draw.randrange(1, 4000))
    if kind == 1:
        return sample[: draw.randrange(len(sample))]
    spoiled = bytearray(sample)
    for _ in range(draw.randrange(1, 6)):
        spoiled[draw.randrange(len(spoiled))] = draw.randrange(256)
    return bytes(spoiled) + draw.randbytes(draw.randrange(60))


def master_samples(rig: Rig) -> Callable[[random.Random], bytes]:
    bodies: list[m.Message] = [
        m.Stat(),
        m.Lookup(KEY),
        m.Exists(KEY),
        m.Await(KEY, 10),
        m.List(b"", 0, 10),
        m.RemovePrefix(b"no such key", 10),
        m.EventsFrom(0, 0, 10, 0),
        m.Topology(),
    ]
    frames = [encode_frame(Kind.MESSAGE, m.encode(body, 5)) for body in bodies]
    return lambda draw: draw.choice(frames)


def node_sample(rig: Rig) -> Callable[[random.Random], bytes]:
    def sample(draw: random.Random) -> bytes:
        kind = draw.randrange(wire.PING, 27)
        meta = draw.randbytes(draw.choice([0, 16, 32, 48, 96]))
        return wire.frame(
            kind,
            meta,
            count=draw.choice([0, 1, 2, 1000, 2**32 - 1]),
            payload_bytes=draw.choice([0, 100, 2**40]),
            target=draw.randbytes(16),
            flags=draw.randrange(8),
        )

    return sample


@pytest.mark.parametrize("door", DOORS)
def test_noise_before_the_proof(rig: Rig, pool: Pool, door: str) -> None:
    draw = seed()
    hello = (
        encode_frame(Kind.HELLO, b"\x95\xc4\x20" + bytes(32) + b"\xa6client\xa1n\xa11\xa1h")
        if door == "master"
        else wire.frame(wire.HELLO, bytes(24))
    )
    for _ in range(ROUNDS):
        with knock(rig, door) as sock, suppress(OSError):
            sock.sendall(noise(draw, hello))
        assert pool.get("good/1") == stamp("good/1", 20_000)


@pytest.mark.parametrize("door", DOORS)
def test_noise_after_the_proof(rig: Rig, pool: Pool, door: str) -> None:
    draw = seed()
    sample = master_samples(rig) if door == "master" else node_sample(rig)
    for round_number in range(ROUNDS):
        sock = accepted(rig, door)
        with sock, suppress(OSError):
            for _ in range(3):
                sock.sendall(noise(draw, sample(draw)))
        assert pool.get("good/1") == stamp("good/1", 20_000)
        if round_number % 8 == 0:
            assert pool.put("busy", stamp("busy", 50_000), replace=True).ok


def accepted(rig: Rig, door: str) -> socket.socket:
    """A connection whose hello went well."""
    if door == "master":
        intruder = link(rig)
        sock = socket.socket(fileno=os.dup(intruder._stream.fileno()))
        intruder.close()
        return sock
    sock = knock(rig, door)
    mine = struct.pack("<Q", 1) + os.urandom(16)
    sock.sendall(wire.frame(wire.HELLO, mine))
    theirs = wire.receive_frame(sock).meta
    sock.sendall(wire.frame(wire.PROOF, wire.prove(TOKEN.encode(), b"client", mine, theirs)))
    assert wire.receive_frame(sock).type == wire.WELCOME
    return sock


def test_a_pickle_is_just_noise(rig: Rig, pool: Pool) -> None:
    target = rig.directory / "executed"
    payload = b"cos\nsystem\n(S'touch " + str(target).encode() + b"'\ntR."
    for door in DOORS:
        for sock in (knock(rig, door), accepted(rig, door)):
            with sock, suppress(OSError):
                sock.sendall(payload)
                sock.sendall(encode_frame(Kind.MESSAGE, payload))
    assert pool.exists("good/0")
    assert not target.exists()
