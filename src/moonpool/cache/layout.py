"""What one page of keys and values is: shapes, order of axes, bytes. No memory, no torch.

Bytes of n tokens with K and V (MHA, GQA, MQA):   2 x layers x n x kv_heads x head_dim x itemsize
Bytes of n tokens of latents (MLA):               layers x n x (latent_dim + rope_dim) x itemsize

Whatever the order in memory, the bytes of a page that leave the engine are the same: layer by
layer, K before V, each part in the layout's order of token and head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from moonpool.cache.base import checked_page_size, pages_for
from moonpool.core.errors import BadInput, did_you_mean

DTYPES: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Element types of storage, and their bytes."""

Order = Literal["NHD", "HND"]


@dataclass(frozen=True, kw_only=True)
class KvLayout:
    """Common to both kinds; `heads` x `dim` is what one part of one token holds."""

    layers: int
    page_size: int = 16
    dtype: str = "bfloat16"
    order: Order = "NHD"
    """NHD: token, head, dim inside a page. HND: head, token, dim."""
    page_first: bool = False
    """A page's layers lie together (good to move) instead of a layer's pages (good to compute)."""

    def __post_init__(self) -> None:
        checked_page_size(self.page_size)
        if self.dtype not in DTYPES:
            raise BadInput(
                f"dtype {self.dtype!r} is none of {', '.join(DTYPES)}."
                f"{did_you_mean(self.dtype, DTYPES)}"
            )
        if self.order not in ("NHD", "HND"):
            raise BadInput(f"order is NHD or HND, not {self.order!r}")
        for name in ("layers", "heads", "dim"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} is at least 1, not {getattr(self, name)}")

    @property
    def parts(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def heads(self) -> int:
        raise NotImplementedError

    @property
    def dim(self) -> int:
        raise NotImplementedError

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype]

    @property
    def bytes_per_token(self) -> int:
        return len(self.parts) * self.layers * self.heads * self.dim * self.itemsize

    @property
    def bytes_per_page(self) -> int:
        return self.page_size * self.bytes_per_token

    @property
    def part_shape(self) -> tuple[int, int, int]:
        """Of one part of one page in one layer."""
        if self.order == "HND":
            return (self.heads, self.page_size, self.dim)
        return (self.page_size, self.heads, self.dim)

    @property
    def axes(self) -> str:
        """Order of a page's axes as its bytes leave the engine, for KeySpec.layout."""
        return f"layer,kv,{'head,token' if self.order == 'HND' else 'token,head'},dim"

    def storage_shape(self, pages: int) -> tuple[int, ...]:
        """Of the one tensor that holds `pages` pages."""
        if self.page_first:
            return (pages, self.layers, len(self.parts), *self.part_shape)
        return (self.layers, len(self.parts), pages, *self.part_shape)

    def bytes_of(self, tokens: int) -> int:
        """What so many tokens occupy, the unused rest of the last page not counted."""
        return tokens * self.bytes_per_token

    def pages_for(self, tokens: int) -> int:
        return pages_for(tokens, self.page_size)

    def pages_in(self, budget_bytes: int) -> int:
        """Whole pages that fit into a budget of memory."""
        return budget_bytes // self.bytes_per_page


@dataclass(frozen=True, kw_only=True)
class HeadsLayout(KvLayout):
    """Keys and values by head: MHA with as many KV heads as query heads, GQA fewer, MQA one."""

    kv_heads: int
    head_dim: int

    @property
    def parts(self) -> tuple[str, ...]:
        return ("key", "value")

    @property
    def heads(self) -> int:
        return self.kv_heads

    @property
    def dim(self) -> int:
        return self.head_dim


@dataclass(frozen=True, kw_only=True)
class LatentLayout(KvLayout):
    """MLA (DeepSeek-V2): one compressed latent and one rotated key a token, for all heads."""

    latent_dim: int
    rope_dim: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        return ("latent",)

    @property
    def heads(self) -> int:
        return 1

    @property
    def dim(self) -> int:
        return self.latent_dim + self.rope_dim


def local_kv_heads(kv_heads: int, tp_size: int) -> int:
    """KV heads of one tensor-parallel rank; with more ranks than heads each head is replicated.
    Raises BadInput when they do not divide."""
    larger, smaller = max(kv_heads, tp_size), min(kv_heads, tp_size)
    if smaller < 1 or larger % smaller:
        raise BadInput(f"{kv_heads} KV heads cannot be shared evenly among {tp_size} ranks")
    return max(1, kv_heads // tp_size)
