"""What a client asks of a tier's server, and its answer: reads only, whole objects in pieces.

Frames and handshake are the control plane's. Nothing else is ever said here: who removes or writes
is the master's order to the node.
"""

from __future__ import annotations

import msgspec

PIECE_BYTES_MAX = 8 << 20  # of one object in one answer
ANSWER_BYTES_MAX = 32 << 20
BLOCKS_MAX = 4096


class TierRead(msgspec.Struct, array_like=True, frozen=True, tag=60):
    """Pieces of n objects: columns as in a data frame."""

    id: int
    slot: bytes  # u32[n]
    generation: bytes  # u64[n]
    offset: bytes  # u64[n]
    length: bytes  # u64[n], less when the object ends before


class TierPieces(msgspec.Struct, array_like=True, frozen=True, tag=61):
    """`status` u8[n]; `size` u64[n] and `crc` u32[n] of the whole objects; the pieces lie back to
    back, each `length` u64[n] long, 0 where the status is not OK."""

    id: int
    status: bytes
    size: bytes
    crc: bytes
    length: bytes
    pieces: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TierRead | TierPieces)


def encode(message: TierRead | TierPieces) -> bytes:
    return _encoder.encode(message)


def decode(frame: bytes) -> TierRead | TierPieces:
    """Raises msgspec.MsgspecError."""
    return _decoder.decode(frame)
