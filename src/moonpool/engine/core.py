"""One step of the engine after the other, in whoever's thread calls it: no thread, no clock here.

A step lets requests in, computes chunks of prompts, then one token of each running answer. Nothing
a client or the pool does can raise out of `step`; a request that fails gets its error as news.
"""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from typing import TYPE_CHECKING

from moonpool.cache.namespace import Namespace
from moonpool.cache.pages import PagePool
from moonpool.core.engine_section import EngineConfig
from moonpool.core.errors import BadInput, EngineBusy
from moonpool.engine.chunked_cache import ChunkedCache
from moonpool.engine.job import Job
from moonpool.engine.request import Finish, Request, Reuse, Step
from moonpool.engine.scheduler import Chunk, Scheduler

if TYPE_CHECKING:
    from torch import Tensor

    from moonpool.engine.model.attention.base import Span
    from moonpool.engine.model.runner import Runner

News = tuple[int, Step]


class EngineCore:
    """A runner, its pages, and the requests on them. Not thread-safe."""

    def __init__(
        self, runner: Runner, pages: PagePool, config: EngineConfig, context_tokens: int
    ) -> None:
        self.config = config
        self.context_tokens = context_tokens
        self.cache = ChunkedCache(
            pages.allocator,
            config.block_size,
            chunk_tokens=config.chunk_tokens,
            reserve_fraction=config.reserve_percent / 100,
        )
        self.scheduler = Scheduler(self.cache, config)
        self.counts: Counter[str] = Counter()
        self._runner = runner
        self._pages = pages
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Job] = {}
        self._news: list[News] = []

    def check(self, request: Request) -> None:
        """Raises BadInput for what can never be served here. Thread-safe."""
        prompt = len(request.prompt)
        if prompt == 0:
            raise BadInput("a prompt has at least one token")
        if request.max_tokens < 1:
            raise BadInput(f"max_tokens is at least 1, not {request.max_tokens}")
        if prompt >= self.context_tokens:
            raise BadInput(
                f"the prompt has {prompt} tokens; this model takes {self.context_tokens} for "
                "prompt and answer together"
            )
        vocabulary = self._runner.vocabulary_size
        low, high = min(request.prompt), max(request.prompt)
        if low < 0 or high >= vocabulary:
            raise BadInput(f"token {low if low < 0 else high} is none of this model's {vocabulary}")
        room = self._pages.pages * self.config.block_size
        if prompt + 1 > room:
            raise BadInput(
                f"the prompt has {prompt} tokens; the cache has pages for {room} (engine.kv_memory)"
            )
        _ = request.sampling

    def add(self, request: Request, now: float) -> int:
        """Queue a request; its number. Raises BadInput, EngineBusy."""
        self.check(request)
        self.scheduler.check_room(len(self.scheduler.waiting))
        prompt = len(request.prompt)
        most = min(self.context_tokens, self._pages.pages * self.config.block_size)
        sampling = request.sampling
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        sequence = self.cache.sequence(
            request.prompt,
            min(prompt + request.max_tokens, most),
            Namespace(salt=request.salt),
        )
        job = Job(next(self._numbers), request, sampling, seed, sequence, now)
        self._jobs[job.number] = job
        self.scheduler.waiting.append(job)
        self.counts["requests"] += 1
        self.counts["prompt_tokens"] += prompt
        return job.number

    def abort(self, number: int) -> None:
        """Forget a request; its last news says so. Nothing happens when it is over."""
        job = self._jobs.get(number)
        if job is not None:
            self._end(job, "abort")

    @property
    def is_idle(self) -> bool:
        """Nothing to do until somebody asks."""
        return not self.scheduler.waiting and not self.scheduler.running

    def step(self, now: float) -> list[News]:
        """Do what is next; what is new of each request."""
        for job in self.scheduler.expired(now):
            self._refuse(job, now)
        for job in self.scheduler.admit():
            self._begin(job)
        for chunk in self.scheduler.chunks():
            if chunk.job.computed == chunk.start and chunk.job in self.scheduler.running:
                self._compute(chunk)
        self._decode()
        news, self._news = self._news, []
        return news

    def figures(self) -> dict[str, float]:
        """Counters and gauges by name."""
        cache = self.cache
        return {
            **self.counts,
            "running": len(self.scheduler.running),
            "waiting": len(self.scheduler.waiting),
            "pages": cache.allocator.pages,
            "free_pages": cache.allocator.free_pages,
            "cached_pages": cache.tree.cached_pages,
            "evicted_pages": cache.counts.evicted_pages,
            "preempted": cache.counts.preempted,
        }

    def _begin(self, job: Job) -> None:
        if not job.answered:
            job.reuse = Reuse(local_tokens=job.computed)
            self.counts["local_tokens"] += job.computed

    def _compute(self, chunk: Chunk) -> None:
        job = chunk.job
        if job in self.scheduler.make_room(job, chunk.end):
            return
        logits = self._runner.prefill(
            job.sequence.tokens[chunk.start : chunk.end].tolist(),
            self._span(job, chunk.start, chunk.end),
            None,
            last=chunk.is_last,
        )
        self.counts["computed_tokens"] += chunk.end - chunk.start
        job.computed = chunk.end
        if chunk.end - chunk.start == self.config.chunk_tokens:
            self.cache.commit(job.sequence, chunk.end)
        if logits is not None and job.answered == 0:
            self._answer(job, logits)

    def _decode(self) -> None:
        waiting = self.scheduler.decoding()
        for job in waiting:
            if job in self.scheduler.running:
                self.scheduler.make_room(job, job.computed + 1)
        ready = [job for job in waiting if job in self.scheduler.running]
        rows = self._runner.decode_rows
        for first in range(0, len(ready), rows):
            batch = ready[first : first + rows]
            logits = self._runner.decode(
                [int(job.sequence.tokens[job.computed]) for job in batch],
                [self._span(job, job.computed, job.computed + 1) for job in batch],
            )
            for job, row in zip(batch, logits, strict=True):
                known = not job.at_the_end
                job.computed += 1
                if not known:
                    self._answer(job, row)

    def _answer(self, job: Job, logits: Tensor) -> None:
        """The next token of the answer."""
        from moonpool.engine.model.sampling import draw, sample

        token = sample(logits, job.sampling, draw(job.seed, job.answered))
        job.sequence.append(token)
        self.counts["answer_tokens"] += 1
        finish: Finish | None = None
        if token in job.request.end_ids:
            finish = "stop"
        elif len(job.sequence) == job.sequence.tokens_max:
            finish = "length"
        self._news.append((job.number, Step([token], finish, job.reuse)))
        if finish is not None:
            self._forget(job)

    def _refuse(self, job: Job, now: float) -> None:
        self.counts["refused"] += 1
        waited = now - job.arrived_s
        error = EngineBusy(
            f"no pages for {job.prompt_tokens} tokens within {waited:.1f} s (engine.queue_ms); "
            f"{len(self.scheduler.running)} requests are running",
            retry_after_s=max(1.0, waited / 4),
        )
        self._news.append((job.number, Step([], "busy", job.reuse, error)))
        del self._jobs[job.number]

    def _end(self, job: Job, finish: Finish) -> None:
        self.counts["aborted"] += finish == "abort"
        self._news.append((job.number, Step([], finish, job.reuse)))
        self._forget(job)

    def _forget(self, job: Job) -> None:
        self.scheduler.remove(job)
        del self._jobs[job.number]

    def _span(self, job: Job, start: int, end: int) -> Span:
        return self._runner.span(job.sequence.table, start, end)
