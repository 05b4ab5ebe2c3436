"""The router's vocabulary: workers, requests, scores, decisions, and what engines publish.

Plain values only; nothing here knows a clock, a socket or a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from moonpool.core.errors import BadInput

Role = Literal["both", "prefill", "decode"]
Tokens: TypeAlias = npt.NDArray[np.uint32] | Sequence[int]
Hashes: TypeAlias = npt.NDArray[np.uint64]

RANKS_MAX = 256
_BLOCK_TOKENS_MAX = 1 << 20


class Tier(IntEnum):
    """Where a worker keeps a block, fastest first."""

    DEVICE = 0
    HOST = 1
    DISK = 2


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """An engine instance as the router sees it. Raises BadInput on values that make no sense."""

    id: str
    url: str = ""
    role: Role = "both"
    transfer: str | None = None
    """'HOST:PORT' of its side channel for prefill/decode hand-over."""
    block_size: int = 0
    """Tokens a block; 0: not known, taken from the first event or from the fleet."""
    model: str = ""
    adapters: frozenset[str] = frozenset()
    """LoRA adapters that it serves besides, as models of their own names."""
    labels: dict[str, str] = {}
    taints: frozenset[str] = frozenset()
    """Only requests that tolerate all of them come here."""
    ranks: int = 1
    """Data-parallel ranks, each with a cache and a queue of its own."""
    context_tokens_max: int = 0
    """Longest request it takes, prompt and answer together; 0: not known."""
    kv_blocks_max: int = 0
    """Blocks its device cache holds, a rank; 0: not known."""
    batched_tokens_max: int = 8192
    """Tokens of one engine step."""
    publishes_events: bool = True
    """False: it is known to publish no KV events, so its cache is guessed from own decisions."""

    def __post_init__(self) -> None:
        if not self.id:
            raise BadInput("a worker needs an id")
        if not 1 <= self.ranks <= RANKS_MAX:
            raise BadInput(f"worker {self.id}: ranks = {self.ranks} is not within 1..{RANKS_MAX}")
        if self.kv_blocks_max < 0:
            raise BadInput(f"worker {self.id}: kv_blocks_max = {self.kv_blocks_max} is below 0")
        if not 0 <= self.block_size <= _BLOCK_TOKENS_MAX:
            raise BadInput(
                f"worker {self.id}: block_size = {self.block_size} is not within"
                f" 0..{_BLOCK_TOKENS_MAX}"
            )


class Target(NamedTuple):
    """What a request can be sent to: one data-parallel rank of a worker."""

    worker: str
    rank: int = 0


class RouteRequest(msgspec.Struct, kw_only=True):
    """What is asked of the brain. Give `tokens`, or `hashes` with `prompt_tokens`."""

    model: str = ""
    tokens: Tokens | None = None
    """Token ids of the prompt; a contiguous uint32 array (or its buffer) is not copied."""
    hashes: Hashes | None = None
    """Prefix hashes of its whole blocks, when the caller has them already."""
    prompt_tokens: int = 0
    """Length of the prompt where only hashes are given."""
    output_tokens: int = 0
    """Expected length of the answer; 0: not known."""
    namespace: str = ""
    """Tenant or cache salt: requests of different namespaces never share a block."""
    adapter: str = ""
    """Name of the LoRA adapter; empty: the base model."""
    role: Role = "both"
    priority: int = 0
    """Higher: its own wait counts for more against what others could reuse."""
    session: str = ""
    """Requests of one session prefer the worker of the last one, for as long as its lease lasts."""
    pin: Target | None = None
    """Exactly there, or an error."""
    allowed: frozenset[str] | None = None
    """Only these worker ids; None: all."""
    labels: dict[str, str] = {}
    """Labels a worker must have."""
    preferred: dict[str, float] = {}
    """'label=value' -> weight: its cost falls with a positive one, rises with a negative one."""
    tolerates: frozenset[str] = frozenset()
    temperature: float | None = None
    """0 takes the cheapest, more spreads; None: the configured one."""
    booking_id: str = ""
    """Name of the booking; empty: the brain makes one."""


class Score(NamedTuple):
    """One target as a decision saw it. Costs compare within one decision only."""

    worker: str
    rank: int
    cost: float
    """Lower is better; infinite when it is busy."""
    hit_tokens: int
    """Prompt tokens in the worker's own cache, all tiers."""
    device_tokens: int
    """Of these, on the device."""
    pool_tokens: int
    """Prompt tokens beyond `hit_tokens` that the pool can bring."""
    prefill_tokens: int
    """Booked there and not yet prefilled."""
    decode_blocks: int
    requests: int


class Decision(NamedTuple):
    """Where a request goes. `booking_id` is empty for a question without a booking."""

    worker: str
    rank: int
    scores: tuple[Score, ...]
    predicted_hit_tokens: int
    booking_id: str
    reason: str
    """'cost', 'pin', 'session' or 'only'."""
    prompt_tokens: int
    prefill: Decision | None = None
    """The prefill worker's decision when prompt and answer are split over two workers."""


BlockHash = Annotated[int, msgspec.Meta(ge=0)]


class Stored(msgspec.Struct, frozen=True, tag=True):
    """Blocks now held, one after the other; `parent` is the prefix hash before the first, or 0."""

    hashes: Sequence[int]
    parent: int = 0
    rank: int = 0
    tier: int = 0


class Removed(msgspec.Struct, frozen=True, tag=True):
    """Blocks no longer held at this tier."""

    hashes: Sequence[int]
    rank: int = 0
    tier: int = 0


class Cleared(msgspec.Struct, frozen=True, tag=True):
    """Nothing is held any more; rank -1: on no rank."""

    rank: int = -1


Event = Stored | Removed | Cleared
