"""What a trace would hit in one cache under a policy: the very policy classes that serve, no bytes.

The rules are those of the published comparisons of policies: a request's hit is its longest cached
prefix, counted before it changes anything; then each of its blocks is accessed once, from the tail
to the head ("rev", so that the start of a chain is the most recent) or the other way ("fwd"). The
unit of capacity is one block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from moonpool.planner.replay import hit_tokens
from moonpool.planner.traces import BLOCK_TOKENS_DEFAULT, Request
from moonpool.pool.eviction import EvictionPolicy

AccessOrder = Literal["rev", "fwd"]


class PolicyFigures(NamedTuple):
    """Of one replay; tokens of a partial last block count as what they are."""

    requests: int
    prefix_hit_blocks: int
    hit_tokens: int
    input_tokens: int

    @property
    def token_hit_ratio(self) -> float:
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0


def replay_policy(
    requests: Iterable[Request],
    policy: EvictionPolicy[int],
    *,
    order: AccessOrder = "rev",
    ends_only: bool = False,
    block_tokens: int = BLOCK_TOKENS_DEFAULT,
) -> PolicyFigures:
    """Replays through an empty `policy`.

    `ends_only`: as the pool and the prefix tree do it, a block goes only when none behind it is
    cached, and a request's own blocks stay while it is served.
    """
    cache = _Ends(policy) if ends_only else _Plain(policy, order)
    count = hit_blocks = found_tokens = input_tokens = 0
    for request in requests:
        hits = 0
        for block in request.hash_ids:
            if block not in policy:
                break
            hits += 1
        count += 1
        hit_blocks += hits
        found_tokens += hit_tokens(hits, block_tokens, request.input_length)
        input_tokens += request.input_length
        cache.serve(request.hash_ids, hits)
    return PolicyFigures(count, hit_blocks, found_tokens, input_tokens)


class _Plain:
    """A cache that knows keys only."""

    def __init__(self, policy: EvictionPolicy[int], order: AccessOrder) -> None:
        self._policy = policy
        self._backwards = order == "rev"

    def serve(self, blocks: list[int], hits: int) -> None:
        depths = range(len(blocks))
        for depth in reversed(depths) if self._backwards else depths:
            self._policy.access(blocks[depth], depth)


class _Ends:
    """A cache of chains: children go before their parents."""

    def __init__(self, policy: EvictionPolicy[int]) -> None:
        self._policy = policy
        self._parents: dict[int, int | None] = {}
        self._children: dict[int, int] = {}

    def serve(self, blocks: list[int], hits: int) -> None:
        for block in reversed(blocks[:hits]):
            self._policy.touch(block)
        kept = blocks[: self._policy.capacity]
        serving = set(kept)
        for depth in reversed(range(hits, len(kept))):
            if len(self._policy) >= self._policy.capacity:
                victim = self._policy.victim(
                    lambda key: not self._children.get(key) and key not in serving, kept[depth]
                )
                assert victim is not None, "a cache full of one request's blocks"
                self._gone(victim)
            self._policy.add(kept[depth], depth)
        for depth in range(hits, len(kept)):
            self._came(kept[depth], kept[depth - 1] if depth else None)

    def _came(self, block: int, parent: int | None) -> None:
        self._parents[block] = parent
        if parent is not None:
            self._children[parent] = self._children.get(parent, 0) + 1

    def _gone(self, block: int) -> None:
        self._children.pop(block, None)
        parent = self._parents.pop(block)
        if parent is not None:
            self._children[parent] -= 1
