"""What a worker says about its paged KV memory, and whether two workers' memories fit.

A layer is one or more parts (K and V apart, or together), each an array of blocks. Inside a block
the order is one of

    HND     [heads here, block_tokens, token_bytes]     a head's tokens lie together
    NHD     [block_tokens, heads here, token_bytes]     a token's heads lie together
    opaque  only its owner knows; moves as a whole, between equal geometries

`token_bytes` is what one token of one head takes in one part. Pure; no tensors here.
"""

from typing import Final, Literal

import msgspec

from moonpool.core.errors import BadInput, LayoutMismatch

Order = Literal["HND", "NHD", "opaque"]

LAYERS_MAX: Final = 4096
PARTS_MAX: Final = 8
TOKEN_BYTES_MAX: Final = 1 << 20
BLOCK_TOKENS_MAX: Final = 1 << 16
HEADS_MAX: Final = 1 << 14
TP_MAX: Final = 1 << 12


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's KV memory. `kv_heads` counts the whole model's (1 for MLA); `model` names weights
    and whatever else makes bytes differ (adapter set, quantisation); `flavour` is compared for
    opaque blocks only: instruction set, packing."""

    model: str
    dtype: str
    layers: int
    block_tokens: int
    kv_heads: int
    token_bytes: int
    parts: int = 1
    order: Order = "opaque"
    flavour: str = ""
    tp_size: int = 1
    tp_rank: int = 0

    def check(self) -> None:
        """Raises BadInput for numbers that describe no memory."""
        for name, value, limit in (
            ("layers", self.layers, LAYERS_MAX),
            ("block_tokens", self.block_tokens, BLOCK_TOKENS_MAX),
            ("kv_heads", self.kv_heads, HEADS_MAX),
            ("token_bytes", self.token_bytes, TOKEN_BYTES_MAX),
            ("parts", self.parts, PARTS_MAX),
            ("tp_size", self.tp_size, TP_MAX),
        ):
            if not 1 <= value <= limit:
                raise BadInput(f"KV layout: {name} = {value} is outside 1..{limit}")
        if not 0 <= self.tp_rank < self.tp_size:
            raise BadInput(f"KV layout: tp_rank {self.tp_rank} of tp_size {self.tp_size}")
        if self.kv_heads % self.tp_size and self.tp_size % self.kv_heads:
            raise BadInput(
                f"KV layout: {self.kv_heads} KV heads do not divide over tp_size {self.tp_size}"
            )

    @property
    def heads(self) -> range:
        """The model's KV heads that this rank holds."""
        if self.tp_size <= self.kv_heads:
            share = self.kv_heads // self.tp_size
            return range(self.tp_rank * share, (self.tp_rank + 1) * share)
        head = self.tp_rank // (self.tp_size // self.kv_heads)
        return range(head, head + 1)

    @property
    def replica(self) -> int:
        """Which of the ranks with equal heads this is, from 0."""
        return self.tp_rank % max(1, self.tp_size // self.kv_heads)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in one part."""
        return len(self.heads) * self.block_tokens * self.token_bytes

    def rank(self, tp_rank: int) -> "KVLayout":
        """The same memory as another rank of this worker has it."""
        return msgspec.structs.replace(self, tp_rank=tp_rank)


def check_fit(source: KVLayout, target: KVLayout) -> None:
    """Raises LayoutMismatch, naming both values, when no mapping from `source` to `target` can be
    right; see mapping.py for what the mapping then is."""
    source.check()
    target.check()
    for name in ("model", "dtype", "layers", "kv_heads", "token_bytes", "parts", "order"):
        mine, theirs = getattr(source, name), getattr(target, name)
        if mine != theirs:
            raise LayoutMismatch(f"{name} is {mine!r} at the prefill side, {theirs!r} at decode's")
    if source.order != "opaque":
        return
    for name in ("flavour", "block_tokens", "tp_size"):
        mine, theirs = getattr(source, name), getattr(target, name)
        if mine != theirs:
            raise LayoutMismatch(
                f"{name} is {mine!r} at the prefill side, {theirs!r} at decode's; opaque blocks "
                f"move between equal geometries only"
            )


def sources_of(source: KVLayout, target: KVLayout) -> dict[int, range]:
    """Which ranks of the prefill worker the decode rank `target` takes which heads from.

    Ranks with equal heads share the decode ranks that want them, one sender each.
    """
    check_fit(source, target)
    found: dict[int, range] = {}
    copies = max(1, source.tp_size // source.kv_heads)
    sender = target.tp_rank % copies
    for tp_rank in range(source.tp_size):
        other = source.rank(tp_rank)
        if other.replica != sender:
            continue
        low = max(other.heads.start, target.heads.start)
        high = min(other.heads.stop, target.heads.stop)
        if low < high:
            found[tp_rank] = range(low, high)
    return found
