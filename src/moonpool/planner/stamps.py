"""Block contents that prove themselves: every byte follows from (block id, seed).

A replay writes stamped blocks and checks each byte it reads back, so a figure it prints stands on
bytes that were really there. A block of words: id, seed, then a fixed random pattern xor-ed with
a value mixed from both. Two different blocks differ in every word of the pattern, so a torn, mixed
or foreign block is seen, and so is one whose words changed places.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from moonpool.core.errors import BadSize

Words = NDArray[np.uint64]

HEADER_BYTES: Final = 16
_MASK: Final = (1 << 64) - 1


class Stamper:
    """Makes and checks the contents of blocks of `block_bytes` bytes under one seed.

    Raises BadSize unless `block_bytes` is a multiple of 8 and holds at least header and one word.
    """

    def __init__(self, block_bytes: int, seed: int) -> None:
        if block_bytes % 8 or block_bytes <= HEADER_BYTES:
            raise BadSize(
                f"a stamped block is a multiple of 8 bytes above {HEADER_BYTES}, not {block_bytes}"
            )
        self.block_bytes = block_bytes
        self._seed = np.uint64(seed & _MASK)
        self._pattern = _mix(np.arange(block_bytes // 8, dtype=np.uint64))

    def fill(self, ids: NDArray[np.uint64], out: NDArray[np.uint8]) -> None:
        """Write the contents of `ids` u64[n] into `out` u8[n, block_bytes]."""
        words = out.view(np.uint64)
        np.bitwise_xor(self._pattern, self._base(ids)[:, None], out=words)
        words[:, 0] = ids
        words[:, 1] = self._seed

    def verify(self, ids: NDArray[np.uint64], blocks: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Which of `blocks` u8[n, block_bytes] are, in every byte, the contents of `ids` u64[n]."""
        expected = np.empty_like(blocks)
        self.fill(ids, expected)
        same: NDArray[np.bool_] = (blocks.view(np.uint64) == expected.view(np.uint64)).all(axis=1)
        return same

    def _base(self, ids: NDArray[np.uint64]) -> Words:
        return _mix(ids ^ _mix(np.array([self._seed]))[0])


def _mix(values: Words) -> Words:
    """The finalizer of splitmix64 after one step: a bijection of 64-bit words (Steele, 2014)."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
