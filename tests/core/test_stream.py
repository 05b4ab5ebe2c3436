"""Frames over blocking sockets: deadlines, broken peers, both ends closed."""

import random
import socket
from collections.abc import Iterator

import pytest

from moonpool.core.clock import Deadline, SystemClock
from moonpool.core.errors import (
    BadFrame,
    Closed,
    Corrupt,
    DeadlineExceeded,
    ProtocolMismatch,
    TransferError,
    Unreachable,
)
from moonpool.core.stream import FrameStream
from moonpool.core.wire import Frame, Kind, encode_frame

Pair = tuple[FrameStream, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    stream = FrameStream(left)
    yield stream, right
    stream.close()
    right.close()


def soon(seconds: float = 5.0) -> Deadline:
    return Deadline.after(SystemClock().monotonic(), seconds)


def test_both_ways(pair: Pair) -> None:
    stream, peer = pair
    stream.send(Kind.MESSAGE, b"question", soon())
    assert peer.recv(100) == encode_frame(Kind.MESSAGE, b"question")
    peer.sendall(encode_frame(Kind.MESSAGE, b"answer"))
    assert stream.recv(soon()) == Frame(Kind.MESSAGE, b"answer")


def test_many_frames_in_one_piece(pair: Pair) -> None:
    stream, peer = pair
    payloads = [bytes([i]) * (i * 37) for i in range(40)]
    peer.sendall(b"".join(encode_frame(Kind.MESSAGE, payload) for payload in payloads))
    assert [stream.recv(soon()).payload for _ in payloads] == payloads


def test_a_frame_larger_than_the_read_buffer_then_a_small_one() -> None:
    left, right = socket.socketpair()
    with right:
        right.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        stream, peer = FrameStream(left), FrameStream(right)
        for size in (0, 100_000, 1, 90_000, 3):
            payload = bytes(range(256)) * 400
            peer.send(Kind.MESSAGE, payload[:size], soon())
            peer.send(Kind.MESSAGE, b"next", soon())
            assert stream.recv(soon()).payload == payload[:size]
            assert stream.recv(soon()).payload == b"next"
        stream.close()


def test_a_silent_peer_costs_the_deadline_and_not_the_stream(pair: Pair) -> None:
    stream, peer = pair
    frame = encode_frame(Kind.MESSAGE, b"late")
    for cut in (0, 5, 17):
        peer.sendall(frame[:cut])
        with pytest.raises(DeadlineExceeded, match="receive"):
            stream.recv(soon(0.01))
        peer.sendall(frame[cut:])
        assert stream.recv(soon()).payload == b"late"


def test_a_peer_that_does_not_read_costs_the_stream(pair: Pair) -> None:
    stream, _ = pair
    with pytest.raises(DeadlineExceeded, match="did not take"):
        stream.send(Kind.MESSAGE, b"x" * (1 << 20), soon(0.5))
    with pytest.raises(Closed, match="connect again"):
        stream.recv(soon())


def test_an_expired_deadline_sends_nothing(pair: Pair) -> None:
    stream, peer = pair
    with pytest.raises(DeadlineExceeded):
        stream.send(Kind.MESSAGE, b"", Deadline(0.0))
    peer.setblocking(False)
    with pytest.raises(BlockingIOError):
        peer.recv(1)
    assert not stream.closed


def test_the_peer_closes_between_frames(pair: Pair) -> None:
    stream, peer = pair
    peer.close()
    with pytest.raises(Unreachable, match="closed the connection"):
        stream.recv(soon())


def test_the_peer_dies_inside_a_frame(pair: Pair) -> None:
    stream, peer = pair
    peer.sendall(encode_frame(Kind.MESSAGE, b"abc")[:18])
    peer.close()
    with pytest.raises(Unreachable, match="inside a MESSAGE: 18 of 19 bytes"):
        stream.recv(soon())


def test_sending_to_a_dead_peer(pair: Pair) -> None:
    stream, peer = pair
    peer.close()
    with pytest.raises(Unreachable, match="broke"):
        stream.send(Kind.MESSAGE, b"x", soon())
    assert stream.closed


@pytest.mark.parametrize(
    ("offset", "error"), [(0, BadFrame), (4, ProtocolMismatch), (11, BadFrame), (16, Corrupt)]
)
def test_broken_rules_close_the_stream(pair: Pair, offset: int, error: type[Exception]) -> None:
    stream, peer = pair
    frame = bytearray(encode_frame(Kind.MESSAGE, b"abc"))
    frame[offset] ^= 0x80
    peer.sendall(frame)
    with pytest.raises(error):
        stream.recv(soon())
    assert stream.closed


def test_too_large_to_send_leaves_the_stream_usable(pair: Pair) -> None:
    stream, _ = pair
    stream.max_frame = 10
    with pytest.raises(BadFrame):
        stream.send(Kind.MESSAGE, b"x" * 11, soon())
    stream.send(Kind.MESSAGE, b"x" * 10, soon())


@pytest.mark.parametrize("seed", range(60))
def test_random_bytes_from_a_peer_end_in_typed_errors(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    left, right = socket.socketpair()
    stream = FrameStream(left, max_frame=1 << 16)
    good = encode_frame(Kind.MESSAGE, rng.randbytes(rng.randrange(100)))
    damaged = bytearray(good * 3)
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    right.sendall(rng.choice([rng.randbytes(rng.randrange(300)), bytes(damaged)]))
    right.close()
    with pytest.raises(TransferError):
        while True:
            stream.recv(soon())
    assert stream.closed
