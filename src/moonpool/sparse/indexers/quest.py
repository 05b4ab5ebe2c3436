"""Quest: a page is as good as its best possible token, by the smallest and largest value of each
channel of its keys. Needs no training (Tang et al., 2024).

A page of keys is f16 min[size], then f16 max[size]; all tokens of a page have the page's score.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moonpool.core.errors import BadInput
from moonpool.sparse.indexers.base import F32, as_pages
from moonpool.sparse.layout import U8


class QuestIndexer:
    """Over keys of `size` channels. A query is f32[size], or f32[heads, size]: the best of them."""

    def __init__(self, size: int, page_tokens: int = 64) -> None:
        if 4 * size % page_tokens:
            raise BadInput(
                f"{size} channels a page are no whole number of bytes for {page_tokens} tokens"
            )
        self._size = size
        self._page_tokens = page_tokens

    @property
    def index_bytes(self) -> int:
        return 4 * self._size // self._page_tokens

    def scores(self, query: NDArray[np.floating], index: U8, tokens: int) -> F32:
        heads = np.atleast_2d(np.asarray(query, np.float32))
        if heads.shape[1] != self._size:
            raise BadInput(f"a query of {heads.shape} does not fit keys of {self._size} channels")
        pages = as_pages(index, 4 * self._size, tokens, self._page_tokens)
        bounds = np.ascontiguousarray(pages).view(np.float16).astype(np.float32)
        low, high = bounds[:, : self._size], bounds[:, self._size :]
        # Of each channel the end that the query likes better.
        best = np.maximum(heads, 0) @ high.T + np.minimum(heads, 0) @ low.T
        return np.repeat(best.max(axis=0), self._page_tokens)[:tokens].astype(np.float32)

    def encode(self, keys: NDArray[np.floating]) -> U8:
        """f32[tokens, size] as pages u8[pages, page_bytes]; bounds are rounded outwards."""
        per_page = self._page_tokens
        pages = -(-len(keys) // per_page)
        out = np.empty((pages, 2, self._size), np.float16)
        for page in range(pages):
            part = np.asarray(keys[page * per_page : (page + 1) * per_page], np.float32)
            out[page, 0] = _rounded(part.min(axis=0), down=True)
            out[page, 1] = _rounded(part.max(axis=0), down=False)
        return out.view(np.uint8).reshape(pages, 4 * self._size)


def _rounded(values: F32, *, down: bool) -> NDArray[np.float16]:
    near = values.astype(np.float16)
    wrong = near.astype(np.float32) > values if down else near.astype(np.float32) < values
    towards = np.float16(-np.inf if down else np.inf)
    return np.where(wrong, np.nextafter(near, towards), near)
