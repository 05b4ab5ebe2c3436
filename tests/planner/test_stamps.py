"""Stamped blocks: whatever is wrong with a block is seen."""

import numpy as np
import pytest
from numpy.typing import NDArray

from moonpool.core.errors import BadSize
from moonpool.planner.stamps import Stamper

IDS = np.array([0, 7, 2**63 + 1], np.uint64)


def blocks_of(stamper: Stamper) -> NDArray[np.uint8]:
    blocks = np.zeros((len(IDS), stamper.block_bytes), np.uint8)
    stamper.fill(IDS, blocks)
    return blocks


def test_what_was_filled_verifies() -> None:
    stamper = Stamper(4096, seed=3)
    assert stamper.verify(IDS, blocks_of(stamper)).tolist() == [True, True, True]


def test_any_single_bit_is_seen() -> None:
    stamper = Stamper(64, seed=3)
    for byte in range(64):
        for bit in range(8):
            blocks = blocks_of(stamper)
            blocks[1, byte] ^= 1 << bit
            assert stamper.verify(IDS, blocks).tolist() == [True, False, True]


@pytest.mark.parametrize("cut", [8, 16, 2048, 4088])
def test_a_torn_block_is_seen(cut: int) -> None:
    stamper = Stamper(4096, seed=3)
    blocks = blocks_of(stamper)
    blocks[0, cut:] = blocks[1, cut:]
    assert not stamper.verify(IDS, blocks)[0]


def test_another_seed_is_seen() -> None:
    blocks = blocks_of(Stamper(4096, seed=3))
    assert not Stamper(4096, seed=4).verify(IDS, blocks).any()


def test_words_that_changed_places_are_seen() -> None:
    stamper = Stamper(4096, seed=3)
    blocks = blocks_of(stamper)
    blocks[0, 16:32] = np.concatenate([blocks[0, 24:32], blocks[0, 16:24]])
    assert not stamper.verify(IDS, blocks)[0]


@pytest.mark.parametrize("size", [0, 16, 100])
def test_a_size_it_cannot_stamp_is_refused(size: int) -> None:
    with pytest.raises(BadSize, match="multiple of 8 bytes above 16"):
        Stamper(size, seed=0)


def test_contents_are_pinned() -> None:
    """Golden: two builds must agree on a seed's bytes."""
    blocks = blocks_of(Stamper(24, seed=3))
    assert blocks[1].tobytes().hex() == "07000000000000000300000000000000893368a0dd9cd87f"
