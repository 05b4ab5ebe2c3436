"""Bytes of the disk tier's files: buckets with objects, and the index of what is in them. Pure.

    bucket   header | object header, key, parent, padding, data | ...   each at a multiple of align
    index    header | record | record | ...        record: marker, CRC-32C, length, kind, payload

An object header repeats all that the index says. Its first byte after the magic is the one byte
ever written twice: it says removed, so that a lost piece of the index brings nothing back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from moonpool._core import crc32c
from moonpool.pool.tiers.base import Entry

FORMAT_VERSION = 1
KEY_BYTES_MAX = 1024

BUCKET_MAGIC, INDEX_MAGIC, OBJECT_MAGIC = b"MPBK", b"MPIX", b"MPOB"
_FILE = struct.Struct("<4sHH16sQ")  # magic, version, align, incarnation, number
FILE_HEADER_BYTES = _FILE.size + 4

LIVE, REMOVED = 1, 2
STATE_OFFSET = 4
#                        magic state version key parent term seq size generation crc tenant expiry
_OBJECT = struct.Struct("<4s B B H H 2x Q Q Q Q I I q I B B 2x 16s I")
OBJECT_HEADER_BYTES = _OBJECT.size
HEAD_BYTES_MAX = OBJECT_HEADER_BYTES + 2 * KEY_BYTES_MAX
_CRC_AT = OBJECT_HEADER_BYTES - 4

MARKER = b"\xa5\x5a"
_RECORD = struct.Struct("<2sIIB")
RECORD_BYTES = _RECORD.size
_PLACE = struct.Struct("<QQI")  # bucket, offset, bytes of the whole object on disk
_NAME = struct.Struct("<IQ")  # slot, generation


class Kind(IntEnum):
    PUT = 1
    REMOVE = 2
    NOTES = 3
    OPENED = 4  # payload: 1 when writes reach the medium before they count, then the boot id
    CLOSED = 5


class FileHeader(NamedTuple):
    align: int
    incarnation: bytes
    number: int


class Place(NamedTuple):
    bucket: int
    offset: int
    length: int


class Record(NamedTuple):
    kind: Kind
    payload: bytes


class Replay(NamedTuple):
    """An index as read: `end` is where the next record belongs, `lost` counts the bytes inside
    that are no records, `torn` those after the last whole one."""

    records: list[Record]
    end: int
    lost: int
    torn: int


def aligned(length: int, align: int) -> int:
    return -(-length // align) * align


def file_header(magic: bytes, align: int, incarnation: bytes, number: int) -> bytes:
    head = _FILE.pack(magic, FORMAT_VERSION, align, incarnation, number)
    return head + struct.pack("<I", crc32c(head))


def parse_file_header(raw: bytes, magic: bytes) -> FileHeader | None:
    """None: no whole header of this kind and version."""
    if len(raw) < FILE_HEADER_BYTES:
        return None
    head = raw[: _FILE.size]
    found, version, align, incarnation, number = _FILE.unpack(head)
    (crc,) = struct.unpack_from("<I", raw, _FILE.size)
    if found != magic or version != FORMAT_VERSION or crc != crc32c(head) or align == 0:
        return None
    return FileHeader(align, incarnation, number)


def object_header(entry: Entry, incarnation: bytes) -> bytes:
    """Header, key and parent, as they stand before the data."""
    head = _OBJECT.pack(
        OBJECT_MAGIC,
        LIVE,
        FORMAT_VERSION,
        len(entry.key),
        len(entry.parent),
        entry.term,
        entry.sequence,
        entry.size,
        entry.generation,
        entry.crc,
        entry.tenant,
        entry.expiry_ms,
        entry.slot,
        entry.replicas,
        entry.pin,
        incarnation,
        0,
    )
    names = entry.key + entry.parent
    crc = crc32c(head[STATE_OFFSET + 1 : _CRC_AT] + names)
    return head[:_CRC_AT] + struct.pack("<I", crc) + names


def parse_object_header(raw: bytes | memoryview, incarnation: bytes) -> Entry | None:
    """None unless it is whole, live, and of this incarnation."""
    if len(raw) < OBJECT_HEADER_BYTES:
        return None
    (magic, state, version, key_len, parent_len, term, sequence, size, generation, crc) = (
        _OBJECT.unpack_from(raw)[:10]
    )
    tenant, expiry_ms, slot, replicas, pin, owner, head_crc = _OBJECT.unpack_from(raw)[10:]
    end = OBJECT_HEADER_BYTES + key_len + parent_len
    if magic != OBJECT_MAGIC or state != LIVE or version != FORMAT_VERSION or len(raw) < end:
        return None
    names = bytes(raw[OBJECT_HEADER_BYTES:end])
    if owner != incarnation or crc32c(bytes(raw[STATE_OFFSET + 1 : _CRC_AT]) + names) != head_crc:
        return None
    key, parent = names[:key_len], names[key_len:]
    return Entry(
        *(slot, generation, key, parent, term, sequence, size, crc, tenant, expiry_ms),
        *(replicas, pin),
    )


def data_offset(entry: Entry, align: int) -> int:
    """Where the data begins, counted from the object's header."""
    return aligned(OBJECT_HEADER_BYTES + len(entry.key) + len(entry.parent), align)


def record(kind: Kind, payload: bytes) -> bytes:
    tail = struct.pack("<IB", len(payload), kind) + payload
    return MARKER + struct.pack("<I", crc32c(tail)) + tail


def put_record(entry: Entry, place: Place, incarnation: bytes) -> bytes:
    return record(Kind.PUT, _PLACE.pack(*place) + object_header(entry, incarnation))


def parse_put(payload: bytes, incarnation: bytes) -> tuple[Entry, Place] | None:
    if len(payload) < _PLACE.size:
        return None
    entry = parse_object_header(payload[_PLACE.size :], incarnation)
    return None if entry is None else (entry, Place(*_PLACE.unpack_from(payload)))


def remove_record(slot: int, generation: int) -> bytes:
    return record(Kind.REMOVE, _NAME.pack(slot, generation))


def parse_remove(payload: bytes) -> tuple[int, int]:
    slot, generation = _NAME.unpack(payload)
    return slot, generation


def replay(raw: bytes) -> Replay:
    """The records after an index's header. Behind a damaged piece it goes on at the next record
    that is whole."""
    found: list[Record] = []
    lost, end, at = 0, FILE_HEADER_BYTES, FILE_HEADER_BYTES
    for start, stop, one in _whole(raw, at):
        lost += start - end
        found.append(one)
        end = stop
    return Replay(found, end, lost, len(raw) - end)


def _whole(raw: bytes, at: int) -> Iterator[tuple[int, int, Record]]:
    while True:
        at = raw.find(MARKER, at)
        if at < 0 or at + RECORD_BYTES > len(raw):
            return
        _, crc, length, kind = _RECORD.unpack_from(raw, at)
        stop = at + RECORD_BYTES + length
        tail = raw[at + 6 : stop]
        if stop <= len(raw) and crc32c(tail) == crc and kind in Kind._value2member_map_:
            yield at, stop, Record(Kind(kind), tail[5:])
            at = stop
        else:
            at += 1
