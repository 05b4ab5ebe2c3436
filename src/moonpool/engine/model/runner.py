"""Runs the model: chunks of prompts beside each other, or the next token of several answers.

Matrix products round differently for different numbers of rows, and may for different numbers of
threads. So a pass has one of few shapes, whoever asks: a whole chunk by one thread, the rest of a
prompt by all, or `decode_rows` rows padded with zeros by all. Which other requests are served, and
where a prefix came from, then changes no bit of any logit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moonpool.engine.model.attention.base import Attention, Span
from moonpool.engine.model.lanes import Ahead, Lanes
from moonpool.engine.model.llama import Attend, Llama
from moonpool.engine.passes import Pass, Watch


class Runner:
    """A model over the pages of its cache. Answers may have an attention of their own."""

    def __init__(
        self,
        model: Llama,
        attention: Attention,
        decode_rows: int,
        lanes: Lanes | None = None,
        decoding: Attention | None = None,
    ) -> None:
        self._model = model
        self._attention = attention
        self.decoding = decoding or attention
        self._lanes = lanes or Lanes(1)
        self.decode_rows = decode_rows

    @property
    def lanes(self) -> int:
        """Chunks that are computed at a time."""
        return self._lanes.count

    def close(self) -> None:
        """Ends its threads."""
        self._lanes.close()

    @property
    def vocabulary_size(self) -> int:
        return self._model.config.vocabulary_size

    def span(self, table: npt.NDArray[np.int32], start: int, end: int) -> Span:
        """Tokens `start` to `end` of the sequence with this page table (int32[pages])."""
        pages = torch.from_numpy(table.astype(np.int64)).to(self._model.device)
        return Span(pages, start, end)

    def prefill(
        self, tokens: Sequence[int], span: Span, watch: Watch | None, *, last: bool
    ) -> Tensor | None:
        """Compute `tokens`, those of `span`; the logits [vocabulary] of the last one if asked."""
        with torch.inference_mode():
            attend = _watched(self._attention.plan([span], len(tokens)), watch)
            positions = torch.arange(span.start, span.end, device=self._model.device)
            hidden = self._model.forward(self._ids(tokens), positions, attend)
            return self._model.logits(hidden[-1:])[0] if last else None

    def prefill_beside(self, passes: Sequence[Pass]) -> list[Tensor | Exception | None]:
        """Whole chunks, a lane each; what `prefill` gives for each, or what it raised."""
        ahead = [Ahead() for _ in passes]

        def compute(number: int) -> Tensor | None:
            one = passes[number]
            before = None if one.follows is None else ahead[one.follows]
            watch = _InTurn(before, ahead[number], one.watch)
            try:
                return self.prefill(one.tokens, one.span, watch, last=one.last)
            finally:
                ahead[number].end()

        return self._lanes.run([partial(compute, number) for number in range(len(passes))])

    def prefill_alone(self, passes: Sequence[Pass]) -> list[Tensor | Exception | None]:
        """Rests of prompts, one after the other, each by all threads."""
        outcomes: list[Tensor | Exception | None] = []
        for one in passes:
            try:
                outcomes.append(self.prefill(one.tokens, one.span, one.watch, last=one.last))
            except Exception as error:
                outcomes.append(error)
        return outcomes

    def decode(self, tokens: Sequence[int], spans: Sequence[Span]) -> Tensor:
        """Logits [n, vocabulary] after one more token of each of n sequences."""
        count = len(tokens)
        assert 0 < count <= self.decode_rows, f"{count} rows do not fit in {self.decode_rows}"
        padding = [0] * (self.decode_rows - count)
        with torch.inference_mode():
            positions = self._ids([*(span.start for span in spans), *padding])
            attend = self.decoding.plan(spans, self.decode_rows)
            hidden = self._model.forward(self._ids([*tokens, *padding]), positions, attend)
            return self._model.logits(hidden)[:count]

    def _ids(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._model.device)


class _InTurn:
    """Around a watch: a layer is attended to when the pass before has its keys and values."""

    def __init__(self, before: Ahead | None, own: Ahead, watch: Watch | None) -> None:
        self._before, self._own, self._watch = before, own, watch

    def before(self, layer: int) -> None:
        if self._before is not None:
            self._before.wait_layer(layer)
        if self._watch is not None:
            self._watch.before(layer)

    def after(self, layer: int) -> None:
        self._own.layer_done(layer)
        if self._watch is not None:
            self._watch.after(layer)


def _watched(attend: Attend, watch: Watch | None) -> Attend:
    if watch is None:
        return attend

    def watching(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        watch.before(layer)
        mixed = attend(layer, q, k, v)
        watch.after(layer)
        return mixed

    return watching
