"""Reading a part of an object. The generation is checked; the CRC-32C is the whole object's, so a
range that is to be verified is read whole."""

from __future__ import annotations

import numpy as np

from moonpool.core.errors import BadSize
from moonpool.pool.client_state import Placement
from moonpool.pool.ports import Status
from moonpool.pool.protocol import Context, Protocol
from moonpool.pool.protocol_get import LOOKS_MAX, fetch, lookup, touch
from moonpool.pool.protocol_pieces import Piece, read_pieces
from moonpool.pool.protocol_read import touch_below
from moonpool.pool.results import Hit, Miss, MissReason


def get_range(
    context: Context, key: bytes, offset: int, size: int, verify: bool
) -> Protocol[Hit | Miss]:
    """At most `size` bytes from `offset` on; fewer where the object ends. Raises BadSize when the
    offset is beyond the object."""
    if verify:
        (answer,) = yield from fetch(context, [key], None, verify=True)
        if isinstance(answer, Miss):
            return answer
        assert answer.data is not None
        length = _length(key, answer.size, offset, size)
        return Hit(length, answer.node, answer.data[offset : offset + length])
    cached = context.state.cache.get(key)
    for _ in range(LOOKS_MAX):
        placement = cached if cached is not None else (yield from lookup(context, [key]))[0]
        cached = None
        if isinstance(placement, Miss):
            return placement
        found = yield from _read(context, key, placement, offset, size)
        if found is not None:
            touch(context, [key])
            touch_below(context, placement)
            return found
        context.state.forget(key, placement)
        if context.left() <= 0:
            return Miss(MissReason.DEADLINE)
    return Miss(MissReason.UNREACHABLE, "no copy could be read")


def _read(
    context: Context, key: bytes, placement: Placement, offset: int, size: int
) -> Protocol[Hit | None]:
    length = _length(key, placement.size, offset, size)
    buffer = np.empty(length, np.uint8)
    piece = Piece(placement, offset, buffer)
    yield from read_pieces(context, [piece])
    return Hit(length, piece.node, buffer.tobytes()) if piece.status == Status.OK else None


def _length(key: bytes, whole: int, offset: int, size: int) -> int:
    if offset > whole:
        raise BadSize(f"{key!r} has {whole} bytes; there is nothing at {offset}")
    return min(size, whole - offset)
