"""What an indexer is: it looks at a query and the keys of all tokens, and says which k matter.

Pure: arrays in, positions out. Chosen positions ascend; of equal scores the lower position wins;
with k >= n all n tokens are chosen, so that sparse attention is dense attention then.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from moonpool.core.errors import BadInput
from moonpool.sparse.layout import U8, U32

F32 = NDArray[np.float32]


class Indexer(Protocol):
    """Chooses tokens of one layer. `index` is what `load_index` gave of it."""

    @property
    def index_bytes(self) -> int:
        """Of one token, in the layout of its prefixes."""
        ...

    def scores(self, query: Any, index: U8, tokens: int) -> F32:
        """f32[tokens]; what a query is, each indexer says."""
        ...


def choose(indexer: Indexer, query: Any, index: U8, tokens: int, top_k: int) -> U32:
    """The top-k of one layer, ascending u32[min(top_k, tokens)]."""
    return top_positions(indexer.scores(query, index, tokens), top_k)


def top_positions(scores: NDArray[Any], top_k: int) -> U32:
    """Positions of the `top_k` highest scores, ascending; ties by lower position. Raises BadInput
    for no column, k below 1 or scores that are not numbers."""
    if scores.ndim != 1 or top_k < 1:
        raise BadInput(f"one column of scores and a k above 0, not {scores.shape} and {top_k}")
    if np.isnan(scores).any():
        raise BadInput("a score is not a number")
    tokens = len(scores)
    if top_k >= tokens:
        return np.arange(tokens, dtype=np.uint32)
    threshold = np.partition(scores, tokens - top_k)[tokens - top_k]
    above = np.flatnonzero(scores > threshold)
    equal = np.flatnonzero(scores == threshold)[: top_k - len(above)]
    return np.sort(np.concatenate([above, equal])).astype(np.uint32)


def as_pages(index: U8, page_bytes: int, tokens: int, page_tokens: int) -> U8:
    """u8[pages, page_bytes], checked. Raises BadInput for keys of another shape."""
    pages = -(-tokens // page_tokens)
    if index.dtype != np.uint8 or index.size != pages * page_bytes:
        raise BadInput(
            f"keys of {tokens} tokens are {pages} pages of {page_bytes} bytes, not {index.shape}"
        )
    return index.reshape(pages, page_bytes)
