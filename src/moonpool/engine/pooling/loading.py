"""Blocks on their way from the pool into a job's pages, layers first to last.

On this host the layers are copied group by group under a lease, while the model already computes
with the first ones; at the end each object's CRC is checked where it lies, and nothing computed so
far counts before that. From other hosts whole objects come, each with its CRC.

    running ── all there, and whole ──> done
       └────── anything else ────────> failed: computed instead

Whoever gave the pages must not use them for anything else before `run` has
called `ended`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from moonpool.core.clock import Clock, Deadline
from moonpool.engine.pooling.page_bytes import PageBytes
from moonpool.pool.pool import Pool
from moonpool.pool.results import Miss


class LoadFailed(Exception):
    """The blocks did not come; they are computed. It never leaves the engine."""


class Load:
    """`run` is for a thread of its own; the rest is for the engine's."""

    def __init__(
        self,
        keys: Sequence[bytes],
        pages: npt.NDArray[np.int32],
        memory: PageBytes,
        *,
        tokens: int,
        local: bool,
        deadline: Deadline,
        begin_at: int,
        clock: Clock,
    ) -> None:
        self.tokens = tokens
        """Leading tokens of the job that are in its pages afterwards."""
        self.size = len(keys) * memory.size
        self.seconds = 0.0
        """How long it took, when it ended well."""
        self._keys = list(keys)
        self._pages = pages.copy()
        self._memory = memory
        self._local = local
        self._deadline = deadline
        self._begin_at = min(begin_at, memory.groups)
        self._clock = clock
        self._changed = threading.Condition()
        self._arrived = 0
        self._ended = False
        self._error = ""

    @property
    def error(self) -> str:
        """Why it failed; "": it did not, so far."""
        return self._error

    @property
    def may_begin(self) -> bool:
        """So many layers are there that a pass would not wait long for the rest."""
        return not self._error and self._arrived >= self._begin_at

    def cancel(self) -> None:
        """Nobody needs it any more; it ends soon."""
        with self._changed:
            self._error = self._error or "it was cancelled"
            self._changed.notify_all()

    def wait_layer(self, layer: int) -> None:
        """Returns when the layer is in the pages. Raises LoadFailed."""
        needed = self._memory.group_of(layer) + 1
        if self._arrived < needed:
            self._wait(lambda: self._arrived >= needed)

    def wait_end(self) -> None:
        """Returns when all of it is there and proved. Raises LoadFailed."""
        self._wait(lambda: self._ended)

    def run(self, pool: Pool, ended: Callable[[], None]) -> None:
        """Raises nothing: whatever goes wrong, the blocks are computed."""
        started = self._clock.monotonic()
        try:
            if self._local:
                self._copy_groups(pool)
                self._prove(pool)
            else:
                self._fetch(pool)
            self.seconds = self._clock.monotonic() - started
        except Exception as error:
            self._error = self._error or str(error) or type(error).__name__
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            ended()

    def _copy_groups(self, pool: Pool) -> None:
        memory = self._memory
        with pool.read_session(self._keys, layers=memory.groups, timeout_s=self._left()) as session:
            if any(size != memory.size for size in session.sizes):
                missed = next((miss for miss in session.misses if miss), None)
                raise LoadFailed(f"a block is {missed.reason if missed else 'of another size'}")
            for group in range(memory.groups):
                if self._error:
                    raise LoadFailed(self._error)
                if not all(session.read(group, memory.group(self._pages, group))):
                    raise LoadFailed("a block went away while it was read")
                self._has_arrived(group + 1)

    def _prove(self, pool: Pool) -> None:
        """The objects are still what was put: what was copied from them was it, too."""
        for key in self._keys:
            view = pool.view(key, verify=True, timeout_s=self._left())
            try:
                if view.data is None:
                    raise LoadFailed(f"a block is {view.miss.reason if view.miss else 'gone'}")
            finally:
                view.close()

    def _fetch(self, pool: Pool) -> None:
        buffers = self._memory.whole(self._pages)
        for answer in pool.get_many_into(self._keys, buffers, timeout_s=self._left()):
            if isinstance(answer, Miss):
                raise LoadFailed(f"a block is {answer.reason}")
            if answer.size != self._memory.size:
                raise LoadFailed("a block is of another size")
        self._has_arrived(self._memory.groups)

    def _has_arrived(self, groups: int) -> None:
        with self._changed:
            self._arrived = groups
            self._changed.notify_all()

    def _wait(self, there: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: there() or bool(self._error), self._left())
            if self._error:
                raise LoadFailed(self._error)
            if not there():
                self._error = "it took too long"
                raise LoadFailed(self._error)

    def _left(self) -> float:
        left = self._deadline.left(self._clock.monotonic())
        if left <= 0:
            raise LoadFailed("it took too long")
        return left
