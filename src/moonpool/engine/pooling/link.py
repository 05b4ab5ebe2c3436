"""The pool as the engine sees it: asks, loads and stores, in threads that the engine never waits
for without a deadline. What ended is laid down for the engine's own thread (`take`)."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Full, Queue
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from moonpool.core.clock import Clock, Deadline
from moonpool.core.engine_section import EngineConfig
from moonpool.core.errors import MoonpoolError
from moonpool.core.keys import KeySpec
from moonpool.engine.job import Job
from moonpool.engine.pooling.breaker import Breaker
from moonpool.engine.pooling.cost import CostModel
from moonpool.engine.pooling.loading import Load
from moonpool.engine.pooling.neighbours import announce
from moonpool.engine.pooling.page_bytes import PageBytes
from moonpool.engine.pooling.storing import Store
from moonpool.pool.pool import Pool

STORES_MAX: Final = 256
"""Chunks that wait to be stored; more are not stored."""
_LOADERS: Final = 2
_COUNTED: Final = (
    "pool_blocks_loaded",
    "pool_blocks_stored",
    "pool_blocks_dropped",
    "pool_loads_failed",
    "pool_lookups_failed",
    "pool_stores_failed",
    "pool_not_worth",
)


class LookedUp(NamedTuple):
    """What the pool has of a job's prompt."""

    job: Job
    keys: list[bytes]
    blocks: int
    local: bool
    """All of them on this host."""
    answered: bool


class Loaded(NamedTuple):
    job: Job
    load: Load


class Stored(NamedTuple):
    store: Store


Event = LookedUp | Loaded | Stored


class PoolLink:
    """Made with the engine, closed with it. `wake` is called when there is something to `take`."""

    def __init__(
        self,
        pool: Pool,
        spec: KeySpec,
        memory: PageBytes,
        config: EngineConfig,
        clock: Clock,
    ) -> None:
        self.clock = clock
        self.cost = CostModel()
        self.counts = Counter(dict.fromkeys(_COUNTED, 0))
        self.wake: Callable[[], None] = lambda: None
        self._pool = pool
        self._spec = spec
        self._memory = memory
        self._config = config
        self._breaker = Breaker()
        self._events: deque[Event] = deque()
        self._lookups = ThreadPoolExecutor(1, "moonpool-lookup")
        self._loaders = ThreadPoolExecutor(_LOADERS, "moonpool-load")
        self._stores: Queue[Store | None] = Queue(STORES_MAX)
        self._writer = threading.Thread(target=self._write, name="moonpool-store", daemon=True)
        self._writer.start()

    def neighbours(self) -> list[str]:
        """What other engines on this pool cannot share with this one, a line for each kind."""
        return announce(self._pool, self._spec)

    def take(self) -> list[Event]:
        """What ended since the last call. For the engine's thread."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def look_up(self, job: Job, tokens: int) -> bool:
        """Ask for the blocks of the prompt's first `tokens` tokens; False: the pool is left alone
        for now. A LookedUp follows."""
        if tokens == 0 or not self._breaker.may_ask(self.clock.monotonic()):
            return False
        self._lookups.submit(self._look_up, job, tokens)
        return True

    def begin_load(
        self, job: Job, pages: npt.NDArray[np.int32], first: int, blocks: int, local: bool
    ) -> Load:
        """Load blocks `first` to `blocks` of a job into `pages`; a Loaded follows."""
        size = self._config.block_size
        load = Load(
            job.keys[first:blocks],
            pages,
            self._memory,
            tokens=blocks * size,
            local=local,
            deadline=Deadline.after(self.clock.monotonic(), self._config.load_ms / 1000),
            begin_at=self._begin_at((blocks - first) * self._memory.size, job, blocks * size),
            clock=self.clock,
        )
        self._loaders.submit(load.run, self._pool, lambda: self._loaded(job, load))
        return load

    def worth_loading(self, tokens: int, blocks: int) -> bool:
        """Whether to load `blocks` instead of computing their `tokens`."""
        worth = self.cost.worth_loading(tokens, blocks * self._memory.size)
        self.counts["pool_not_worth"] += not worth
        return worth

    def begin_store(self, job: Job, pages: npt.NDArray[np.int32], first: int) -> Store | None:
        """Store blocks from `first` on, one for each of `pages`; None: too many wait."""
        keys = job.keys[first : first + len(pages)]
        store = Store(keys, job.keys[first - 1] if first else None, pages, self._memory)
        try:
            self._stores.put_nowait(store)
        except Full:
            self.counts["pool_blocks_dropped"] += len(keys)
            return None
        return store

    def figures(self) -> dict[str, float]:
        """Counters and gauges by name."""
        return {
            **self.counts,
            "pool_failures": self._breaker.failures,
            "pool_stores_waiting": self._stores.unfinished_tasks,  # the one under way, too
        }

    def drain(self) -> None:
        """Waits until everything asked for so far has ended; its news are to be taken then."""
        self._lookups.submit(int).result()
        # A thread that is free would take any number of tasks: each has to wait for the other.
        together = threading.Barrier(_LOADERS)
        for future in [self._loaders.submit(together.wait) for _ in range(_LOADERS)]:
            future.result()
        self._stores.join()

    def close(self) -> None:
        """Ends the threads; what waits to be stored is not."""
        while True:
            try:
                self._stores.put_nowait(None)
                break
            except Full:
                dropped = self._stores.get()
                if dropped is not None:
                    dropped.cancel()
        self._writer.join(self._config.load_ms / 1000 + 10.0)
        self._lookups.shutdown(wait=True, cancel_futures=True)
        self._loaders.shutdown(wait=True, cancel_futures=True)

    def _begin_at(self, size: int, job: Job, start: int) -> int:
        """Groups of layers to wait for before the first pass: with a slow pool most of them, or
        the pass would stand still and everybody else with it."""
        groups = self._memory.groups
        rest = min(job.prompt_tokens - start, self._config.chunk_tokens)
        for arrived in range(1, groups):
            left = size * (groups - arrived) // groups
            if not self.cost.slower_than_compute(left, rest):
                return arrived
        return groups

    def _look_up(self, job: Job, tokens: int) -> None:
        keys: list[bytes] = []
        blocks, local, answered = 0, False, False
        if not self._breaker.may_ask(self.clock.monotonic()):  # others have found it silent since
            self._tell(LookedUp(job, keys, blocks, local, answered))
            return
        try:
            spec = self._spec
            if job.request.salt is not None:
                spec = msgspec.structs.replace(spec, salt=job.request.salt)
            keys = list(spec.keys(job.sequence.tokens[:tokens].view(np.uint32)))
            match = self._pool.match_prefix(keys, timeout_s=self._config.lookup_ms / 1000)
            blocks, local, answered = match.count, match.local == match.count, True
            self._breaker.worked()
        except MoonpoolError:
            self.counts["pool_lookups_failed"] += 1
            self._breaker.failed(self.clock.monotonic())
        finally:
            self._tell(LookedUp(job, keys, blocks, local, answered))

    def _loaded(self, job: Job, load: Load) -> None:
        if load.error:
            self.counts["pool_loads_failed"] += 1
        else:
            self.counts["pool_blocks_loaded"] += load.size // self._memory.size
            self.cost.loaded(load.size, load.seconds)
        self._tell(Loaded(job, load))

    def _write(self) -> None:
        while (store := self._stores.get()) is not None:
            if self._breaker.may_ask(self.clock.monotonic()):
                store.run(self._pool, self._config.load_ms / 1000)
            else:
                store.error = "the pool does not answer"
            self._stored(store)
            self._stores.task_done()

    def _stored(self, store: Store) -> None:
        self.counts["pool_blocks_stored"] += store.stored
        self.counts["pool_stores_failed"] += bool(store.error)
        if store.lost:
            self._breaker.failed(self.clock.monotonic())
        self._tell(Stored(store))

    def _tell(self, event: Event) -> None:
        self._events.append(event)
        self.wake()
