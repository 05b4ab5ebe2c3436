"""Runs the model: a chunk of one prompt at a time, or the next token of several answers.

Matrix products round differently for different numbers of rows. So a pass has one of few shapes,
whoever asks: a whole chunk, the rest of a prompt, or `decode_rows` rows padded with zeros. Which
other requests are served, and where a prefix came from, then changes no bit of any logit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from moonpool.engine.model.attention.base import Attention, Span
from moonpool.engine.model.llama import Attend, Llama


class Watch(Protocol):
    """Is told of the layers of a pass as they come."""

    def before(self, layer: int) -> None:
        """Returns when the pages' content of this layer, up to the chunk, is there."""

    def after(self, layer: int) -> None:
        """Keys and values of this layer are in their pages."""


class Runner:
    """A model over the pages of its cache."""

    def __init__(self, model: Llama, attention: Attention, decode_rows: int) -> None:
        self._model = model
        self._attention = attention
        self.decode_rows = decode_rows

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

    def decode(self, tokens: Sequence[int], spans: Sequence[Span]) -> Tensor:
        """Logits [n, vocabulary] after one more token of each of n sequences."""
        count = len(tokens)
        assert 0 < count <= self.decode_rows, f"{count} rows do not fit in {self.decode_rows}"
        padding = [0] * (self.decode_rows - count)
        with torch.inference_mode():
            positions = self._ids([*(span.start for span in spans), *padding])
            attend = self._attention.plan(spans, self.decode_rows)
            hidden = self._model.forward(self._ids([*tokens, *padding]), positions, attend)
            return self._model.logits(hidden)[:count]

    def _ids(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._model.device)


def _watched(attend: Attend, watch: Watch | None) -> Attend:
    if watch is None:
        return attend

    def watching(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        watch.before(layer)
        mixed = attend(layer, q, k, v)
        watch.after(layer)
        return mixed

    return watching
