"""The lightning indexer of DeepSeek sparse attention: score = sum over heads of w * ReLU(q . k).

A page of keys is page_tokens x 128 e4m3 values, then page_tokens fp32 scales; a key is its values
times its scale (DeepSeek-V3.2: 64 heads, head size 128, 132 bytes a token).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moonpool.core.errors import BadInput
from moonpool.sparse.indexers.base import F32, as_pages
from moonpool.sparse.layout import U8

E4M3_MAX = 448.0


class DsaQuery(NamedTuple):
    """Of one token in one layer: `heads` f32[heads, size], `weights` f32[heads]."""

    heads: F32
    weights: F32


class DsaIndexer:
    def __init__(self, head_size: int = 128, page_tokens: int = 64) -> None:
        self._size = head_size
        self._page_tokens = page_tokens

    @property
    def index_bytes(self) -> int:
        return self._size + 4

    def scores(self, query: DsaQuery, index: U8, tokens: int) -> F32:
        heads = np.asarray(query.heads, np.float32)
        weights = np.asarray(query.weights, np.float32)
        if heads.ndim != 2 or heads.shape[1] != self._size or weights.shape != heads.shape[:1]:
            raise BadInput(f"a query of {heads.shape} with weights {weights.shape} is no DSA query")
        keys = self.decode(index, tokens)
        total: F32 = np.maximum(keys @ heads.T, 0) @ weights
        return total

    def encode(self, keys: NDArray[np.floating]) -> U8:
        """f32[tokens, size] as pages u8[pages, page_bytes]; values beyond the last token are 0."""
        tokens = len(keys)
        per_page, size = self._page_tokens, self._size
        pages = -(-tokens // per_page)
        padded = np.zeros((pages * per_page, size), np.float32)
        padded[:tokens] = keys
        scales = np.abs(padded).max(axis=1, initial=0) / np.float32(E4M3_MAX)
        scales[scales == 0] = 1
        codes = to_e4m3(padded / scales[:, None])
        out = np.empty((pages, per_page * (size + 4)), np.uint8)
        out[:, : per_page * size] = codes.reshape(pages, per_page * size)
        tail = scales.astype(np.float32).reshape(pages, per_page)
        out[:, per_page * size :] = tail.view(np.uint8).reshape(pages, per_page * 4)
        return out

    def decode(self, index: U8, tokens: int) -> F32:
        """The keys that scores are made of, f32[tokens, size]."""
        per_page, size = self._page_tokens, self._size
        pages = as_pages(index, per_page * (size + 4), tokens, per_page)
        codes = pages[:, : per_page * size].reshape(-1, size)
        tail = np.ascontiguousarray(pages[:, per_page * size :])
        scales = tail.view(np.float32).reshape(-1)
        keys: F32 = E4M3[codes[:tokens]] * scales[:tokens, None]
        return keys


def _e4m3_values() -> F32:
    """All 256 codes: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    values = np.where(code & 127 == 127, np.nan, values)
    return np.where(code & 128, -values, values).astype(np.float32)


E4M3: F32 = _e4m3_values()


def to_e4m3(values: F32) -> U8:
    """The nearest code of each value, to even where two are as near; at most +-448."""
    ladder = E4M3[:127]  # 0 .. 448, ascending
    size = np.minimum(np.abs(values), np.float32(E4M3_MAX))
    upper = np.searchsorted(ladder, size).clip(1, 126)
    low, high = ladder[upper - 1], ladder[upper]
    middle = (low + high) / 2
    up = (size > middle) | ((size == middle) & (upper % 2 == 0))
    codes = np.where(up, upper, upper - 1).astype(np.uint8)
    return np.where(np.signbit(values), codes | np.uint8(128), codes).astype(np.uint8)
