"""Requests and identities as vLLM 0.32 hands them over, and caches of a small model."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field

import torch

from moonpool.connectors.vllm.keys import CacheIdentity, GroupIdentity, KeySpaces, Shard
from moonpool.connectors.vllm.layout import GroupLayout, group_layouts
from moonpool.connectors.vllm.link import PoolLink
from moonpool.connectors.vllm.metadata import BlockRun, Namespace
from moonpool.pool.pool import Pool

BLOCK = 32
BLOCKS = 40
LOG = logging.getLogger("tests.connectors.vllm")


def chain(name: str, count: int) -> list[bytes]:
    """Block hashes of one text."""
    return [hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(count)]


@dataclass
class Request:
    """As much of vllm.v1.request.Request as is read; `text` names its tokens."""

    text: str
    num_tokens: int
    request_id: str = ""
    num_prompt_tokens: int = 0
    hash_tokens: int = BLOCK
    block_hashes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.request_id = self.request_id or f"request-{self.text}"
        self.num_prompt_tokens = self.num_prompt_tokens or self.num_tokens
        self.block_hashes = chain(self.text, self.num_tokens // self.hash_tokens)

    def grow(self, tokens: int) -> None:
        self.num_tokens += tokens
        self.block_hashes += chain(self.text, self.num_tokens // self.hash_tokens)[
            len(self.block_hashes) :
        ]


def identity(groups: int = 1, tp_size: int = 1, block_sizes: tuple[int, ...] = ()) -> CacheIdentity:
    sizes = block_sizes or (BLOCK,) * groups
    return CacheIdentity(
        model="tiny@1",
        hashing="sha256",
        groups=tuple(
            GroupIdentity(block_size=size, layout="cpu;LBHNC", dtype="bfloat16") for size in sizes
        ),
        tp_size=tp_size,
    )


SPACES = KeySpaces(identity())


def keys_of(group: int, namespace: Namespace, digests: object) -> list[bytes]:
    return SPACES.keys(group, Shard(), namespace, list(digests))  # type: ignore[call-overload]


def caches(seed: int, layers: int = 3, blocks: int = BLOCKS) -> dict[str, torch.Tensor]:
    """Filled with noise, as `[blocks, heads, tokens, 2 * head size]` in bfloat16."""
    random = torch.Generator().manual_seed(seed)
    return {
        f"model.layers.{i}.self_attn.attn": torch.randn(
            (blocks, 2, BLOCK, 16), generator=random
        ).to(torch.bfloat16)
        for i in range(layers)
    }


def layouts(tensors: dict[str, torch.Tensor]) -> list[GroupLayout]:
    (some,) = {tensor.shape[0] for tensor in tensors.values()}
    return group_layouts([list(tensors)], tensors, some)


def run(name: str, block_ids: list[int], first: int = 0) -> BlockRun:
    """Blocks `first`... of a text, in these engine blocks."""
    return BlockRun(0, block_ids, chain(name, first + len(block_ids))[first:])


def linked(pool: Pool) -> PoolLink:
    """A link that has reached `pool`."""
    link = PoolLink(lambda: pool, where="here", retry_s=0.01, retry_max_s=0.02, log=LOG)
    link.start(10.0)
    assert link.pool() is pool
    return link
