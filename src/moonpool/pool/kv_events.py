"""The pool's events as KV events of vLLM: what blocks it holds, for routers. Pure.

A block of the pool is an object with a canonical key (core/keys.py); its hash is the chain digest
in that key, 32 bytes: what vLLM itself calls the block when it hashes with SHA-256 and its
connector stores it here. Tokens are not known to the pool, so `token_ids` is empty, as in vLLM's
own events of a tier behind the device: a router knows the block by its hash. Other keys are no
blocks.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from moonpool.pool.messages import Event

Form = Literal["map", "array"]
MEDIUM = "CPU"
RUN_MAX = 1024  # blocks in one event
_DIGEST_CHARS = 43
_STALE = ("node_lost", "node_back", "tier_lost", "tier_back", "clear")


class BlockStored(msgspec.Struct, frozen=True, tag="BlockStored"):
    """Blocks, each the parent of the next."""

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(msgspec.Struct, frozen=True, tag="BlockRemoved"):
    block_hashes: list[bytes]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared"):
    pass


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class Translated(NamedTuple):
    """`stale`: which nodes are there has changed; what is readable must be asked."""

    events: list[KvEvent]
    stale: bool


class Translator:
    """Of the objects whose key begins with `prefix`."""

    def __init__(self, prefix: bytes, block_size: int) -> None:
        self._prefix = prefix
        self._block_size = block_size
        self.passed_over = 0  # events of objects that are no blocks

    def translate(self, events: Iterable[Event]) -> Translated:
        """In order; neighbours become one event where they can."""
        told: list[KvEvent] = []
        stale = False
        for event in events:
            if event.kind in _STALE:
                stale = True
                continue
            block = self.block(event.key)
            if block is None:
                self.passed_over += 1
            elif event.kind == "put":
                self._stored(told, block, self.block(event.parent))
            elif event.gone:  # what only moved between media is here still
                self._removed(told, block)
        return Translated(told, stale)

    def snapshot(self, keys: Iterable[bytes]) -> list[KvEvent]:
        """All blocks there are, for who knows nothing."""
        blocks = [block for key in keys if (block := self.block(key)) is not None]
        told: list[KvEvent] = [AllBlocksCleared()]
        for start in range(0, len(blocks), RUN_MAX):
            # Not a chain: each is told as known by its own hash.
            told += [self._event([block], None) for block in blocks[start : start + RUN_MAX]]
        return told

    def block(self, key: bytes) -> bytes | None:
        """The digest in a canonical key, None for any other."""
        if not key.startswith(self._prefix) or not key.startswith(b"mp1/"):
            return None
        text = key.rpartition(b"/")[2]
        if len(text) != _DIGEST_CHARS:
            return None
        try:
            return base64.b64decode(text + b"=", altchars=b"-_", validate=True)
        except binascii.Error:
            return None

    def _event(self, blocks: list[bytes], parent: bytes | None) -> BlockStored:
        return BlockStored(blocks, parent, [], self._block_size, None, MEDIUM, None)

    def _stored(self, told: list[KvEvent], block: bytes, parent: bytes | None) -> None:
        last = told[-1] if told else None
        if isinstance(last, BlockStored) and parent is not None:
            if last.block_hashes[-1] == parent and len(last.block_hashes) < RUN_MAX:
                last.block_hashes.append(block)
                return
        told.append(self._event([block], parent))

    def _removed(self, told: list[KvEvent], block: bytes) -> None:
        last = told[-1] if told else None
        if isinstance(last, BlockRemoved) and len(last.block_hashes) < RUN_MAX:
            last.block_hashes.append(block)
        else:
            told.append(BlockRemoved([block], MEDIUM))


def encode(events: Sequence[KvEvent], seconds: float, form: Form) -> bytes:
    """One message: [time, events, rank]; events as maps (vLLM since June 2026) or as positional
    arrays (before, and SGLang)."""
    listed: list[object] = list(events)
    if form == "array":
        listed = [[type(event).__name__, *msgspec.structs.astuple(event)] for event in events]
    return msgspec.msgpack.encode([seconds, listed, 0])
