"""A brain with one worker, and KV events of one prompt as an engine tells them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from moonpool.router import Brain, RouteRequest, Worker
from moonpool.router.index import Applied

TOKENS = np.arange(4, 164, dtype=np.uint32)
KEYS = [(0x9000_0000_0000_0000 + i * 0x1234_5678_9ABC) % 2**64 for i in range(10)]


def brain_with(**fields: object) -> Brain:
    brain = Brain()
    brain.add_worker(Worker(**({"id": "w", "model": "m", "block_size": 16} | fields)))  # type: ignore[arg-type]
    return brain


def send(brain: Brain, *events: object, rank: int | None = 0) -> Applied:
    return brain.apply_message("w", msgspec.msgpack.encode([1795965676.28, events, rank]))


def held(brain: Brain, tokens: Sequence[int] | np.ndarray = TOKENS, **fields: object) -> int:
    ask = RouteRequest(**({"model": "m", "tokens": [*tokens, 1]} | fields))  # type: ignore[arg-type]
    return brain.decide(ask, 0.0, book=False).predicted_hit_tokens


def as_map(first: int = 0, count: int = 10, **fields: object) -> dict[str, object]:
    return {
        "type": "BlockStored",
        "block_hashes": KEYS[first : first + count],
        "parent_block_hash": KEYS[first - 1] if first else None,
        "token_ids": TOKENS[first * 16 : (first + count) * 16].tolist(),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    } | fields


def as_array(first: int = 0, count: int = 10) -> list[object]:
    event = as_map(first, count)
    names = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id")
    return [event[name] for name in (*names, "medium")]
