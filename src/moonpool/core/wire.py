"""Framing of the control plane: one header, one payload, over any byte stream. Never a pickle.

Header, 16 bytes, little endian; magic and version keep their place in every future version:

    offset 0  magic    4 bytes  "MOON"
           4  version  u8
           5  kind     u8       see Kind
           6  flags    u16      0; anything else needs a newer version
           8  length   u32      payload bytes, checked against a limit before any allocation
          12  crc      u32      CRC-32C of the payload

A stream that once broke the rules stays broken: the caller closes it.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from moonpool._core import crc32c, frame_of, payload_of
from moonpool.core.errors import BadFrame, Corrupt, ProtocolMismatch, TransferError, Unreachable
from moonpool.core.units import format_bytes

MAGIC = b"MOON"
PROTOCOL_VERSION = 1
HEADER_BYTES = 16
MAX_FRAME = 64 << 20
"""Payload bytes at most; an inventory chunk of 32 Ki slots with long keys is below half of it."""
MAX_HANDSHAKE_FRAME = 4096
"""The limit until the peer has proved the token."""

_HEADER = struct.Struct("<4sBBHII")
_START = struct.Struct("<4sBBH")  # of a header, up to the length


class Kind(IntEnum):
    """What a payload is. 1-5 are the handshake (see handshake.py), then only MESSAGE flows."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSAL = 5
    MESSAGE = 6


MESSAGE: Final = Kind.MESSAGE  # in Python 3.11 to name a member costs 0.2 us
# A look-up takes a third of the time of Kind(number).
_KINDS = {int(kind): kind for kind in Kind}
_STARTS = {kind: _START.pack(MAGIC, PROTOCOL_VERSION, kind, 0) for kind in Kind}
_MESSAGE_START = _STARTS[MESSAGE]


class Frame(NamedTuple):
    kind: Kind
    payload: bytes


class Header(NamedTuple):
    kind: Kind
    length: int
    crc: int


def encode_frame(kind: Kind, payload: bytes, max_frame: int = MAX_FRAME) -> bytes:
    """Header and payload. Raises BadFrame for a payload the peer would refuse."""
    length = len(payload)
    if length > max_frame:
        raise BadFrame(f"frame of {format_bytes(length)} is over {_limit(max_frame)}; split it")
    return frame_of(_STARTS[kind], payload)


def whole_message(
    buffer: bytes | bytearray | memoryview, received: int, max_frame: int = MAX_FRAME
) -> Frame | None:
    """The message that the first `received` bytes of `buffer` are, no more and no less: the most
    usual case of all. None for whatever else it may be: the long way finds out."""
    payload = payload_of(_MESSAGE_START, buffer, received, max_frame)
    return None if payload is None else Frame(MESSAGE, payload)


def decode_header(
    raw: bytes | bytearray | memoryview, offset: int = 0, max_frame: int = MAX_FRAME
) -> Header:
    """The header in the 16 bytes of `raw` from `offset`.

    Raises BadFrame (no frame of ours, or over the limit) and ProtocolMismatch (another version).
    """
    magic, version, number, flags, length, crc = _HEADER.unpack_from(raw, offset)
    if magic != MAGIC:
        raise BadFrame(f"the peer does not speak Moonpool: it began a frame with {magic!r}")
    if version != PROTOCOL_VERSION:
        raise ProtocolMismatch(
            f"the peer speaks protocol version {version}, this side {PROTOCOL_VERSION}; "
            "run the same release of Moonpool on both"
        )
    kind = _KINDS.get(number)
    if kind is None or flags:
        raise BadFrame(f"unknown frame: kind {number}, flags {flags:#x}")
    if length > max_frame:
        raise BadFrame(f"a frame announces {format_bytes(length)}, over {_limit(max_frame)}")
    return Header(kind, length, crc)


def check_payload(header: Header, payload: bytes) -> Frame:
    """The frame, once its payload is whole; raises Corrupt when the checksum differs."""
    if crc32c(payload) != header.crc:
        raise Corrupt(f"a {header.kind.name} frame of {header.length} bytes has a wrong checksum")
    return Frame(header.kind, payload)


class FrameDecoder:
    """Frames out of a stream that arrives in pieces of any size (for asyncio protocols).

    Holds at most one unfinished frame. `max_frame` may be raised once the peer is known.
    """

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.max_frame = max_frame
        self._pending = bytearray()
        self._header: Header | None = None
        self._broken: TransferError | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes received of the frame that is not whole yet."""
        return len(self._pending) + (HEADER_BYTES if self._header else 0)

    def feed(self, piece: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that `piece` completes. Raises like decode_header and check_payload, and
        the same again ever after; frames before the broken one are lost with their stream."""
        if self._broken is not None:
            raise self._broken
        try:
            if not self._pending:  # the usual case: whole frames, taken straight from the piece
                if self._header is None:
                    frame = whole_message(piece, len(piece), self.max_frame)
                    if frame is not None:
                        return [frame]
                frames, used = self._split(piece)
                self._pending += memoryview(piece)[used:]
            else:
                self._pending += piece
                frames, used = self._split(self._pending)
                del self._pending[:used]
        except TransferError as error:
            self._broken = error
            self._pending = bytearray()
            raise
        return frames

    def feed_eof(self) -> None:
        """The stream ended; raises Unreachable when it did so inside a frame."""
        if self._broken is None and self.pending_bytes:
            raise cut_short(self.pending_bytes, self._header)

    def _split(self, source: bytes | bytearray | memoryview) -> tuple[list[Frame], int]:
        """The whole frames at the start of `source`, and how many of its bytes they take, with
        the header of the next one when that is there."""
        frames: list[Frame] = []
        start, end, header = 0, len(source), self._header
        with memoryview(source) as view:
            while True:
                if header is None:
                    if end - start < HEADER_BYTES:
                        break
                    header = decode_header(source, start, self.max_frame)
                    start += HEADER_BYTES
                stop = start + header.length
                if stop > end:
                    break
                frames.append(check_payload(header, bytes(view[start:stop])))
                start, header = stop, None
        self._header = header
        return frames, start


def cut_short(got: int, header: Header | None) -> Unreachable:
    """The stream ended inside a frame: the peer died or was cut off while it was sending."""
    whole = HEADER_BYTES + header.length if header else HEADER_BYTES
    what = header.kind.name if header else "frame header"
    return Unreachable(f"the connection ended inside a {what}: {got} of {whole} bytes arrived")


def _limit(max_frame: int) -> str:
    return f"the limit of {format_bytes(max_frame)}"
