"""What one engine has under way with the pool, and what each job has to do with it.

All of it happens in the engine's thread; without a pool every call does nothing. Pages that are
read or written by the pool's threads are given to nobody else before those have left them: a job
with a load stays until the load has ended, a store holds a lease or is cancelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moonpool.core.errors import OutOfPages
from moonpool.engine.chunked_cache import ChunkedCache
from moonpool.engine.job import Job
from moonpool.engine.pooling.link import Loaded, LookedUp, PoolLink, Stored

if TYPE_CHECKING:
    from moonpool.engine.pooling.loading import Load
    from moonpool.engine.pooling.storing import Store


@dataclass(slots=True)
class Heard:
    """What became of jobs since the last time."""

    looked_up: list[Job] = field(default_factory=list)
    loaded: list[Job] = field(default_factory=list)
    left: list[Job] = field(default_factory=list)
    """Aborted while they were loading; their pages are quiet now."""
    anything: bool = False


class PassWatch:
    """Of one pass: waits for layers that are being loaded, tells of those to be stored."""

    def __init__(self, load: Load | None, store: Store | None) -> None:
        self._load = load
        self._store = store

    def before(self, layer: int) -> None:
        if self._load is not None:
            self._load.wait_layer(layer)

    def after(self, layer: int) -> None:
        if self._store is not None:
            self._store.layer_done(layer)


class Traffic:
    def __init__(self, link: PoolLink | None, cache: ChunkedCache) -> None:
        self._link = link
        self._cache = cache
        self._looking: set[int] = set()
        self._leaving: set[int] = set()

    @property
    def looking(self) -> int:
        """Jobs whose blocks are asked for."""
        return len(self._looking)

    def look_up(self, job: Job) -> bool:
        """Ask the pool for the prompt's whole chunks; False: it need not be waited for."""
        whole = job.prompt_tokens // self._cache.chunk_tokens * self._cache.chunk_tokens
        if self._link is None or not self._link.look_up(job, whole):
            return False
        self._looking.add(job.number)
        return True

    def leave(self, job: Job) -> bool:
        """It is aborted. True: nothing is to be freed now; it comes up in `left` if it must."""
        if job.number in self._looking:
            self._looking.discard(job.number)
            return True
        if job.load is None:
            return False
        job.load.cancel()
        self._leaving.add(job.number)
        return True

    def hear(self) -> Heard:
        """What ended."""
        heard = Heard()
        for event in self._link.take() if self._link else ():
            heard.anything = True
            match event:
                case LookedUp():
                    self._looked_up(event)
                    heard.looked_up.append(event.job)
                case Loaded(job, load):
                    if job.load is load:
                        self._ended(job, load, heard)
                case Stored(store):
                    if store.lease is not None:
                        store.lease.release()
        return heard

    def begin(self, job: Job) -> None:
        """It was admitted behind `computed` tokens of its own: load what the pool has more, store
        what it has less."""
        if self._link is None or not job.keys:
            return
        size, chunk = self._cache.page_size, self._cache.chunk_tokens
        reusable = self._cache.reusable_tokens(job.sequence)
        there = min(job.pool_blocks * size, reusable) // chunk * chunk
        more = there - job.computed
        if more > 0 and self._link.worth_loading(more, more // size):
            self._load(job, there)
        elif job.computed > job.pool_blocks * size:
            first, end = job.pool_blocks, job.computed // size
            store = self._link.begin_store(job, job.sequence.table[first:end], first)
            if store is not None:
                store.lease = self._cache.hold(job.sequence, job.computed)
                store.all_done()

    def begin_store(self, job: Job, start: int, end: int) -> Store | None:
        """A chunk that is about to be computed, as far as the pool does not have it."""
        size = self._cache.page_size
        if self._link is None or not job.keys or end <= job.pool_blocks * size:
            return None
        pages = job.sequence.table[start // size : end // size]
        return self._link.begin_store(job, pages, start // size)

    def hold(self, job: Job, store: Store | None, end: int, rewritten: int) -> None:
        """The chunk's pass is over and its pages are shared: they stay until they are stored. When
        somebody else's copies took their place, those are on their way already."""
        if store is None:
            return
        if rewritten:
            store.cancel()
        else:
            store.lease = self._cache.hold(job.sequence, end)

    def give_up(self, job: Job, store: Store | None) -> None:
        """The pass failed for what did not come; the job goes on when its load has ended."""
        if store is not None:
            store.cancel()
        if job.load is not None:
            job.load.cancel()

    @contextmanager
    def timed(self, tokens: int) -> Iterator[None]:
        """Around a pass over so many tokens that waits for nothing; 0: it may have to."""
        if self._link is None or not tokens:
            yield
            return
        started = self._link.clock.monotonic()
        yield
        self._link.cost.computed(tokens, self._link.clock.monotonic() - started)

    def _looked_up(self, event: LookedUp) -> None:
        job = event.job
        self._looking.discard(job.number)
        if event.answered:
            job.keys = event.keys
            job.pool_blocks = event.blocks
            job.pool_is_local = event.local

    def _load(self, job: Job, there: int) -> None:
        assert self._link is not None
        size, first = self._cache.page_size, job.computed // self._cache.page_size
        try:
            self._cache.grow(job.sequence, there)
        except OutOfPages:
            return
        pages = job.sequence.table[first : there // size]
        job.load_from = job.computed
        job.load = self._link.begin_load(job, pages, first, there // size, job.pool_is_local)
        job.computed = there

    def _ended(self, job: Job, load: Load, heard: Heard) -> None:
        if job.number in self._leaving:
            self._leaving.discard(job.number)
            job.load = None
            heard.left.append(job)
        elif load.error:
            job.load = None
            job.computed = job.load_from
            job.pool_blocks = job.load_from // self._cache.page_size
        else:
            heard.loaded.append(job)
