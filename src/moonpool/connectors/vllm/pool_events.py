"""Follows the pool's event log for blocks that this engine told of and that the pool dropped since.

One thread that waits at the master; the scheduler's thread takes what it brings.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from moonpool.connectors.vllm.events import BLOCKS_MAX, EventBook, Removed, Stored, published
from moonpool.connectors.vllm.keys import KeySpaces, Shard, block_digests
from moonpool.connectors.vllm.link import PoolLink
from moonpool.connectors.vllm.metadata import SaveJob
from moonpool.core.errors import MoonpoolError
from moonpool.pool.pool import Pool

_WAIT_S = 1.0
_BATCH = 1000


class PoolEvents:
    """Blocks of the first group, which is what vLLM's events are about without `group_idx`."""

    def __init__(
        self, spaces: KeySpaces, hash_tokens: int, link: PoolLink, *, as_numbers: bool
    ) -> None:
        self._block_size = spaces.identity.groups[0].block_size
        self._hash_tokens = hash_tokens
        self._spaces = spaces
        self._link = link
        self._book = EventBook(self._block_size)
        self._as_numbers = as_numbers
        self._lock = threading.Lock()
        self._digests: OrderedDict[bytes, bytes] = OrderedDict()  # of keys on their way or stored
        self._stored: set[bytes] = set()  # digests among them
        self._gone: dict[bytes, None] = {}  # in order, each once: an idle engine takes none of it
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="moonpool-events", daemon=True)
        self._thread.start()

    def planned(self, job: SaveJob, request: Any) -> None:
        """Blocks on their way to the pool, while the request that knows their tokens is there."""
        size = self._block_size
        per_block = size // self._hash_tokens
        for run in job.runs:
            if run.group != 0 or request is None:
                continue
            whole = request.block_hashes[per_block - 1 :: per_block]
            digests = block_digests(request.block_hashes, per_block)
            first = digests.index(run.digests[0])
            hashes = [published(value, self._as_numbers) for value in whole]
            lora = request.lora_request
            self._book.planned(
                run.digests,
                hashes[first : first + len(run)],
                hashes[first - 1] if first else None,
                list(request.all_token_ids[first * size : (first + len(run)) * size]),
                lora.lora_int_id if lora else None,
                lora.lora_name if lora else None,
            )
            keys = self._spaces.keys(0, Shard(), job.namespace, run.digests)
            with self._lock:
                self._digests.update(zip(keys, run.digests, strict=True))
                while len(self._digests) > BLOCKS_MAX:
                    self._stored.discard(self._digests.popitem(last=False)[1])

    def stored(self, digests: Sequence[bytes]) -> None:
        with self._lock:
            self._stored.update(digests)
            if len(self._stored) > 2 * BLOCKS_MAX:  # of keys that had to go
                self._stored.intersection_update(self._digests.values())
        self._book.stored(digests)

    def take(self) -> list[Stored | Removed]:
        with self._lock:
            gone, self._gone = self._gone, {}
        self._book.removed(gone)
        return self._book.take()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(2 * _WAIT_S)

    def _follow(self) -> None:
        position = (0, 0)
        while not self._closing.is_set():
            pool = self._link.pool()
            if pool is None:
                self._closing.wait(_WAIT_S)
                continue
            try:
                batch = pool.events(position, wait_s=_WAIT_S / 2, timeout_s=_WAIT_S)
                if batch.rebase:
                    self._compare(pool)
            except MoonpoolError:  # whoever loads and saves says that the pool is away
                self._closing.wait(_WAIT_S)
                continue
            position = batch.position
            self._note(event.key for event in batch.events if event.gone)

    def _compare(self, pool: Pool) -> None:
        """The log does not reach back to where we were: ask for each block that was stored. What is
        on its way is not there yet, which is no loss."""
        with self._lock:
            keys = [key for key, digest in self._digests.items() if digest in self._stored]
        for at in range(0, len(keys), _BATCH):
            part = keys[at : at + _BATCH]
            there = pool.exists(part, timeout_s=_WAIT_S)
            self._note(key for key, found in zip(part, there, strict=True) if not found)

    def _note(self, keys: Iterable[bytes]) -> None:
        with self._lock:
            for key in keys:
                digest = self._digests.get(key)
                if digest is not None:
                    self._stored.discard(digest)
                    self._gone[digest] = None
