"""KV events of the pool, for whoever follows the engine's: which of its blocks the pool took, and
which of them it lost again.

The engine's own events go on as they are; these say another medium. Hashes are in the form that
vLLM publishes: the low 64 bits as a number, or all of their bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

MEDIUM = "STORAGE"
"""vLLM knows GPU, CPU and STORAGE; the pool is shared and outside of the engine."""
BLOCKS_MAX = 262_144

Hash = int | bytes


class Stored(NamedTuple):
    """Consecutive blocks of one chain are in the pool."""

    hashes: tuple[Hash, ...]
    parent: Hash | None
    tokens: tuple[int, ...]
    block_size: int
    lora_id: int | None
    lora_name: str | None
    medium: str = MEDIUM


class Removed(NamedTuple):
    """The pool no longer has these blocks."""

    hashes: tuple[Hash, ...]
    medium: str = MEDIUM


class _Block(NamedTuple):
    hash: Hash
    parent: Hash | None
    tokens: tuple[int, ...]
    lora_id: int | None
    lora_name: str | None


def published(block_hash: bytes, as_number: bool) -> Hash:
    """The hash as vLLM writes it into events."""
    return int.from_bytes(block_hash[-8:], "big") if as_number else block_hash


class EventBook:
    """Describes blocks when they are planned, tells of them when they are stored. One thread."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._blocks: OrderedDict[bytes, _Block] = OrderedDict()
        self._told: OrderedDict[bytes, Hash] = OrderedDict()
        self._events: list[Stored | Removed] = []

    def planned(
        self,
        digests: Sequence[bytes],
        hashes: Sequence[Hash],
        parent: Hash | None,
        tokens: Sequence[int],
        lora_id: int | None,
        lora_name: str | None,
    ) -> None:
        """Blocks in the order of their chain; `tokens` are those of all of them."""
        size = self._block_size
        for at, (digest, value) in enumerate(zip(digests, hashes, strict=True)):
            mine = tuple(tokens[at * size : (at + 1) * size])
            self._blocks[digest] = _Block(value, parent, mine, lora_id, lora_name)
            parent = value
        _bound(self._blocks)

    def stored(self, digests: Iterable[bytes]) -> None:
        """These are in the pool now; runs of one chain become one event."""
        run: list[_Block] = []
        for digest in digests:
            block = self._blocks.pop(digest, None)
            if block is None or digest in self._told:
                continue
            self._told[digest] = block.hash
            if run and block.parent != run[-1].hash:
                self._close(run)
                run = []
            run.append(block)
        self._close(run)
        _bound(self._told)

    def removed(self, digests: Iterable[bytes]) -> None:
        """The pool does not have these; only those that were told of matter."""
        hashes = [told for digest in digests if (told := self._told.pop(digest, None)) is not None]
        if hashes:
            self._events.append(Removed(tuple(hashes)))

    def take(self) -> list[Stored | Removed]:
        events, self._events = self._events, []
        return events

    def _close(self, run: Sequence[_Block]) -> None:
        if run:
            first = run[0]
            tokens = tuple(token for block in run for token in block.tokens)
            hashes = tuple(block.hash for block in run)
            self._events.append(
                Stored(
                    hashes, first.parent, tokens, self._block_size, first.lora_id, first.lora_name
                )
            )


def _bound(book: OrderedDict[bytes, Any]) -> None:
    while len(book) > BLOCKS_MAX:
        book.popitem(last=False)
