"""Ranks with stamped memory: a block's bytes follow from its transfer, layer and tokens."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from moonpool.core.sections import HandoffConfig
from moonpool.transfer.handoff import (
    DecodeNode,
    KVLayout,
    KVMemory,
    PartMemory,
    PrefillNode,
    Release,
    Settled,
)

LAYERS = 4
BLOCK_TOKENS = 8
TOKEN_BYTES = 512
BLOCKS = 24
WAIT_S = 20.0


def layout(**changes: Any) -> KVLayout:
    fields: dict[str, Any] = {
        "model": "stamped",
        "dtype": "u8",
        "layers": LAYERS,
        "block_tokens": BLOCK_TOKENS,
        "kv_heads": 1,
        "token_bytes": TOKEN_BYTES,
    }
    return KVLayout(**(fields | changes))


def memory_of(shape: KVLayout, blocks: int = BLOCKS) -> tuple[KVMemory, np.ndarray[Any, Any]]:
    """u8[layers, parts, blocks, block_bytes], zeroed, and its description."""
    array = np.zeros((shape.layers, shape.parts, blocks, shape.block_bytes), dtype=np.uint8)
    parts = [
        [PartMemory(array[layer, part], 0, shape.block_bytes) for part in range(shape.parts)]
        for layer in range(shape.layers)
    ]
    return KVMemory(shape, blocks, parts), array


def stamp(transfer: str, layer: int, block: int, nbytes: int) -> np.ndarray[Any, Any]:
    """What block number `block` of a prompt holds."""
    seed = hash_of(f"{transfer}/{layer}/{block}")
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def hash_of(text: str) -> int:
    value = 1469598103934665603
    for char in text.encode():
        value = (value ^ char) * 1099511628211 % 2**64
    return value


def config(**changes: Any) -> HandoffConfig:
    """Leases long enough for a machine that is busy with other tests."""
    return HandoffConfig(**({"lease_ms": 3000, "beat_ms": 200, "push_ms": 4000} | changes))


def until(what: Callable[[], bool], limit_s: float = WAIT_S) -> None:
    give_up_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < give_up_s, "it did not happen"
        time.sleep(0.005)


class Inbox:
    """What a node yields, by transfer."""

    def __init__(self, node: PrefillNode | DecodeNode) -> None:
        self.node = node
        self.got: dict[str, Any] = {}

    def settled(self, transfer: str) -> Settled:
        found = self._wait(transfer)
        assert isinstance(found, Settled)
        return found

    def released(self, transfer: str) -> Release:
        found = self._wait(transfer)
        assert isinstance(found, Release)
        return found

    def has(self, transfer: str) -> bool:
        for one in self.node.take():
            assert one.transfer not in self.got, f"{one} came twice"
            self.got[one.transfer] = one
        return transfer in self.got

    def _wait(self, transfer: str) -> Any:
        until(lambda: self.has(transfer))
        return self.got[transfer]


def compute(
    node: PrefillNode,
    array: np.ndarray[Any, Any],
    transfer: str,
    blocks: list[int],
    tokens: int,
    first: int = 0,
    layers: range = range(LAYERS),
) -> None:
    """Fills the blocks and says so, layer by layer."""
    for layer in layers:
        for at, block in enumerate(blocks):
            if at >= first // BLOCK_TOKENS:
                array[layer, 0, block] = stamp(transfer, layer, at, array.shape[3])
        node.computed([(transfer, tokens)], layer)
