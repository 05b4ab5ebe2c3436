"""The gather, for a GPU: a program takes a tile of rows and moves them by words of one size.

Only rows.py imports this, inside a function: it needs triton at its top.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gather_rows(
    bases,
    strides,
    positions,
    slots,
    out,
    count,
    layer,
    unit_tokens,
    row_bytes,
    row_words,
    has_slots: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_words: tl.constexpr,
):
    """Row `positions[i]` of `layer` to row i of `out`, or `slots[i]`. `bases` are addresses of each
    unit's first row, `strides` bytes from one layer of it to the next. `out` points to the words
    that rows are moved by."""
    at = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    inside = at < count
    position = tl.load(positions + at, mask=inside, other=0)
    unit = position // unit_tokens
    base = tl.load(bases + unit, mask=inside, other=0)
    stride = tl.load(strides + unit, mask=inside, other=0)
    source = base + layer * stride + (position % unit_tokens) * row_bytes
    word = tl.arange(0, tile_words)
    wanted = inside[:, None] & (word < row_words)[None, :]
    words = tl.load(source.to(out.dtype)[:, None] + word[None, :], mask=wanted, other=0)
    slot = at.to(tl.int64)
    if has_slots:
        slot = tl.load(slots + at, mask=inside, other=0)
    tl.store(out + slot[:, None] * row_words + word[None, :], words, mask=wanted)
