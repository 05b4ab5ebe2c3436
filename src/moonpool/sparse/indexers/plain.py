"""Indexers without an index of their own kind: exact scores, and no look at the query at all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moonpool.core.errors import BadInput
from moonpool.sparse.indexers.base import F32, as_pages
from moonpool.sparse.layout import U8


class OracleIndexer:
    """Exact q . k over whole f32 keys: the best that any indexer of so many tokens can choose.

    A query is f32[size], or f32[heads, size]: a token's score is that of its best head.
    """

    def __init__(self, size: int, page_tokens: int = 64) -> None:
        self._size = size
        self._page_tokens = page_tokens

    @property
    def index_bytes(self) -> int:
        return 4 * self._size

    def scores(self, query: NDArray[np.floating], index: U8, tokens: int) -> F32:
        heads = np.atleast_2d(np.asarray(query, np.float32))
        if heads.shape[1] != self._size:
            raise BadInput(f"a query of {heads.shape} does not fit keys of {self._size} channels")
        page_bytes = self._page_tokens * self.index_bytes
        pages = as_pages(index, page_bytes, tokens, self._page_tokens)
        keys = np.ascontiguousarray(pages).view(np.float32).reshape(-1, self._size)[:tokens]
        best: F32 = (keys @ heads.T).max(axis=1)
        return best

    def encode(self, keys: NDArray[np.floating]) -> U8:
        pages = -(-len(keys) // self._page_tokens)
        padded = np.zeros((pages * self._page_tokens, self._size), np.float32)
        padded[: len(keys)] = keys
        return padded.view(np.uint8).reshape(pages, -1)


class RecencyIndexer:
    """The first `sinks` tokens and then the newest ones; looks at nothing (StreamingLLM)."""

    index_bytes = 0

    def __init__(self, sinks: int = 4) -> None:
        self._sinks = sinks

    def scores(self, query: Any, index: U8, tokens: int) -> F32:
        newest = np.arange(tokens, dtype=np.float32)
        newest[: self._sinks] = tokens
        return newest
