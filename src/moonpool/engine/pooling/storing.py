"""Blocks of one chunk on their way into the pool, while the model still computes its last layers.

The writer reads the engine's pages. They stay as they are because the engine holds them; where it
cannot (the chunk's pass failed, or its pages were given up for somebody else's copies), it cancels
first, and what was written is then never committed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from moonpool.cache.radix import Lease
from moonpool.core.errors import MoonpoolError
from moonpool.engine.pooling.page_bytes import PageBytes
from moonpool.pool.pool import Pool
from moonpool.pool.results import PutStatus

PASS_S: Final = 5.0
"""Longer than a chunk's pass takes; within the master's `reservation_ms`."""


class Store:
    """`run` is for the writing thread; the rest is for the engine's."""

    def __init__(
        self,
        keys: Sequence[bytes],
        parent: bytes | None,
        pages: npt.NDArray[np.int32],
        memory: PageBytes,
    ) -> None:
        self.lease: Lease | None = None
        """Holds the pages; the engine releases it after the end."""
        self.stored = 0
        """Blocks that the pool has by this."""
        self.error = ""
        """Why some are not stored; "": all are, or were there before."""
        self.lost = False
        """The pool did not answer."""
        self._keys = list(keys)
        self._parent = parent
        self._pages = pages.copy()
        self._memory = memory
        self._changed = threading.Condition()
        self._ready = 0
        self._cancelled = False

    def layer_done(self, layer: int) -> None:
        """Keys and values of this layer are in the pages."""
        if self._memory.ends_group(layer):
            with self._changed:
                self._ready = self._memory.group_of(layer) + 1
                self._changed.notify_all()

    def all_done(self) -> None:
        """So are those of all layers."""
        with self._changed:
            self._ready = self._memory.groups
            self._changed.notify_all()

    def cancel(self) -> None:
        """Nothing that is written from now on may become visible."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()

    def run(self, pool: Pool, timeout_s: float) -> None:
        """Raises nothing: whatever goes wrong, the engine goes on without."""
        try:
            self._write(pool, timeout_s)
        except Exception as error:
            self.error = str(error) or type(error).__name__
            self.lost = isinstance(error, MoonpoolError) and not self._cancelled

    def _write(self, pool: Pool, timeout_s: float) -> None:
        memory = self._memory
        sizes = [memory.size] * len(self._keys)
        session = pool.write_session(
            self._keys,
            sizes,
            layers=memory.groups,
            parents="chain",
            parent=self._parent,
            timeout_s=timeout_s,
        )
        with session:
            if any(result is None for result in session.results):
                for group in range(memory.groups):
                    if not self._wait(group + 1):
                        session.abort()
                        self.error = "it was cancelled"
                        return
                    session.write(group, memory.group(self._pages, group))
                if self._cancelled:
                    session.abort()
                    self.error = "it was cancelled"
                    return
        results = [result for result in session.results if result is not None]
        self.stored = sum(result.status is PutStatus.STORED for result in results)
        refused = [result for result in results if not result.ok]
        if refused:
            self.error = refused[0].text or refused[0].status.value
            self.lost = refused[0].status is PutStatus.UNREACHABLE

    def _wait(self, groups: int) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._ready >= groups or self._cancelled, PASS_S)
            return self._ready >= groups and not self._cancelled
