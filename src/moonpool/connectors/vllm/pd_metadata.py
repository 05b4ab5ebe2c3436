"""What scheduler and workers tell each other once a step about hand-overs. Plain values."""

from __future__ import annotations

import msgspec


class Target(msgspec.Struct, frozen=True):
    """Where a decode request's blocks are computed."""

    transfer: str
    remote: str
    engine: str | None = None


class Announcement(msgspec.Struct, frozen=True):
    """Blocks that vLLM gave a decode request for tokens `first_token` up to `tokens`."""

    request_id: str
    target: Target
    first_token: int
    tokens: int
    blocks: list[int]
    prompt: str


class Opening(msgspec.Struct, frozen=True):
    """A prefill request is about to be computed."""

    transfer: str
    tokens: int
    prompt: str


class Advance(msgspec.Struct, frozen=True):
    """After this step the prompt's tokens before `upto` are in `blocks`, all it has by then."""

    transfer: str
    upto: int
    blocks: list[int]


class Ending(msgspec.Struct, frozen=True):
    """A prefill request is over in the scheduler; its blocks are kept for the transfer."""

    request_id: str
    transfer: str


class HandoffPlan(msgspec.Struct, frozen=True):
    """One step, from the scheduler to every worker. `failed`: prefill requests that will not be
    computed to their end, with the reason; `preempted`: those whose blocks vLLM is about to reuse.
    `cancelled`: decode requests that want nothing any more; with a target when no worker has heard
    of them."""

    claims: list[Target] = []
    announced: list[Announcement] = []
    cancelled: list[tuple[str, Target | None]] = []
    opened: list[Opening] = []
    advanced: list[Advance] = []
    failed: list[tuple[str, str]] = []
    preempted: list[str] = []
    ended: list[Ending] = []
