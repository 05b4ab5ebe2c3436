"""From tokens to byte ranges: which bytes of a prefill rank's blocks go where in a decode rank's.

Both ends compute the same ranges from the two layouts, so the sender can send and the receiver
can verify without a word about bytes between them. Pure.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moonpool.core.errors import BadInput
from moonpool.transfer.handoff.layout import KVLayout, check_fit

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
Ids = Sequence[int] | NDArray[np.integer[Any]]
"""Block ids, of any integer type."""


class Ranges(NamedTuple):
    """Equal runs of bytes in one part of a layer: u64[n] each. Offsets count from the start of the
    part's block 0."""

    source: U64
    target: U64
    lengths: U64

    @property
    def nbytes(self) -> int:
        return int(self.lengths.sum())


class BlockMap:
    """The mapping between one prefill rank and one decode rank.

    `source_stride` and `target_stride` are the bytes from a block to the next in a part. Raises
    LayoutMismatch when the layouts do not fit.
    """

    def __init__(
        self,
        source: KVLayout,
        target: KVLayout,
        source_stride: int | None = None,
        target_stride: int | None = None,
    ) -> None:
        check_fit(source, target)
        self.source, self.target = source, target
        self.source_stride = source.block_bytes if source_stride is None else source_stride
        self.target_stride = target.block_bytes if target_stride is None else target_stride
        low = max(source.heads.start, target.heads.start)
        high = min(source.heads.stop, target.heads.stop)
        self.heads = range(low, max(low, high))
        self.equal = (
            source.block_tokens == target.block_tokens and source.heads == target.heads
        ) or source.order == "opaque"

    @property
    def step_tokens(self) -> int:
        """A push that is not the last one ends at a multiple of this, so that no block is sent
        twice."""
        return math.lcm(self.source.block_tokens, self.target.block_tokens)

    def ranges(
        self, source_blocks: I64, target_blocks: I64, target_first: int, first: int, last: int
    ) -> Ranges:
        """The bytes of tokens [first, last), as few ranges as can be; see pieces()."""
        return _merged(*self.pieces(source_blocks, target_blocks, target_first, first, last))

    def pieces(
        self, source_blocks: I64, target_blocks: I64, target_first: int, first: int, last: int
    ) -> Ranges:
        """The bytes of tokens [first, last) of a prompt. `source_blocks` are the prompt's from
        token 0; `target_blocks` those from token `target_first` on, a multiple of a block.

        Between equal geometries whole blocks move, also the one in which `last` lies. Which pieces
        there are does not depend on the blocks' ids, so both ends can sum them up alike. Raises
        BadInput when tokens lie outside of the given blocks.
        """
        source, target = self.source, self.target
        if target_first % target.block_tokens or not target_first <= first <= last:
            raise BadInput(f"tokens {first}..{last} do not follow decode's first, {target_first}")
        have = len(source_blocks) * source.block_tokens
        room = target_first + len(target_blocks) * target.block_tokens
        if last > min(have, room):
            raise BadInput(f"token {last} lies past {have} at the prefill side or {room} at decode")
        if self.equal:
            return self._whole(source_blocks, target_blocks, target_first, first, last)
        return self._pieces(source_blocks, target_blocks, target_first, first, last)

    def _whole(
        self, source_blocks: I64, target_blocks: I64, target_first: int, first: int, last: int
    ) -> Ranges:
        size = self.source.block_tokens
        begin, end = first // size, -(-last // size)
        skip = target_first // size
        mine = np.asarray(source_blocks[begin:end], dtype=np.int64) * self.source_stride
        theirs = np.asarray(target_blocks[begin - skip : end - skip], dtype=np.int64)
        theirs = theirs * self.target_stride
        return _unsigned(mine, theirs, np.full(len(mine), self.source.block_bytes, dtype=np.int64))

    def _pieces(
        self, source_blocks: I64, target_blocks: I64, target_first: int, first: int, last: int
    ) -> Ranges:
        source, target = self.source, self.target
        cuts = {first, last}
        cuts.update(range(first - first % source.block_tokens, last, source.block_tokens))
        cuts.update(range(first - first % target.block_tokens, last, target.block_tokens))
        if source.order == "NHD" and source.heads != target.heads:
            cuts.update(range(first, last))  # a token's heads lie together: one run a token
        edges = np.array(sorted(cut for cut in cuts if first <= cut <= last), dtype=np.int64)
        starts, counts = edges[:-1], np.diff(edges)
        mine = self._start(source, source_blocks, self.source_stride, starts)
        theirs = self._start(target, target_blocks, self.target_stride, starts - target_first)
        unit = source.token_bytes
        if source.order == "NHD":
            from_source = (self.heads.start - source.heads.start) * unit
            from_target = (self.heads.start - target.heads.start) * unit
            lengths = counts * (len(self.heads) * unit)
            return _unsigned(mine + from_source, theirs + from_target, lengths)
        heads = np.arange(self.heads.start, self.heads.stop, dtype=np.int64)
        at_source = (heads - source.heads.start) * (source.block_tokens * unit)
        at_target = (heads - target.heads.start) * (target.block_tokens * unit)
        return _unsigned(
            (mine[:, None] + at_source).reshape(-1),
            (theirs[:, None] + at_target).reshape(-1),
            np.repeat(counts * unit, len(heads)),
        )

    @staticmethod
    def _start(layout: KVLayout, blocks: I64, stride: int, tokens: I64) -> I64:
        """Where tokens (counted from the first block's) begin, for the first head here."""
        step = layout.token_bytes * (len(layout.heads) if layout.order == "NHD" else 1)
        ids = np.asarray(blocks, dtype=np.int64)[tokens // layout.block_tokens]
        begin: I64 = ids * stride + tokens % layout.block_tokens * step
        return begin


def _unsigned(source: I64, target: I64, lengths: I64) -> Ranges:
    return Ranges(source.astype(np.uint64), target.astype(np.uint64), lengths.astype(np.uint64))


def _merged(source: U64, target: U64, lengths: U64) -> Ranges:
    """Runs that follow each other at both ends become one."""
    if len(lengths) > 1:
        follows = (source[1:] == source[:-1] + lengths[:-1]) & (
            target[1:] == target[:-1] + lengths[:-1]
        )
        heads = np.flatnonzero(np.concatenate(([True], ~follows)))
        lengths = np.add.reduceat(lengths, heads)
        source, target = source[heads], target[heads]
    return Ranges(source, target, lengths)
