"""What followers are told: vLLM's messages, complete, in order, and anew after a loss."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from moonpool import _core
from moonpool.cache import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KvEvent,
    Namespace,
    RadixCache,
    encode_batch,
)
from moonpool.cache.events import RangesCleared

PAGE = 4


def cached(tree: RadixCache, tokens: range, namespace: Namespace | None = None) -> None:
    pages = np.arange(len(tokens) // PAGE, dtype=np.int32) + tree.cached_pages
    tree.insert(tokens, pages, namespace or Namespace()).lease.release()


def chain(tokens: range, namespace: Namespace | None = None) -> list[int]:
    seed = (namespace or Namespace()).seed
    found: list[int] = _core.block_hashes_u64(np.array(tokens, np.uint32), PAGE, seed).tolist()
    return found


def test_stored_and_removed_runs() -> None:
    tree = RadixCache(PAGE, events_max=100)
    cached(tree, range(8))
    cached(tree, range(16))
    tree.evict(1)
    hashes = chain(range(16))
    assert tree.take_events() == [
        BlockStored(
            block_hashes=hashes[:2],
            parent_block_hash=None,
            token_ids=list(range(8)),
            block_size=PAGE,
            lora_id=None,
            medium="GPU",
            lora_name=None,
        ),
        BlockStored(
            block_hashes=hashes[2:],
            parent_block_hash=hashes[1],
            token_ids=list(range(8, 16)),
            block_size=PAGE,
            lora_id=None,
            medium="GPU",
            lora_name=None,
        ),
        BlockRemoved(block_hashes=hashes[3:], medium="GPU"),
    ]
    assert tree.take_events() == []


def test_a_growing_edge_tells_its_new_pages_only() -> None:
    tree = RadixCache(PAGE, events_max=100)
    lease = tree.insert(range(4), np.array([0], np.int32)).lease
    tree.insert(range(8), np.array([0, 1], np.int32), owner=lease)
    first, second = tree.take_events()
    assert isinstance(first, BlockStored) and isinstance(second, BlockStored)
    assert second.block_hashes == chain(range(8))[1:]
    assert second.parent_block_hash == first.block_hashes[0]
    assert second.token_ids == [4, 5, 6, 7]


def test_adapter_salt_and_tenant_are_told() -> None:
    tree = RadixCache(PAGE, events_max=100, medium="CPU")
    namespace = Namespace(adapter="lora", salt="s", tenant="t")
    cached(tree, range(8), namespace)
    cached(tree, range(12), namespace)
    first, second = tree.take_events()
    assert isinstance(first, BlockStored) and isinstance(second, BlockStored)
    assert first.block_hashes == chain(range(8), namespace)
    assert (first.lora_name, first.medium) == ("lora", "CPU")
    assert first.extra_keys == [["s", "t"], None]
    assert second.extra_keys is None


def test_clearing_is_one_message() -> None:
    tree = RadixCache(PAGE, events_max=100)
    cached(tree, range(8))
    tree.take_events()
    tree.clear()
    assert tree.take_events() == [AllBlocksCleared()]
    cached(tree, range(8))
    with tree.match(range(8)):
        tree.take_events()
        tree.clear()
        removed = tree.take_events()
    assert removed == [BlockRemoved(block_hashes=chain(range(8))[1:], medium="GPU")]


def follow(held: set[int], events: list[KvEvent]) -> set[int]:
    for event in events:
        if isinstance(event, BlockStored):
            assert event.parent_block_hash is None or event.parent_block_hash in held
            held |= set(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            assert set(event.block_hashes) <= held
            held -= set(event.block_hashes)
        else:
            held = set()
    return held


def test_beyond_the_limit_the_follower_gets_everything_anew() -> None:
    tree = RadixCache(PAGE, events_max=8)
    held: set[int] = set()
    for step in range(40):
        cached(tree, range(step % 7, step % 7 + 8 + 4 * (step % 3)))
        if step % 4 == 0:
            tree.evict(2)
        if step % 5 == 0:
            held = follow(held, tree.take_events())
            assert held == follow(set(), tree.snapshot_events())
    assert len(held) == tree.cached_pages


def test_off_by_default() -> None:
    tree = RadixCache(PAGE)
    cached(tree, range(8))
    assert tree.take_events() == []
    assert len(tree.snapshot_events()) == 2


def test_the_payload_is_vllms() -> None:
    """As seen from vLLM 0.32 over ZeroMQ: an array of ts, maps with a type, and the rank."""
    tree = RadixCache(PAGE, events_max=100)
    cached(tree, range(4))
    tree.evict(1)
    payload: list[Any] = msgspec.msgpack.decode(encode_batch(tree.take_events(), 1.5, 0))
    hashes = chain(range(4))
    stored = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None,
        "token_ids": [0, 1, 2, 3],
        "block_size": 4,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    removed = {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}
    assert payload == [1.5, [stored, removed], 0]
    cleared = msgspec.msgpack.decode(encode_batch([AllBlocksCleared()], 2.0, None))
    assert cleared == [2.0, [{"type": "AllBlocksCleared"}], None]


def test_a_namespace_is_spelled_in_one_way() -> None:
    spellings = set()
    for adapter in (None, "", "x", "nx"):
        for salt in (None, "", "x"):
            for tenant in (None, "", "s"):
                namespace = Namespace(adapter=adapter, salt=salt, tenant=tenant)
                spellings.add(namespace.encoded)
                assert Namespace.decoded(namespace.encoded) == namespace
    assert len(spellings) == 36
    assert (Namespace().encoded, Namespace().seed) == (b"", 0)


def test_an_account_is_of_all_that_is_held_and_ranges_are_told_anew() -> None:
    tree = RadixCache(PAGE)
    cached(tree, range(400))
    cached(tree, range(200, 600), Namespace(salt="s"))
    cached(tree, range(40, 80))
    tree.evict(17)
    events = tree.snapshot_events()
    held = [h for event in events if isinstance(event, BlockStored) for h in event.block_hashes]
    counts, names = np.zeros(256, np.uint64), np.zeros(256, np.uint64)
    for name in held:
        counts[name >> 56] += np.uint64(1)
        names[name >> 56] ^= np.uint64(name)
    account = tree.digest_event()
    assert (account.counts, account.digests) == (counts.tobytes(), names.tobytes())

    wanted = {name >> 56 for name in held[::9]}
    ranges = sum(1 << number for number in wanted).to_bytes(32, "little")
    cleared, *stored = tree.range_events(ranges)
    assert cleared == RangesCleared(medium="GPU", ranges=ranges)
    whole = {parent: tokens for event in events for parent, tokens in blocks_of(event)}
    found = [block for event in stored for block in blocks_of(event)]
    assert sorted(name for name, _ in found) == sorted(h for h in held if h >> 56 in wanted)
    assert all(whole[name] == rest for name, rest in found), "with the right parent and tokens"
    with pytest.raises(ValueError, match="32 bytes"):
        tree.range_events(b"")


def blocks_of(event: KvEvent) -> list[tuple[int, object]]:
    """Each block with what stands before it, its tokens and its further keys."""
    if not isinstance(event, BlockStored):
        return []
    before = [event.parent_block_hash, *event.block_hashes]
    extra = event.extra_keys or [None] * len(event.block_hashes)
    return [
        (name, (before[i], event.token_ids[i * PAGE : (i + 1) * PAGE], extra[i]))
        for i, name in enumerate(event.block_hashes)
    ]
