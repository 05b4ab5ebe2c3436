"""Follows the pool's event log for blocks that this engine told of and that the pool dropped since.

One thread that waits at the master; the scheduler's thread takes what it brings.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from moonpool.connectors.vllm.events import EventBook, Removed, Stored, published
from moonpool.connectors.vllm.identity import EngineView, published_as_numbers
from moonpool.connectors.vllm.keys import KeySpaces, Shard, block_digests
from moonpool.connectors.vllm.link import PoolLink
from moonpool.connectors.vllm.metadata import SaveJob
from moonpool.core.errors import BadKey, MoonpoolError

_WAIT_S = 1.0
_GONE = {"remove", "evict", "node_lost"}


class PoolEvents:
    """Blocks of the first group, which is what vLLM's events are about without `group_idx`."""

    def __init__(self, view: EngineView, spaces: KeySpaces, link: PoolLink) -> None:
        self._view = view
        self._spaces = spaces
        self._link = link
        self._book = EventBook(view.groups[0].block_size)
        self._as_numbers = published_as_numbers()
        self._lock = threading.Lock()
        self._gone: list[bytes] = []
        self._specs: set[Any] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="moonpool-events", daemon=True)
        self._thread.start()

    def planned(self, job: SaveJob, request: Any) -> None:
        """Blocks on their way to the pool, while the request that knows their tokens is there."""
        size = self._view.groups[0].block_size
        per_block = size // self._view.hash_tokens
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
            with self._lock:
                self._specs.add(self._spaces.spec(0, Shard(), job.namespace))

    def stored(self, digests: Sequence[bytes]) -> None:
        self._book.stored(digests)

    def take(self) -> list[Stored | Removed]:
        with self._lock:
            gone, self._gone = self._gone, []
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
            except MoonpoolError:  # whoever loads and saves says that the pool is away
                self._closing.wait(_WAIT_S)
                continue
            position = batch.position
            self._note([event.key for event in batch.events if event.kind in _GONE])

    def _note(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            prefixes = {spec.prefix: spec for spec in self._specs}
            for key in keys:
                spec = prefixes.get(key[: key.rfind(b"/") + 1])
                if spec is None:
                    continue
                try:
                    self._gone.append(spec.digest(key))
                except BadKey:
                    continue
