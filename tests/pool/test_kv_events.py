"""The pool's events in the forms that vLLM's followers read."""

from __future__ import annotations

import msgspec

from moonpool.core.keys import KeySpec
from moonpool.pool.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    Translator,
    encode,
)
from moonpool.pool.messages import Event

SPEC = KeySpec(model="m", dtype="bf16", layout="l", block_size=4)
KEYS = list(SPEC.keys(range(24)))
BLOCKS = [SPEC.digest(key) for key in KEYS]


def event(kind: str, key: bytes = b"", parent: bytes = b"", node: str = "") -> Event:
    return Event(1, 1, kind, key, parent, 64, node, 0)


def stored(blocks: list[bytes], parent: bytes | None = None) -> BlockStored:
    return BlockStored(blocks, parent, [], 4, None, "CPU", None)


def test_a_chain_is_one_event() -> None:
    puts = [event("put", k, p) for k, p in zip(KEYS, [b"", *KEYS], strict=False)]
    told = Translator(b"", 4).translate(puts)
    assert told == ([stored(BLOCKS)], False)


def test_every_cause_of_going_is_told() -> None:
    told = Translator(b"", 4).translate(
        [
            event("put", KEYS[1], KEYS[0]),
            event("evict", KEYS[1]),
            event("remove", KEYS[0]),
            event("expire", KEYS[4]),
            event("lose", KEYS[5]),
            event("replace", KEYS[2]),
            event("offload", KEYS[2]),
            event("demote", KEYS[2]),
            event("forget", KEYS[2]),
            event("promote", KEYS[2]),
            event("put", KEYS[3]),
        ]
    )
    assert told.events == [
        stored([BLOCKS[1]], BLOCKS[0]),
        BlockRemoved([BLOCKS[1], BLOCKS[0], BLOCKS[4], BLOCKS[5]], "CPU"),
        stored([BLOCKS[3]]),
    ]


def test_what_is_readable_is_asked_when_a_node_comes_or_goes() -> None:
    for kind in ("node_lost", "node_back", "clear"):
        assert Translator(b"", 4).translate([event(kind, node="n0")]) == ([], True)


def test_keys_that_are_no_blocks_are_passed_over() -> None:
    translator = Translator(SPEC.prefix, 4)
    other = KeySpec(model="m", dtype="bf16", layout="l", block_size=4, tp_rank=1, tp_size=2)
    keys = [
        b"photo",
        SPEC.prefix + b"short",
        SPEC.prefix + b"?" * 43,
        other.keys(range(4))[0],
    ]
    assert translator.translate([event("put", key) for key in keys]).events == []
    assert translator.passed_over == 4
    assert translator.snapshot([*keys, KEYS[0]]) == [AllBlocksCleared(), stored([BLOCKS[0]])]


def test_both_forms() -> None:
    events: list[KvEvent] = [AllBlocksCleared(), stored([b"a"], b"p"), BlockRemoved([b"b"], "CPU")]
    assert msgspec.msgpack.decode(encode(events, 1.5, "map")) == [
        1.5,
        [
            {"type": "AllBlocksCleared"},
            {
                "type": "BlockStored",
                "block_hashes": [b"a"],
                "parent_block_hash": b"p",
                "token_ids": [],
                "block_size": 4,
                "lora_id": None,
                "medium": "CPU",
                "lora_name": None,
            },
            {"type": "BlockRemoved", "block_hashes": [b"b"], "medium": "CPU"},
        ],
        0,
    ]
    assert msgspec.msgpack.decode(encode(events, 1.5, "array")) == [
        1.5,
        [
            ["AllBlocksCleared"],
            ["BlockStored", [b"a"], b"p", [], 4, None, "CPU", None],
            ["BlockRemoved", [b"b"], "CPU"],
        ],
        0,
    ]
