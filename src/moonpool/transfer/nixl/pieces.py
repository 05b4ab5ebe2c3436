"""A transfer as ranges in two address spaces, cut into pieces of bounded size. Pure.

A piece is what NIXL is asked for at once: it cannot be stopped, so it must not be long.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from moonpool.transfer.base import U64

DRAM: Final = "DRAM"
FILE: Final = "FILE"
PIECE_BYTES: Final = 4 << 20
PIECE_BLOCKS: Final = 4096


class Piece(NamedTuple):
    """`near` and `far` are u64[n, 3]: address, bytes, device. `first` is the index of its first
    block and `blocks` how many it has; where blocks are cut, `blocks` is 0."""

    near: U64
    far: U64
    first: int
    blocks: int


class Far(NamedTuple):
    """The other end as NIXL knows it: whose it is, where it begins, on which device (a file's is
    its descriptor), and the kind of memory."""

    agent: str
    address: int
    device: int = 0
    kind: str = DRAM


def rows_of(base: int, offsets: U64, lengths: U64, device: int = 0) -> U64:
    """u64[n, 3]: address, bytes, device."""
    rows = np.empty((len(offsets), 3), dtype=np.uint64)
    np.add(offsets, np.uint64(base), out=rows[:, 0])
    rows[:, 1] = lengths
    rows[:, 2] = device
    return rows


def cut(near: U64, far: U64, piece_bytes: int = PIECE_BYTES) -> list[Piece]:
    """Pieces of at most `piece_bytes` and PIECE_BLOCKS, in order. Rows of no bytes are left out."""
    if 0 < len(near) <= PIECE_BLOCKS and int(near[:, 1].sum()) <= piece_bytes and near[:, 1].all():
        return [Piece(near, far, 0, len(near))]
    return list(_pieces(near, far, piece_bytes))


def _pieces(near: U64, far: U64, piece_bytes: int) -> Iterator[Piece]:
    lengths = near[:, 1].astype(np.int64)
    start = size = 0
    for index, length in enumerate(lengths.tolist()):
        if length > piece_bytes or length == 0:
            if start < index:
                yield _whole(near, far, start, index)
            yield from _parts(near[index], far[index], length, piece_bytes)
            start, size = index + 1, 0
            continue
        if size + length > piece_bytes or index - start == PIECE_BLOCKS:
            yield _whole(near, far, start, index)
            start, size = index, 0
        size += length
    if start < len(lengths):
        yield _whole(near, far, start, len(lengths))


def _whole(near: U64, far: U64, start: int, end: int) -> Piece:
    return Piece(near[start:end], far[start:end], start, end - start)


def _parts(near: U64, far: U64, length: int, piece_bytes: int) -> Iterator[Piece]:
    for offset in range(0, length, piece_bytes):
        size = min(piece_bytes, length - offset)
        rows = [
            np.array([[int(row[0]) + offset, size, int(row[2])]], dtype=np.uint64)
            for row in (near, far)
        ]
        yield Piece(rows[0], rows[1], 0, 0)
