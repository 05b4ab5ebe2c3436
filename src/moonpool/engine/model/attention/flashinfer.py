"""Attention by FlashInfer's paged kernels: CUDA, half-width types, no gathering.

Written to FlashInfer's documented interface and never run: no GPU was there. `choice.py` says when
it is taken, and `engine.attention = "sdpa"` takes torch's instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from moonpool.engine.model.attention.base import Span, places_of
from moonpool.engine.model.llama import Attend

WORKSPACE_BYTES: Final = 128 << 20


class PageLists(NamedTuple):
    """Whose rows and pages are whose, as running sums: int32 tensors on the CPU."""

    rows: Tensor
    """[spans + 1]: rows of span i are rows[i] to rows[i + 1]."""
    pages: Tensor
    """[spans + 1]: its pages are pages[i] to pages[i + 1] of `indices`."""
    indices: Tensor
    """Page ids, span after span."""
    last: Tensor
    """[spans]: tokens in its last page, 1 to page_size."""


class FlashInferAttention:
    """Over `storage` [pages, layers, 2, page_size, kv_heads, dim] on a CUDA device."""

    def __init__(self, storage: Tensor, heads: int, compute: torch.dtype) -> None:
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=storage.device)
        self._kernel = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        self._storage, self._heads, self._compute = storage, heads, compute

    def plan(self, spans: Sequence[Span], rows: int) -> Attend:
        storage, device = self._storage, self._storage.device
        size, kv_heads, dim = storage.shape[3:]
        pages, within = places_of(spans, size)
        filled = len(within)
        lists = PageLists(*(part.to(device) for part in page_lists(spans, size)))
        self._kernel.plan(
            *lists,
            self._heads,
            kv_heads,
            dim,
            size,
            causal=True,  # the rows are the last ones of their sequences
            q_data_type=self._compute,
            kv_data_type=storage.dtype,
        )

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = storage[:, layer, 0], storage[:, layer, 1]
            keys[pages, within] = k[:filled].to(keys.dtype)
            values[pages, within] = v[:filled].to(values.dtype)
            mixed: Tensor = self._kernel.run(q[:filled].contiguous(), (keys, values)).flatten(1)
            if filled == rows:
                return mixed
            return torch.cat([mixed, mixed.new_zeros(rows - filled, mixed.shape[1])])

        return attend


def page_lists(spans: Sequence[Span], page_size: int) -> PageLists:
    """The pages that `spans` look at, up to their ends."""
    counts = [-(-span.end // page_size) for span in spans]
    used = [span.pages[:count].cpu() for span, count in zip(spans, counts, strict=True)]
    return PageLists(
        _sums([span.end - span.start for span in spans]),
        _sums(counts),
        torch.cat(used).to(torch.int32),
        torch.tensor([(span.end - 1) % page_size + 1 for span in spans], dtype=torch.int32),
    )


def _sums(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
