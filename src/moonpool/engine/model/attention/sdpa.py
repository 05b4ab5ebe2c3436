"""Attention by torch's own kernels, over pages gathered into one piece. Any device, any dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from moonpool.engine.model.attention.base import Span, places_of
from moonpool.engine.model.llama import Attend


class SdpaAttention:
    """Over `storage` [pages, layers, 2, page_size, kv_heads, dim]: a page's layers lie together.

    Keys and values take the storage's precision before anything sees them, also those of the
    tokens being computed: so it makes no difference whether a prefix was computed here or read.
    """

    def __init__(self, storage: Tensor, heads: int, compute: torch.dtype) -> None:
        self._storage = storage
        self._compute = compute
        self._page_size = storage.shape[3]
        self._group = heads // storage.shape[4]  # query heads that share a KV head

    def plan(self, spans: Sequence[Span], rows: int) -> Attend:
        size = self._page_size
        pages, within = places_of(spans, size)
        filled = len(within)
        needed = [span.pages[: -(-span.end // size)] for span in spans]
        masks = [self._mask(span) for span in spans]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._storage[:, layer, 0], self._storage[:, layer, 1]
            keys[pages, within] = k[:filled].to(keys.dtype)
            values[pages, within] = v[:filled].to(values.dtype)
            mixed = []
            at = 0
            for span, own, mask in zip(spans, needed, masks, strict=True):
                until = at + span.end - span.start
                past_k = self._gather(keys, own, span.end)
                past_v = self._gather(values, own, span.end)
                mixed.append(mix(q[at:until], past_k, past_v, mask))
                at = until
            if at < rows:
                mixed.append(q.new_zeros(rows - at, q.shape[1] * q.shape[2]))
            return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

        return attend

    def _gather(self, part: Tensor, pages: Tensor, tokens: int) -> Tensor:
        """[tokens, kv_heads, dim] in the precision that is computed in."""
        return part.index_select(0, pages).flatten(0, 1)[:tokens].to(self._compute)

    def _mask(self, span: Span) -> Tensor | None:
        """[group * tokens, end]: 0 where a token looks, -inf at what comes after it; None: no
        such."""
        tokens = span.end - span.start
        if tokens == 1:
            return None
        shape, device = (tokens, span.end), self._storage.device
        mask = torch.full(shape, -torch.inf, dtype=self._compute, device=device)
        return mask.triu_(span.start + 1).repeat(self._group, 1)


def mix(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """[rows, heads * dim] for q [rows, heads, dim] over k, v [tokens, kv_heads, dim].

    Query heads that share a KV head become rows of it, so nothing is repeated in memory.
    """
    rows, heads, dim = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    grouped = q.view(rows, kv_heads, group, dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, dim)
    mixed = functional.scaled_dot_product_attention(
        grouped[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=mask,
    )
    return mixed[0].view(kv_heads, group, rows, dim).permute(2, 0, 1, 3).reshape(rows, -1)
