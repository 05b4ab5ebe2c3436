"""Sizes of the small decoder, and what its cache looks like to a pool. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from moonpool.core.errors import BadInput
from moonpool.sparse.layout import SparseLayout

PAGE_TOKENS: Final = 64
KNOWN_TOKENS: Final = 512
"""Contexts beyond this sharpen attention by the logarithm of their length."""


class DecoderShape(msgspec.Struct, frozen=True):
    """Multi-head latent attention over rows of `latent + rope` values, a lightning indexer beside
    it (DeepSeek-V3.2 in small). Raises BadInput for sizes that do not fit each other."""

    vocabulary: int
    layers: int = 4
    hidden: int = 64
    heads: int = 4
    head: int = 16
    rope: int = 16
    latent: int = 64
    inner: int = 128
    index_heads: int = 4
    index: int = 32

    def __post_init__(self) -> None:
        if min(msgspec.structs.astuple(self)) < 1:
            raise BadInput(f"every size of a decoder is at least 1: {self}")
        if self.rope % 2 or self.rope > self.index:
            raise BadInput(f"{self.rope} rotated channels are odd, or more than {self.index}")

    @property
    def row(self) -> int:
        """Values of one token's cache row: latent, then rotated key."""
        return self.latent + self.rope

    def layout(self, model: str) -> SparseLayout:
        """Rows in float16, index keys in e4m3 with a scale each."""
        return SparseLayout(self.layers, 2 * self.row, self.index + 4, PAGE_TOKENS, model)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor; those of layers begin with 'layers.N.'."""
        heads = self.heads
        layer: dict[str, tuple[int, ...]] = {
            "norm": (self.hidden,),
            "query": (self.hidden, heads * (self.head + self.rope)),
            "down": (self.hidden, self.row),
            "latent_norm": (self.latent,),
            "up_key": (heads, self.head, self.latent),
            "up_value": (heads, self.latent, self.head),
            "out": (heads * self.head, self.hidden),
            "inner_norm": (self.hidden,),
            "gate": (self.hidden, self.inner),
            "up": (self.hidden, self.inner),
            "back": (self.inner, self.hidden),
            "index_query": (self.hidden, self.index_heads * self.index),
            "index_key": (self.hidden, self.index),
            "index_weight": (self.hidden, self.index_heads),
        }
        found: dict[str, tuple[int, ...]] = {
            "embeddings": (self.vocabulary, self.hidden),
            "shift": (self.hidden, self.hidden),  # what a token is told of the one before it
        }
        for number in range(self.layers):
            found |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
        found["norm"] = (self.hidden,)
        return found
