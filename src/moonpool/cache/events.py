"""What a prefix tree tells its followers, in the messages of vLLM: maps with a "type" in a batch.

Block hashes are the 64-bit routing chain (unsigned). A follower that lost count gets
AllBlocksCleared and the whole tree again as BlockStored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from moonpool.cache.namespace import Namespace

Record = tuple[int, bool, bytes, int, npt.NDArray[np.uint64], npt.NDArray[np.uint32]]
STORED, REMOVED, CLEARED = range(3)
MEDIUM_DEFAULT: Final = "GPU"


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="BlockStored"):
    """A run of pages became reusable; `token_ids` are all tokens of the listed blocks."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None
    """Per block what besides tokens is in its hash: salt and tenant, in the first of a chain."""


class BlockRemoved(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="BlockRemoved"
):
    """These pages are gone, the end of the chain first."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared"):
    """Nothing of what was told before is held any more."""


class CacheDigest(msgspec.Struct, frozen=True, kw_only=True, tag="CacheDigest"):
    """An account of all that is held, for a follower that asked; by first byte of the block hashes:
    how many, and their exclusive or. 256 little-endian u64 each."""

    medium: str
    counts: bytes
    digests: bytes


class RangesCleared(msgspec.Struct, frozen=True, kw_only=True, tag="RangesCleared"):
    """Nothing of what was told before of these ranges (32 bytes, a bit for each first byte of a
    hash, the lowest first) is held any more; what is held of them follows as BlockStored."""

    medium: str
    ranges: bytes


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared | CacheDigest | RangesCleared


class EventBatch(msgspec.Struct, frozen=True, array_like=True):
    """What one message carries: `[ts, events, data_parallel_rank]`."""

    ts: float
    events: list[KvEvent]
    data_parallel_rank: int | None = None


def encode_batch(events: list[KvEvent], ts: float, rank: int | None = 0) -> bytes:
    """The msgpack payload of one message."""
    return msgspec.msgpack.encode(EventBatch(ts, events, rank))


def told(records: Iterable[Record], page_size: int, medium: str) -> list[KvEvent]:
    """The messages of the tree's records, in order."""
    return [_event(record, page_size, medium) for record in records]


def _event(record: Record, page_size: int, medium: str) -> KvEvent:
    kind, first, space, parent, hashes, tokens = record
    if kind == CLEARED:
        return AllBlocksCleared()
    if kind == REMOVED:
        return BlockRemoved(block_hashes=hashes.tolist(), medium=medium)
    namespace = Namespace.decoded(space)
    extra = [key for key in (namespace.salt, namespace.tenant) if key is not None]
    return BlockStored(
        block_hashes=hashes.tolist(),
        parent_block_hash=None if first else parent,
        token_ids=tokens.tolist(),
        block_size=page_size,
        lora_id=None,
        medium=medium,
        lora_name=namespace.adapter,
        extra_keys=[extra, *[None] * (len(hashes) - 1)] if first and extra else None,
    )
