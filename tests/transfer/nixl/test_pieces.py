"""How a transfer is cut: every byte once, in order, and nothing too long."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moonpool.transfer.nixl.pieces import PIECE_BLOCKS, cut, rows_of
from tests.transfer.conftest import u64


def flat(rows: list[Any]) -> list[int]:
    """Each byte's address."""
    return [
        byte
        for part in rows
        for address, length, _ in part.tolist()
        for byte in range(address, address + length)
    ]


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 16))
def test_every_byte_once_and_in_order(lengths: list[int], most: int) -> None:
    starts = u64([0, *np.cumsum(lengths)[:-1]] if lengths else [])
    near, far = (rows_of(base, starts, u64(lengths)) for base in (1000, 5000))
    pieces = cut(near, far, most)
    assert flat([piece.near for piece in pieces]) == flat([near])
    assert flat([piece.far for piece in pieces]) == flat([far])
    for piece in pieces:
        assert 0 < piece.near[:, 1].sum() <= most and piece.near[:, 1].all()
        if piece.blocks:
            assert np.array_equal(near[piece.first : piece.first + piece.blocks], piece.near)


def test_the_number_of_blocks_is_bounded() -> None:
    lengths = np.ones(2 * PIECE_BLOCKS + 1, dtype=np.uint64)
    rows = rows_of(0, np.arange(len(lengths), dtype=np.uint64), lengths)
    assert [piece.blocks for piece in cut(rows, rows)] == [PIECE_BLOCKS, PIECE_BLOCKS, 1]
