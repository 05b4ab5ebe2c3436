"""What the server needs of an engine, and nothing more.

The engine works in a thread of its own and calls `on_step` there; whoever listens hands it over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and how to go on from it."""

    prompt: list[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    seed: int | None = None
    end_ids: frozenset[int] = frozenset()
    salt: str | None = None
    """Prompts of different salts share no cached page."""
    transfer: Mapping[str, Any] | None = None
    """kv_transfer_params: where keys and values come from or go to."""


class Reuse(NamedTuple):
    """Prompt tokens that were not computed, by where their keys and values were."""

    local_tokens: int = 0
    pool_tokens: int = 0
    peer_tokens: int = 0


class Step(NamedTuple):
    """What one step gave a request: new tokens, and at the end why it is over."""

    tokens: Sequence[int]
    finish: str | None = None
    """"stop", "length", or what went wrong."""
    reuse: Reuse = Reuse()


class Backend(Protocol):
    """A running engine."""

    context_tokens: int
    """Prompt and answer together."""

    def submit(self, asked: Asked, on_step: Callable[[Step], None]) -> int:
        """Queue it; the number is for `abort`. Raises PoolFull when it cannot be queued."""
        ...

    def abort(self, number: int) -> None:
        """Forget it and free its pages; nothing happens when it is over."""
        ...

    def figures(self) -> Mapping[str, float]:
        """Counters and gauges by name."""
        ...
