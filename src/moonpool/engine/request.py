"""What is asked of the engine and what it answers. Token ids only: text is the server's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from moonpool.core.errors import BadInput, MoonpoolError

Finish = Literal["stop", "length", "abort", "busy", "error"]
"""Why an answer is over: an end token; as long as asked; aborted; not served; failed."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is chosen. Raises BadInput for values that mean nothing."""

    temperature: float = 1.0
    """0 takes the likeliest token each time."""
    top_p: float = 1.0
    """The likeliest tokens that together reach this share, in (0, 1]."""
    top_k: int = 0
    """The so many likeliest tokens; 0: all."""
    seed: int | None = None
    """The same seed and prompt give the same answer. None: drawn by the engine."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= 100.0:
            raise BadInput(f"temperature is 0 to 100, not {self.temperature!r}")
        if not 0.0 < self.top_p <= 1.0:
            raise BadInput(f"top_p is above 0 and at most 1, not {self.top_p!r}")
        if self.top_k < 0:
            raise BadInput(f"top_k is at least 0 (0: all tokens), not {self.top_k!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and how to go on from it."""

    prompt: Sequence[int]
    """Token ids, at least one."""
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    end_ids: frozenset[int] = frozenset()
    """Tokens that end the answer; they are part of it. Empty: it ends by its length only."""
    salt: str | None = None
    """Prompts of different salts share no cached page, here and in the pool."""
    transfer: Mapping[str, Any] | None = None
    """kv_transfer_params: where keys and values come from or go to."""

    @property
    def sampling(self) -> Sampling:
        """Raises BadInput."""
        return Sampling(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, seed=self.seed
        )


class Reuse(NamedTuple):
    """Prompt tokens that were not computed, by where their keys and values were."""

    local_tokens: int = 0
    pool_tokens: int = 0
    peer_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.local_tokens + self.pool_tokens + self.peer_tokens


class Step(NamedTuple):
    """News of one request: tokens since the last Step, and with the last one why it is over."""

    tokens: Sequence[int]
    finish: Finish | None = None
    reuse: Reuse = Reuse()
    error: MoonpoolError | None = None
    """With finish "busy" or "error"."""


def check_request(
    request: Request, *, context_tokens: int, vocabulary_size: int, cache_tokens: int
) -> None:
    """Raises BadInput for what can never be served by a model and a cache of these sizes."""
    prompt = len(request.prompt)
    if prompt == 0:
        raise BadInput("a prompt has at least one token")
    if request.max_tokens < 1:
        raise BadInput(f"max_tokens is at least 1, not {request.max_tokens}")
    if prompt >= context_tokens:
        raise BadInput(
            f"the prompt has {prompt} tokens; this model takes {context_tokens} for "
            "prompt and answer together"
        )
    low, high = min(request.prompt), max(request.prompt)
    if low < 0 or high >= vocabulary_size:
        wrong = low if low < 0 else high
        raise BadInput(f"token {wrong} is none of this model's {vocabulary_size}")
    if prompt + 1 > cache_tokens:
        raise BadInput(
            f"the prompt has {prompt} tokens; the cache has pages for {cache_tokens} "
            "(engine.kv_memory)"
        )
    _ = request.sampling
