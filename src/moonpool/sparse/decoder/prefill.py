"""A prompt computed whole, with dense attention, in chunks of one width: the same bytes each time.

What comes out is what a pool keeps of it: latent rows, index keys, and as a hint what the last
query would choose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from moonpool.core.errors import BadInput
from moonpool.sparse.decoder import arithmetic
from moonpool.sparse.decoder.arithmetic import F16
from moonpool.sparse.decoder.shape import PAGE_TOKENS
from moonpool.sparse.decoder.weights import F32, Weights
from moonpool.sparse.indexers import DsaIndexer
from moonpool.sparse.layout import U8, U32, SparseLayout
from moonpool.sparse.reader import SparseReader
from moonpool.sparse.source import local_source

CHUNK: Final = 256


class Prefix(NamedTuple):
    """A computed prompt: `rows` f16[layers, n, latent + rope], `keys` u8[layers, pages, bytes],
    `hint` u32[layers, m] best first, `logits` f32[vocabulary] after the last token."""

    rows: F16
    keys: U8
    hint: U32
    logits: F32


class PrefixWriter(Protocol):
    """SparseWriter and StoredWriter are such."""

    def put(self, layer: int, start: int, rows: U8, index: U8) -> None: ...
    def set_hint(self, positions: U32) -> None: ...


def prefix_key(weights: Weights, tokens: Sequence[int]) -> str:
    """The pool's key of a prompt: these tokens under these weights."""
    digest = hashlib.sha256(np.asarray(tokens, np.int64).tobytes()).hexdigest()
    return f"{weights.name}/{digest[:32]}"


def prefill(weights: Weights, tokens: Sequence[int], *, hint_tokens: int = 0) -> Prefix:
    """Raises BadInput for no tokens, or ones that are not in the vocabulary."""
    shape = weights.shape
    ids = np.asarray(tokens, np.int64)
    if ids.ndim != 1 or not len(ids) or ids.min() < 0 or ids.max() >= shape.vocabulary:
        raise BadInput(f"a prompt has tokens 0 to {shape.vocabulary - 1}, at least one")
    count = len(ids)
    rows = np.empty((shape.layers, count, shape.row), np.float16)
    wide = np.empty((shape.layers, count, shape.row), np.float32)
    keys = np.empty((shape.layers, count, shape.index), np.float32)
    last: list[F32] = []
    logits = np.empty(0, np.float32)
    for start in range(0, count, CHUNK):
        end = min(start + CHUNK, count)
        positions = np.arange(start, end)
        before = int(ids[start - 1]) if start else None
        hidden = arithmetic.embedded(weights, ids[start:end], before)
        last = []
        for number, layer in enumerate(weights.layers):
            x = arithmetic.normed(hidden, layer.norm)
            last.append(x[-1])
            found = arithmetic.entries(shape, layer, x, positions)
            rows[number, start:end], keys[number, start:end] = found
            wide[number, start:end] = found.rows
            scores = arithmetic.queries(shape, layer, x, positions) @ wide[number, :end].T
            scores[:, np.arange(end)[None, :] > positions[:, None]] = -np.inf
            shares = arithmetic.weighed(scores)
            hidden = hidden + arithmetic.mixed(shape, layer, shares, wide[number, :end])
            hidden = hidden + arithmetic.feed_forward(layer, hidden)
        logits = arithmetic.normed(hidden[-1:], weights.norm)[0] @ weights.embeddings.T
    indexer = DsaIndexer(shape.index, PAGE_TOKENS)
    pages = np.stack([indexer.encode(layer_keys) for layer_keys in keys])
    best = [
        _best(
            indexer.scores(arithmetic.index_query(shape, layer, x, count - 1), page_keys, count),
            hint_tokens,
        )
        for layer, x, page_keys in zip(weights.layers, last, pages, strict=True)
    ]
    return Prefix(rows, pages, np.stack(best), logits)


def put(prefix: Prefix, writer: PrefixWriter) -> None:
    """All of it but the seal, which is the writer's own."""
    for layer, (rows, keys) in enumerate(zip(prefix.rows, prefix.keys, strict=True)):
        writer.put(layer, 0, rows.view(np.uint8), keys)
    if prefix.hint.shape[1]:
        writer.set_hint(prefix.hint)


class PrefixSource:
    """A RowSource over a prefix just computed, in local memory."""

    kind = "local"

    def __init__(self, layout: SparseLayout, prefix: Prefix) -> None:
        self.layout = layout
        self.tokens = prefix.rows.shape[1]
        below = local_source(layout, np.ascontiguousarray(prefix.rows).view(np.uint8))
        self._keys = prefix.keys
        self.table = below.table
        self.gather, self.copy_rows, self.close = below.gather, below.copy_rows, below.close

    def copy_index(self, layer: int, out: U8) -> None:
        out[:] = self._keys[layer].reshape(-1)


def local_reader(weights: Weights, prefix: Prefix) -> SparseReader:
    """Reads a prefix where it was computed, in no pool."""
    return SparseReader(PrefixSource(weights.layout, prefix), hint=list(prefix.hint))


def _best(scores: NDArray[np.float32], count: int) -> U32:
    order = np.argsort(-scores, kind="stable")[:count]
    return order.astype(np.uint32)
