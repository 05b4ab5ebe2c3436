"""The file of a snapshot: frames, each with its length and CRC-32C. No I/O.

    "MPSNAP" version u16   then frames:   length u32, CRC-32C u32 of the payload, payload (msgpack)
    Head   Part Rows Rows ...   Part Rows ...   End

A file without its End, or with anything after it, was not written to its end and is no snapshot.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from moonpool._core import crc32c
from moonpool.core.errors import BadFrame, Corrupt
from moonpool.pool.messages_node import InventoryChunk

VERSION = 1
MAGIC = b"MPSNAP" + struct.pack("<H", VERSION)
FRAME_MAX = 64 << 20
_HEADER = struct.Struct("<II")

Read = Callable[[int, int], bytes]  # offset, length; fewer bytes at the end


class Head(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Who wrote it, and when."""

    term: int
    wall_ms: int


class Part(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """The rows of one segment follow, as they are but for what its agent numbered after `since`."""

    incarnation: bytes
    slots: int
    since: int


class End(msgspec.Struct, array_like=True, frozen=True, tag=3):
    frames: int  # before this one


# Rows travel as a node's own report of them; `last_used` is their rank, the coldest first.
Record = Head | Part | InventoryChunk | End

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


class Place(NamedTuple):
    """Where a frame's payload lies."""

    offset: int
    length: int
    crc: int


def frame_of(record: Record) -> bytes:
    """Its bytes in the file."""
    payload = _encoder.encode(record)
    return _HEADER.pack(len(payload), crc32c(payload)) + payload


def places_of(read: Read, size: int) -> list[Place]:
    """All frames of a file of `size` bytes, unread. Raises BadFrame: it is cut, or no snapshot."""
    if read(0, len(MAGIC)) != MAGIC:
        raise BadFrame("no snapshot of this version")
    places, offset = [], len(MAGIC)
    while offset < size:
        header = read(offset, _HEADER.size)
        if len(header) < _HEADER.size:
            raise BadFrame(f"cut at byte {size}")
        length, crc = _HEADER.unpack(header)
        offset += _HEADER.size
        if length > FRAME_MAX or offset + length > size:
            raise BadFrame(f"a frame of {length} bytes at {offset}, the file has {size}")
        places.append(Place(offset, length, crc))
        offset += length
    return places


def record_at(read: Read, place: Place) -> Record:
    """Raises Corrupt, BadFrame."""
    payload = read(place.offset, place.length)
    if len(payload) != place.length or crc32c(payload) != place.crc:
        raise Corrupt(f"the frame at byte {place.offset} is not what was written")
    try:
        return _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise BadFrame(f"the frame at byte {place.offset}: {error}") from None
