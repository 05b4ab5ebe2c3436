"""One answer of the small decoder over a prefix that stays where it is: token in, logits out.

Each layer's indexer chooses `top_k` tokens of the prefix; their rows come from the reader, through
a hot buffer where there is one. What was decoded since is kept here and always attended to. Where
rows come from changes no bit: they are the same bytes in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np

from moonpool.core.errors import BadInput, Closed, LayoutMismatch, PrefixGone
from moonpool.sparse.decoder import arithmetic
from moonpool.sparse.decoder.prefill import Prefix, local_reader
from moonpool.sparse.decoder.shape import PAGE_TOKENS
from moonpool.sparse.decoder.weights import F32, LayerWeights, Weights
from moonpool.sparse.hot import HotBuffer
from moonpool.sparse.indexers import DsaIndexer, Indexer, choose
from moonpool.sparse.layout import U8, U32
from moonpool.sparse.reader import SparseReader

TAIL_TOKENS: Final = 1024
_TRIES: Final = 5

OnChoice = Callable[[int, U32], None]
"""(layer, positions) of each choice, in order."""


class SessionCounts(NamedTuple):
    """How often a step was begun again, and why."""

    reopened: int
    recomputed: int


class Session:
    """For one thread; a context manager. `open_reader` gives a reader of the prefix, also again
    after it was evicted or removed under the session. `recompute` gives its rows anew when it is
    in no pool any more; without it PrefixGone is the caller's. The prompt ended with `last_token`.

    `top_k` None reads every row once and attends to all of them: dense attention.
    """

    def __init__(
        self,
        weights: Weights,
        open_reader: Callable[[], SparseReader],
        last_token: int,
        *,
        top_k: int | None,
        hot: HotBuffer | None = None,
        indexer: Indexer | None = None,
        recompute: Callable[[], Prefix] | None = None,
        use_hint: bool = False,
        keys_ahead: bool = False,
        on_choice: OnChoice | None = None,
    ) -> None:
        if top_k is not None and top_k < 1:
            raise BadInput(f"top_k is at least 1, not {top_k}")
        if hot is not None and top_k is not None and hot.rows_per_layer < top_k:
            raise BadInput(f"a step wants {top_k} rows, the hot buffer has {hot.rows_per_layer}")
        self._weights = weights
        self._open_reader = open_reader
        self._last_token = last_token
        self._top_k = top_k
        self._hot = hot
        self._indexer: Indexer = indexer or DsaIndexer(weights.shape.index, PAGE_TOKENS)
        self._recompute = recompute
        self._use_hint = use_hint
        self._keys_ahead = keys_ahead
        self._on_choice = on_choice
        shape = weights.shape
        self._tail = np.empty((shape.layers, TAIL_TOKENS, shape.row), np.float16)
        self.decoded = 0
        self._reopened = self._recomputed = 0
        self._reader: SparseReader | None = None
        self._stream: Iterator[tuple[int, U8]] = iter(())
        self._begin(self._opened())

    @property
    def reader(self) -> SparseReader:
        if self._reader is None:
            raise Closed("this session is closed, or its prefix is gone; begin another one")
        return self._reader

    @property
    def counts(self) -> SessionCounts:
        return SessionCounts(self._reopened, self._recomputed)

    def step(self, token: int) -> F32:
        """The logits f32[vocabulary] after one more token. A prefix that went away meanwhile is
        opened again, or recomputed; PrefixGone when neither can be."""
        if not 0 <= token < self._weights.shape.vocabulary:
            raise BadInput(f"tokens are 0 to {self._weights.shape.vocabulary - 1}, not {token}")
        if self.decoded == TAIL_TOKENS:
            raise BadInput(f"a session decodes at most {TAIL_TOKENS} tokens")
        for _ in range(_TRIES - 1):
            try:
                return self._step(token)
            except PrefixGone:
                self._again()
        return self._step(token)

    def close(self) -> None:
        if self._reader is not None:
            self._stream = iter(())
            self._reader.close()
            self._reader = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # --- one step ---------------------------------------------------------------------------------

    def _step(self, token: int) -> F32:
        weights, shape = self._weights, self._weights.shape
        position = self.reader.length + self.decoded
        at = np.array([position])
        hidden = arithmetic.embedded(weights, np.array([token]), self._last_token)
        for number, layer in enumerate(weights.layers):
            x = arithmetic.normed(hidden, layer.norm)
            tail = self._tail[number]
            tail[self.decoded] = arithmetic.entries(shape, layer, x, at).rows[0]
            chosen = self._choose(number, layer, x[0], position)
            past = self._rows(number, chosen)
            rows = np.concatenate([past, tail[: self.decoded + 1]]).astype(np.float32)
            shares = arithmetic.weighed(arithmetic.queries(shape, layer, x, at) @ rows.T)
            hidden = hidden + arithmetic.mixed(shape, layer, shares, rows)
            hidden = hidden + arithmetic.feed_forward(layer, hidden)
        self.decoded += 1
        self._last_token = token
        logits: F32 = arithmetic.normed(hidden, weights.norm)[0] @ weights.embeddings.T
        return logits

    def _choose(self, number: int, layer: LayerWeights, x: F32, position: int) -> U32:
        length = self.reader.length
        if self._top_k is None:
            return np.arange(length, dtype=np.uint32)
        query = arithmetic.index_query(self._weights.shape, layer, x, position)
        chosen = choose(self._indexer, query, self._keys_of(number), length, self._top_k)
        if self._on_choice is not None:
            self._on_choice(number, chosen)
        return chosen

    def _rows(self, number: int, chosen: U32) -> arithmetic.F16:
        if self._whole is not None:
            whole: arithmetic.F16 = self._whole[number, chosen]
            return whole
        if self._hot is not None:
            found = self._hot.resolve(self.reader, number, chosen)
            hot_rows: arithmetic.F16 = self._hot.rows[number].view(np.float16)[found.slots]
            return hot_rows
        out = np.empty((len(chosen), self._weights.shape.row), np.float16)
        self.reader.gather(number, chosen, out)
        return out

    def _keys_of(self, number: int) -> U8:
        """Index keys arrive layer by layer while the first step computes."""
        while number not in self._keys:
            layer, keys = next(self._stream)
            self._keys[layer] = keys
        return self._keys[number]

    # --- opening, and opening again ---------------------------------------------------------------

    def _begin(self, reader: SparseReader) -> None:
        self._reader = reader
        try:
            self._load(reader)
        except BaseException:  # nobody else has this reader to close it
            self.close()
            raise

    def _load(self, reader: SparseReader) -> None:
        self._keys: dict[int, U8] = {}
        self._whole: arithmetic.F16 | None = None
        self._stream = reader.load_index(ahead=self._keys_ahead)
        if self._top_k is None:
            shape = self._weights.shape
            whole = np.empty((shape.layers, reader.length, shape.row), np.float16)
            for number in range(shape.layers):
                reader.read_layer(number, whole[number])
            self._whole = whole
        elif self._hot is not None and self._use_hint:
            self._hot.prefetch(reader, reader.hint())

    def _opened(self) -> SparseReader:
        reader, layout = self._open_reader(), self._weights.layout
        if wrong := layout.differences(reader.layout, layout.model_id):
            reader.close()
            raise LayoutMismatch(f"the prefix has {wrong}")
        return reader

    def _again(self) -> None:
        """After PrefixGone: the prefix opened anew, else computed anew and kept here."""
        self.close()
        if self._hot is not None:
            self._hot.clear()
        try:
            self._begin(self._opened())
            self._reopened += 1
            return
        except PrefixGone:
            if self._recompute is None:
                raise
        self._begin(local_reader(self._weights, self._recompute()))
        self._recomputed += 1
