"""Prefixes whose every row says whose it is: owner, layer, token. A row of two owners, or of
another token, cannot pass for a good one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moonpool.sparse import SparseLayout, SparsePool

U8 = NDArray[np.uint8]
SMALL = SparseLayout(layers=3, entry_bytes=656, index_bytes=132)


def rows_of(layout: SparseLayout, owner: int, layer: int, tokens: Any) -> U8:
    """u8[n, entry_bytes]: every 8-byte word of a row mixes owner, layer, token and its place."""
    token = np.asarray(tokens, np.uint64)[:, None]
    place = np.arange(-(-layout.entry_bytes // 8), dtype=np.uint64)[None, :]
    seed = np.uint64((owner * 1_000_003 + layer) * 2 + 1)
    with np.errstate(over="ignore"):
        words = (token * np.uint64(0x9E3779B97F4A7C15) + place) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ seed) * np.uint64(0x94D049BB133111EB)
    rows: U8 = np.ascontiguousarray(words).view(np.uint8)[:, : layout.entry_bytes]
    return np.ascontiguousarray(rows)


def index_of(layout: SparseLayout, owner: int, layer: int, tokens: int) -> U8:
    """u8[pages, index_page_bytes]."""
    pages = layout.pages(tokens)
    count = pages * layout.index_page_bytes
    base = np.arange(count, dtype=np.uint32) * np.uint32(2654435761)
    keys: U8 = (base >> np.uint32(13)).astype(np.uint8) ^ np.uint8((owner * 7 + layer) % 256)
    return keys.reshape(pages, layout.index_page_bytes)


def write(pool: SparsePool, key: str, owner: int, tokens: int, *, seal: bool = True) -> None:
    layout = pool.layout
    with pool.writer(key, tokens) as writer:
        for layer in range(layout.layers):
            index = index_of(layout, owner, layer, tokens) if layout.index_bytes else None
            writer.put(layer, 0, rows_of(layout, owner, layer, range(tokens)), index)
        if seal:
            writer.seal(tokens)
        else:
            writer.commit(tokens)


def small_pool(folder: Path, tokens: int = 1024, devices: int = 1, **options: Any) -> SparsePool:
    paths = [folder / f"device{number}" for number in range(devices)]
    return SparsePool.create(paths, SMALL, tokens, **options)
