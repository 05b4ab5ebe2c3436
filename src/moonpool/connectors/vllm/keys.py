"""Keys of an engine's blocks: vLLM's own block hashes under a KeySpec that holds all the rest.

vLLM's hash chain covers tokens, LoRA name and path, multimodal ids and cache salt. It does not
cover the model, the element type, the layout or the rank: those, and the adapter's files and the
salt once more, are fields of the KeySpec, so that a hash that two engines share is not enough.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from moonpool.connectors.vllm.metadata import Namespace
from moonpool.core.keys import KeySpec

_DIGEST_BYTES = 32


class GroupIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One KV group as far as its stored bytes go."""

    block_size: int
    layout: str
    """Everything that decides the bytes of a block: packing, axes, heads, layers, their order."""
    dtype: str


class CacheIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """All that two engines must have in common to share blocks."""

    model: str
    hashing: str
    """Of vLLM's prefix cache; other algorithms make other hashes of the same tokens."""
    groups: tuple[GroupIdentity, ...]
    tp_size: int = 1
    pp_size: int = 1
    tenant: str = ""


class Shard(msgspec.Struct, frozen=True):
    """Which part of every block a worker holds."""

    tp_rank: int = 0
    pp_rank: int = 0


class KeySpaces:
    """Keys by group, shard and namespace. Pure; specifications are made once each."""

    def __init__(self, identity: CacheIdentity) -> None:
        self.identity = identity
        self._spec = lru_cache(maxsize=1024)(self._make_spec)

    def shards(self) -> list[Shard]:
        """All that together hold a block."""
        ranks = range(self.identity.tp_size), range(self.identity.pp_size)
        return [Shard(tp, pp) for tp in ranks[0] for pp in ranks[1]]

    def spec(self, group: int, shard: Shard, namespace: Namespace) -> KeySpec:
        return self._spec(group, shard, namespace)

    def keys(
        self, group: int, shard: Shard, namespace: Namespace, digests: Sequence[bytes]
    ) -> list[bytes]:
        return list(self.spec(group, shard, namespace).keys_of(digests))

    def _make_spec(self, group: int, shard: Shard, namespace: Namespace) -> KeySpec:
        identity, of_group = self.identity, self.identity.groups[group]
        return KeySpec(
            model=identity.model,
            dtype=of_group.dtype,
            layout=f"{of_group.layout};hash={identity.hashing};group={group}",
            block_size=of_group.block_size,
            tp_rank=shard.tp_rank,
            tp_size=identity.tp_size,
            pp_rank=shard.pp_rank,
            pp_size=identity.pp_size,
            adapter=namespace.adapter,
            salt=namespace.salt,
            tenant=identity.tenant or None,
        )


def block_digests(hashes: Sequence[bytes], hashes_per_block: int, start: int = 0) -> list[bytes]:
    """Digests of the whole blocks from block `start` on, 32 bytes each.

    `hashes` is one per `hash_block_size` tokens, each chained over all before it, so the last of a
    block names it. Hashes of another length (xxhash: 16) are stretched by SHA-256.
    """
    last = hashes[(start + 1) * hashes_per_block - 1 :: hashes_per_block]
    return [
        bytes(value) if len(value) == _DIGEST_BYTES else hashlib.sha256(value).digest()
        for value in last
    ]
