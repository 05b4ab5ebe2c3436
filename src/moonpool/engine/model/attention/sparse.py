"""Answers that attend to chosen tokens only: training-free indexers over the engine's own pages.

Prompts are computed densely, so their blocks have the bits of any other engine's; only steps of an
answer choose, for each layer and KV head its own `top_k` tokens, the newest page always among them.
With `top_k` or fewer tokens there are, all are chosen, and the step is dense to the bit. Beyond
that answers are approximate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moonpool.core.errors import BadConfig, BadInput
from moonpool.engine.model.attention.base import Attention, Span, places_of
from moonpool.engine.model.attention.sdpa import mix
from moonpool.engine.model.llama import Attend
from moonpool.sparse.indexers import OracleIndexer, QuestIndexer, RecencyIndexer, top_positions

SINKS: Final = 4
OnChoice = Callable[[int, NDArray[np.uint32]], None]
"""(layer, positions u32[kv_heads, k]) of each step that left tokens out."""


class SparseDecoding:
    """Over `storage` [pages, layers, 2, page_size, kv_heads, dim] on the CPU, for steps of one
    token a sequence. `prefill` wraps what computes prompts. Raises BadConfig."""

    def __init__(self, storage: Tensor, compute: torch.dtype, indexer: str, top_k: int) -> None:
        pages, layers, _, size, kv_heads, dim = storage.shape
        self._storage, self._compute = storage, compute
        self._size, self._heads, self.top_k = size, kv_heads, top_k
        self.on_choice: OnChoice | None = None
        self._scorer = _scorer(indexer, storage)
        # Of pages that were full when a step looked at them: they do not change, until a prompt
        # is computed or loaded into them, of which `forget` is told.
        self._known = np.zeros((layers, pages), np.bool_)

    def prefill(self, below: Attention) -> Attention:
        return _Telling(below, self)

    def forget(self, pages: Tensor) -> None:
        """Their tokens may be others from now on."""
        self._known[:, pages.numpy()] = False

    def plan(self, spans: Sequence[Span], rows: int) -> Attend:
        pages, within = places_of(spans, self._size)
        filled = len(within)
        self.forget(pages)
        storage = self._storage

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = storage[:, layer, 0], storage[:, layer, 1]
            keys[pages, within] = k[:filled].to(keys.dtype)
            values[pages, within] = v[:filled].to(values.dtype)
            mixed = []
            for row, span in enumerate(spans):
                query = q[row : row + 1]
                chosen = torch.from_numpy(self._choose(layer, query, span).astype(np.int64))
                past_k, past_v = (self._gather(part, span, chosen) for part in (keys, values))
                mixed.append(mix(query, past_k, past_v, None))
            if filled < rows:
                mixed.append(q.new_zeros(rows - filled, q.shape[1] * q.shape[2]))
            return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

        return attend

    def _choose(self, layer: int, query: Tensor, span: Span) -> NDArray[np.uint32]:
        """u32[kv_heads, n], ascending."""
        if span.end <= self.top_k:
            return np.tile(np.arange(span.end, dtype=np.uint32), (self._heads, 1))
        newest = span.start // self._size * self._size
        groups = query.float().view(self._heads, -1, query.shape[2]).numpy()
        scores = np.full((self._heads, span.end), np.inf, np.float32)
        if newest:
            full = span.pages[: newest // self._size].numpy()
            scores[:, :newest] = self._scorer.scores(layer, groups, full, self._known[layer])
        np.nan_to_num(scores, copy=False, nan=-np.inf, posinf=np.inf)
        chosen = np.stack([top_positions(column, self.top_k) for column in scores])
        if self.on_choice is not None:
            self.on_choice(layer, chosen)
        return chosen

    def _gather(self, part: Tensor, span: Span, chosen: Tensor) -> Tensor:
        """[n, kv_heads, dim] in the precision that is computed in, laid out as a dense gather."""
        heads = torch.arange(self._heads)[:, None]
        found = part[span.pages[chosen // self._size], chosen % self._size, heads]
        return found.transpose(0, 1).contiguous().to(self._compute)


class _Telling:
    """Computes prompts as `below` does; the pages it was given are looked at anew later."""

    def __init__(self, below: Attention, sparse: SparseDecoding) -> None:
        self._below, self._sparse = below, sparse

    def plan(self, spans: Sequence[Span], rows: int) -> Attend:
        for span in spans:
            self._sparse.forget(span.pages)
        return self._below.plan(spans, rows)


class _Quest:
    """Bounds of each page, made once it is full and kept beside the pages."""

    def __init__(self, storage: Tensor) -> None:
        pages, layers, _, size, heads, dim = storage.shape
        self._indexer = QuestIndexer(dim, size)
        self._storage, self._size = storage, size
        nbytes = self._indexer.index_bytes * size
        self._kept = np.zeros((layers, heads, pages, nbytes), np.uint8)

    def scores(
        self, layer: int, groups: NDArray[np.float32], full: NDArray[np.int64], known: _Known
    ) -> NDArray[np.float32]:
        kept = self._kept[layer]
        for page in full[~known[full]]:
            keys = self._storage[page, layer, 0].float().numpy()
            for head in range(len(groups)):
                kept[head, page] = self._indexer.encode(keys[:, head])[0]
            known[page] = True
        tokens = len(full) * self._size
        return np.stack(
            [
                self._indexer.scores(query, kept[head, full], tokens)
                for head, query in enumerate(groups)
            ]
        )


class _Oracle:
    """Exact products: reads every key at every step. What the others are measured against."""

    def __init__(self, storage: Tensor) -> None:
        self._indexer = OracleIndexer(storage.shape[5], storage.shape[3])
        self._storage = storage

    def scores(
        self, layer: int, groups: NDArray[np.float32], full: NDArray[np.int64], known: _Known
    ) -> NDArray[np.float32]:
        keys = self._storage[torch.from_numpy(full), layer, 0].flatten(0, 1).float().numpy()
        return np.stack(
            [
                self._indexer.scores(query, self._indexer.encode(keys[:, head]), len(keys))
                for head, query in enumerate(groups)
            ]
        )


class _Recency:
    """The first tokens and the newest ones."""

    def __init__(self, storage: Tensor) -> None:
        self._indexer = RecencyIndexer(SINKS)
        self._size = storage.shape[3]

    def scores(
        self, layer: int, groups: NDArray[np.float32], full: NDArray[np.int64], known: _Known
    ) -> NDArray[np.float32]:
        column = self._indexer.scores(None, np.zeros(0, np.uint8), len(full) * self._size)
        return np.tile(column, (len(groups), 1))


_Known = NDArray[np.bool_]
_Scorer = _Quest | _Oracle | _Recency
SCORERS: Final[dict[str, type[_Scorer]]] = {"quest": _Quest, "oracle": _Oracle, "recency": _Recency}


def _scorer(name: str, storage: Tensor) -> _Scorer:
    try:
        return SCORERS[name](storage)
    except BadInput as error:
        raise BadConfig(f"engine.sparse = {name} does not fit this model: {error}") from None
