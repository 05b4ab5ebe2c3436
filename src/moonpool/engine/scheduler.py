"""Whose turn it is. Pure: time is an argument, pages are the cache manager's, nothing is computed.

First come, first admitted: the first that does not fit stops the queue, so none is overtaken for
ever. Among admitted prompts the shortest remaining one and the oldest take turns: a prompt found in
the pool does not wait for a long one that was not, and a long one goes on all the same.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from moonpool.core.engine_section import EngineConfig
from moonpool.core.errors import EngineBusy, OutOfPages
from moonpool.engine.chunked_cache import ChunkedCache
from moonpool.engine.job import Job


class Chunk(NamedTuple):
    """Tokens `start` to `end` of a prompt, for one pass."""

    job: Job
    start: int
    end: int

    @property
    def tokens(self) -> int:
        return self.end - self.start

    @property
    def is_last(self) -> bool:
        """It gives the first token of the answer."""
        return self.end == self.job.prompt_tokens


class Scheduler:
    """Waiting and running jobs over one cache. Running ones are in order of admission."""

    def __init__(self, cache: ChunkedCache, config: EngineConfig, lanes: int = 1) -> None:
        self.cache = cache
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.parked: set[Job] = set()
        self._config = config
        self._lanes = lanes
        self._turn = 0

    def check_room(self, queued: int) -> None:
        """Raises EngineBusy when `queued` requests are as many as may wait."""
        if queued >= self._config.queue_max:
            raise EngineBusy(
                f"{queued} requests are waiting, no more may (engine.queue_max)",
                retry_after_s=1.0,
            )

    def expired(self, now: float) -> list[Job]:
        """Those that waited too long; they are out of the queue. Preempted ones have begun to
        answer and stay."""
        limit = now - self._config.queue_ms / 1000
        late = [job for job in self.waiting if job.arrived_s < limit and not job.answered]
        for job in late:
            self.waiting.remove(job)
        return late

    def admit(self) -> list[Job]:
        """Lets in whom it has pages for; each begins behind what was found cached."""
        admitted = []
        while self.waiting and len(self.running) < self._config.running_max:
            job = self.waiting[0]
            if not self.cache.admit(job.sequence):
                break
            self.waiting.popleft()
            self.running.append(job)
            job.computed = job.sequence.cached_tokens
            admitted.append(job)
        return admitted

    def chunks(self) -> list[Chunk]:
        """The prompts' next chunks, as many as one step takes. Behind blocks that are still being
        loaded comes one chunk only: it is not known yet whether it counts."""
        count = self._chunks_now()
        planned: list[Chunk] = []
        after: dict[Job, int] = {}
        for _ in range(count):
            ready = [
                job
                for job in self.running
                if after.get(job, job.computed) < job.prompt_tokens
                and job.can_run
                and not (job.load is not None and job in after)
            ]
            if not ready:
                break
            self._turn += 1
            job = ready[0] if self._turn % 2 else min(ready, key=_left)
            start = after.get(job, job.computed)
            end = min(start + self._config.chunk_tokens, job.prompt_tokens)
            after[job] = end
            planned.append(Chunk(job, start, end))
        return planned

    def _chunks_now(self) -> int:
        """A lane waits for the others at the end of a step: who is alone meets that half as often,
        and whoever comes meanwhile waits for two chunks at most."""
        if self.decoding():
            return self._config.step_chunks
        alone = len(self.running) == 1 and not self.waiting
        return 2 * self._lanes if alone and self._lanes > 1 else self._lanes

    def decoding(self) -> list[Job]:
        """Jobs that go on by one token."""
        return [job for job in self.running if not job.in_prefill and job.load is None]

    def make_room(self, job: Job, tokens: int) -> list[Job]:
        """Pages for the first `tokens` tokens of a running job.

        Returns whom it preempted for that, youngest first; `job` itself is among them when there
        is no room now. Nobody whose pages others read or write is preempted.
        """
        preempted: list[Job] = []
        while True:
            try:
                self.cache.grow(job.sequence, tokens)
                return preempted
            except OutOfPages:
                victim = next((one for one in reversed(self.running) if not one.is_pinned), None)
                if victim is None:
                    return [*preempted, job]
                self.preempt(victim)
                preempted.append(victim)
                if victim is job:
                    return preempted

    def preempt(self, job: Job) -> None:
        """Back to the head of the queue, without its pages."""
        self.cache.preempt(job.sequence)
        self.running.remove(job)
        self.waiting.appendleft(job)
        job.computed = 0

    def park(self, job: Job) -> None:
        """It is over, but its pages are kept until remove()."""
        self.running.remove(job)
        self.parked.add(job)

    def remove(self, job: Job) -> None:
        """It is over: its pages are free, or evictable where they are shared."""
        if job in self.parked:
            self.parked.remove(job)
            self.cache.finish(job.sequence)
        elif job in self.running:
            self.running.remove(job)
            self.cache.finish(job.sequence)
        else:
            self.waiting.remove(job)


def _left(job: Job) -> int:
    return job.prompt_tokens - job.computed
