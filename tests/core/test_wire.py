"""Frames: golden bytes, limits, broken streams, random streams."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool._core import crc32c
from moonpool.core.errors import (
    BadFrame,
    Corrupt,
    MoonpoolError,
    ProtocolMismatch,
    TransferError,
    Unreachable,
)
from moonpool.core.wire import (
    HEADER_BYTES,
    MAX_FRAME,
    PROTOCOL_VERSION,
    Frame,
    FrameDecoder,
    Kind,
    encode_frame,
    whole_message,
)

# Written down once; a change of any of these bytes needs a new protocol version.
GOLDEN = [
    (Kind.MESSAGE, b"", "4d4f4f4e010600000000000000000000"),
    (Kind.HELLO, b"hello", "4d4f4f4e01010000050000004cbb719a68656c6c6f"),
    (Kind.REFUSAL, b"\x00\xff", "4d4f4f4e010500000200000083241c5c00ff"),
]


@pytest.mark.parametrize(("kind", "payload", "text"), GOLDEN)
def test_golden_vectors(kind: Kind, payload: bytes, text: str) -> None:
    assert encode_frame(kind, payload).hex() == text
    assert FrameDecoder().feed(bytes.fromhex(text)) == [Frame(kind, payload)]


@given(
    st.lists(st.tuples(st.sampled_from(list(Kind)), st.binary(max_size=200)), max_size=8),
    st.lists(st.integers(1, 60), min_size=1, max_size=10),
)
def test_pieces_of_any_size(sent: list[tuple[Kind, bytes]], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(kind, payload) for kind, payload in sent)
    decoder = FrameDecoder()
    got: list[Frame] = []
    position, turn = 0, 0
    while position < len(stream):
        step = cuts[turn % len(cuts)]
        got += decoder.feed(stream[position : position + step])
        position, turn = position + step, turn + 1
    decoder.feed_eof()
    assert got == [Frame(kind, payload) for kind, payload in sent]


@given(st.binary(max_size=100), st.integers(0, 130), st.integers(0, 7))
def test_a_whole_message_is_seen_at_once_and_nothing_else_is(
    payload: bytes, at: int, bit: int
) -> None:
    frame = encode_frame(Kind.MESSAGE, payload)
    room = bytearray(frame) + b"more"
    assert whole_message(room, len(frame)) == Frame(Kind.MESSAGE, payload)
    for received in (0, 15, len(frame) - 1, len(frame) + 1, len(room) + 1):
        assert whole_message(room, received) is None
    assert whole_message(encode_frame(Kind.PROOF, payload), len(frame)) is None
    assert (whole_message(frame, len(frame), 50) is None) == (len(payload) > 50)
    room[at % len(frame)] ^= 1 << bit
    assert whole_message(room, len(frame)) is None


def test_an_announced_length_is_refused_before_the_payload_comes() -> None:
    header = struct.pack("<4sBBHII", b"MOON", PROTOCOL_VERSION, 6, 0, 2**32 - 1, 0)
    decoder = FrameDecoder()
    with pytest.raises(BadFrame, match="announces 4 GiB, over the limit of 64 MiB"):
        decoder.feed(header)
    assert decoder.pending_bytes == 0


def test_the_sender_refuses_what_the_peer_would() -> None:
    with pytest.raises(BadFrame, match="split it"):
        encode_frame(Kind.MESSAGE, b"x" * 11, max_frame=10)


def test_the_limit_may_grow_once_the_peer_is_known() -> None:
    decoder = FrameDecoder(max_frame=4)
    decoder.max_frame = MAX_FRAME
    assert decoder.feed(encode_frame(Kind.MESSAGE, b"x" * 100))[0].payload == b"x" * 100


def test_another_version_names_both() -> None:
    frame = bytearray(encode_frame(Kind.MESSAGE, b""))
    frame[4] = 9
    with pytest.raises(ProtocolMismatch, match="version 9, this side 1"):
        FrameDecoder().feed(frame)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [(0, 0x47, "does not speak Moonpool"), (5, 0, "kind 0"), (5, 77, "kind 77"), (6, 1, "0x1")],
)
def test_a_wrong_header(offset: int, value: int, message: str) -> None:
    frame = bytearray(encode_frame(Kind.MESSAGE, b"abc"))
    frame[offset] = value
    with pytest.raises(BadFrame, match=message):
        FrameDecoder().feed(frame)


def test_a_flipped_bit_is_seen() -> None:
    frame = bytearray(encode_frame(Kind.MESSAGE, b"abc"))
    frame[-1] ^= 1
    with pytest.raises(Corrupt, match="MESSAGE frame of 3 bytes"):
        FrameDecoder().feed(frame)


@pytest.mark.parametrize(("cut", "message"), [(7, "frame header: 7 of 16"), (18, "18 of 19")])
def test_a_stream_that_ends_inside_a_frame(cut: int, message: str) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(encode_frame(Kind.MESSAGE, b"abc")[:cut]) == []
    with pytest.raises(Unreachable, match=message):
        decoder.feed_eof()


def test_a_broken_stream_stays_broken() -> None:
    decoder = FrameDecoder()
    with pytest.raises(BadFrame):
        decoder.feed(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(BadFrame, match="does not speak"):
        decoder.feed(encode_frame(Kind.MESSAGE, b""))
    decoder.feed_eof()


@pytest.mark.parametrize("seed", range(200))
def test_random_and_damaged_streams_end_in_typed_errors(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    stream = bytearray(rng.randbytes(rng.randrange(200)))
    if seed % 2:
        frames = [encode_frame(rng.choice(list(Kind)), rng.randbytes(rng.randrange(80)))]
        stream = bytearray(b"".join(frames * 3))
        for _ in range(rng.randrange(1, 4)):
            stream[rng.randrange(len(stream))] = rng.randrange(256)
    decoder = FrameDecoder(max_frame=1 << 16)
    try:
        while stream:
            step = rng.randrange(1, 40)
            for frame in decoder.feed(stream[:step]):
                assert len(frame.payload) <= 1 << 16
            del stream[:step]
            assert decoder.pending_bytes <= HEADER_BYTES + (1 << 16)
        decoder.feed_eof()
    except TransferError as error:
        assert isinstance(error, MoonpoolError)


def test_the_checksum_is_the_one_of_stored_bytes() -> None:
    frame = encode_frame(Kind.MESSAGE, b"abc")
    assert struct.unpack_from("<I", frame, 12) == (crc32c(b"abc"),)
