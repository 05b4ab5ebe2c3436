"""What the pool publishes is read by vLLM's own classes, with nothing of ours between."""

from __future__ import annotations

import msgspec
import pytest

from moonpool.core.keys import KeySpec
from moonpool.pool.kv_events import Translator, encode
from moonpool.pool.messages import Event

SPEC = KeySpec(model="m", dtype="bf16", layout="l", block_size=4)
KEYS = list(SPEC.keys(range(12)))
BLOCKS = [SPEC.digest(key) for key in KEYS]


def event(kind: str, key: bytes, parent: bytes = b"") -> Event:
    return Event(1, 1, kind, key, parent, 64, "", 0)


@pytest.mark.filterwarnings("ignore")  # of what vLLM imports
def test_vllms_batches_are_what_was_published() -> None:
    from vllm.distributed.kv_events import (
        AllBlocksCleared,
        BlockRemoved,
        BlockStored,
        KVEventBatch,
    )

    translator = Translator(b"", 4)
    puts = [event("put", KEYS[1], KEYS[0]), event("put", KEYS[2], KEYS[1])]
    told = translator.translate([*puts, event("evict", KEYS[2])]).events
    payload = encode([*translator.snapshot(KEYS[:1]), *told], 1.5, "map")
    batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
    assert (batch.ts, batch.data_parallel_rank) == (1.5, 0)
    assert batch.events == [
        AllBlocksCleared(),
        BlockStored([BLOCKS[0]], None, [], 4, None, "CPU", None),
        BlockStored(BLOCKS[1:], BLOCKS[0], [], 4, None, "CPU", None),
        BlockRemoved([BLOCKS[2]], "CPU"),
    ]
