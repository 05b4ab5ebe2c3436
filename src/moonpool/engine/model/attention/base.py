"""What every way to compute attention is given and gives back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from moonpool.engine.model.llama import Attend


class Span(NamedTuple):
    """Tokens `start` to `end` of one sequence, computed now over all its tokens before `end`."""

    pages: Tensor
    """int64[n], on the model's device: the sequence's pages, at least up to token `end`."""
    start: int
    end: int


class Attention(Protocol):
    """Keeps keys and values in pages and attends over them."""

    def plan(self, spans: Sequence[Span], rows: int) -> Attend:
        """For one pass over `rows` rows: the spans one after the other, then rows of padding.

        The callable writes the rows' keys and values into the pages, and answers what each row
        sees of its own sequence up to itself; padding gets zeros and writes nothing.
        """
        ...


def places_of(spans: Sequence[Span], page_size: int) -> tuple[Tensor, Tensor]:
    """Page and place in it, int64[n] each, of all tokens that `spans` compute, in order."""
    places = [torch.arange(s.start, s.end, device=s.pages.device) for s in spans]
    pages = [s.pages[p // page_size] for s, p in zip(spans, places, strict=True)]
    return torch.cat(pages), torch.cat(places) % page_size
