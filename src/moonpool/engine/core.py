"""One step of the engine after the other, in whoever's thread calls it: no thread, no clock here.

A step lets requests in, computes chunks of prompts, then one token of each running answer. Nothing
a client or the pool does can raise out of `step`; a request that fails gets its error as news.
"""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from moonpool.cache.namespace import Namespace
from moonpool.cache.pages import PagePool
from moonpool.core.engine_section import EngineConfig
from moonpool.core.errors import BadInput, EngineBusy, OutOfPages
from moonpool.engine.chunked_cache import ChunkedCache
from moonpool.engine.job import Job
from moonpool.engine.passes import Begun, Both, Pass, Watch
from moonpool.engine.pooling.loading import LoadFailed
from moonpool.engine.pooling.traffic import PassWatch, Traffic
from moonpool.engine.request import Finish, Request, Reuse, Step, check_request
from moonpool.engine.scheduler import Chunk, Scheduler

if TYPE_CHECKING:
    from torch import Tensor

    from moonpool.engine.disagg import Disagg, Outcome
    from moonpool.engine.model.attention.base import Span
    from moonpool.engine.model.runner import Runner
    from moonpool.engine.pooling.link import PoolLink
    from moonpool.engine.pooling.storing import Store

Run = Callable[["list[Pass]"], "list[Tensor | Exception | None]"]
IDLE_S = 0.02
"""How long to wait for the pool, or for pages, before looking again."""


class EngineCore:
    """A runner, its pages, and the requests on them. Not thread-safe, but for `check`, `figures`.

    `tell(number, step)` is called with what is new of a request, as soon as it is.
    """

    def __init__(
        self,
        runner: Runner,
        pages: PagePool,
        config: EngineConfig,
        context_tokens: int,
        link: PoolLink | None = None,
        disagg: Disagg | None = None,
    ) -> None:
        self.config = config
        self.disagg = disagg
        self.context_tokens = context_tokens
        self.link = link
        self.cache = ChunkedCache(
            pages.allocator,
            config.block_size,
            chunk_tokens=config.chunk_tokens,
            reserve_fraction=config.reserve_percent / 100,
            events_max=2 * pages.pages if config.events else 0,
        )
        self.scheduler = Scheduler(self.cache, config, runner.lanes)
        self.counts = Counter(dict.fromkeys(_COUNTED, 0))
        self.tell: Callable[[int, Step], None] = lambda number, step: None
        self.runner = runner
        self._pages = pages
        self._traffic = Traffic(link, self.cache)
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Job] = {}

    def check(self, request: Request) -> None:
        """Raises BadInput for what can never be served here. Thread-safe."""
        check_request(
            request,
            context_tokens=self.context_tokens,
            vocabulary_size=self.runner.vocabulary_size,
            cache_tokens=self._pages.pages * self.config.block_size,
        )
        if request.transfer:
            self._check_transfer(request.transfer)

    def add(self, request: Request, now: float) -> int:
        """Queue a request; its number. Raises BadInput, EngineBusy."""
        self.check(request)
        self.scheduler.check_room(len(self.scheduler.waiting) + self._traffic.looking)
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
        if self.disagg is not None:
            self.disagg.queued(job, self.cache.reusable_tokens(sequence))
        self._jobs[job.number] = job
        if not self._traffic.look_up(job):
            self.scheduler.waiting.append(job)
        self.counts["requests"] += 1
        self.counts["prompt_tokens"] += prompt
        return job.number

    def abort(self, number: int) -> None:
        """Forget a request; its last news says so. Nothing happens when it is over."""
        job = self._jobs.pop(number, None)
        if job is None:
            return
        self.counts["aborted"] += 1
        self.tell(job.number, Step([], "abort", job.reuse))
        if not self._traffic.leave(job):  # else its pages follow when the pool has left them
            self._free(job, "abort")
        elif self.disagg is not None and not job.is_pinned:
            self.disagg.over(job, "abort")

    def step(self, now: float) -> float | None:
        """Do what is next. Seconds until there may be more to do; None: not before somebody asks
        or the pool answers."""
        heard = self._hear()
        for job in self.scheduler.expired(now):
            self._refuse(job, now)
        admitted = self.scheduler.admit()
        for job in admitted:
            self._begin(job)
        computed = self._prefill()
        decoded = self._decode()
        if heard or admitted or computed or decoded:
            return 0.0
        return None if self.is_idle else IDLE_S

    @property
    def is_idle(self) -> bool:
        """Nothing to do until somebody asks."""
        scheduler = self.scheduler
        return not (scheduler.waiting or scheduler.running or self._traffic.looking)

    def figures(self) -> dict[str, float]:
        """Counters and gauges by name."""
        cache = self.cache
        return {
            **self.counts,
            "running": len(self.scheduler.running),
            "waiting": len(self.scheduler.waiting) + self._traffic.looking,
            "pages": cache.allocator.pages,
            "free_pages": cache.allocator.free_pages,
            "cached_pages": cache.tree.cached_pages,
            "evicted_pages": cache.counts.evicted_pages,
            "preempted": cache.counts.preempted,
            **(self.link.figures() if self.link else {}),
            **(self.disagg.figures() if self.disagg else {}),
        }

    def _hear(self) -> bool:
        """What the pool's threads laid down."""
        heard = self._traffic.hear()
        for job in heard.looked_up:
            if job.number in self._jobs:
                self.scheduler.waiting.append(job)
        for job in heard.left:
            self._free(job, "abort")
        for job in heard.loaded:
            self._arrived(job)
        outcomes = self.disagg.settled() if self.disagg is not None else []
        for outcome in outcomes:
            self._handed_over(outcome)
        return heard.anything or bool(outcomes)

    def _handed_over(self, outcome: Outcome) -> None:
        """Nobody else reads or writes the job's pages any more."""
        job = outcome.job
        if outcome.is_over:
            if outcome.sent:
                self._share(job, min(job.computed, outcome.tokens))
            self.scheduler.remove(job)
        elif outcome.sent:
            self._share(job, min(job.computed, outcome.tokens))
        elif outcome.ok:
            job.reuse = job.reuse._replace(peer_tokens=outcome.tokens - job.computed)
            self.counts["peer_tokens"] += outcome.tokens - job.computed
            job.computed = outcome.tokens
            self.cache.commit(job.sequence, outcome.tokens)
        else:
            self.counts["peer_failures"] += 1
            self._traffic.begin(job)

    def _begin(self, job: Job) -> None:
        """It has been admitted, behind what was found in its own pages."""
        if not job.answered:
            job.reuse = Reuse(local_tokens=job.computed)
            self.counts["local_tokens"] += job.computed
        if self.disagg is not None and job.handing is not None:
            self._hand_over(job, self.disagg)
        if job.handing is None or not job.handing.waits:
            self._traffic.begin(job)

    def _hand_over(self, job: Job, disagg: Disagg) -> None:
        if lacks := disagg.lacks(job):
            try:
                self.cache.grow(job.sequence, lacks)
            except OutOfPages:
                disagg.give_up(job)
                return
        disagg.begin(job)

    def _arrived(self, job: Job) -> None:
        """What it loaded is there and proved."""
        assert job.load is not None
        tokens = job.load.tokens
        self.cache.commit(job.sequence, tokens)
        if not job.answered:
            job.reuse = job.reuse._replace(pool_tokens=tokens - job.load_from)
            self.counts["pool_tokens"] += tokens - job.load_from
        job.load = None
        if self.disagg is not None:
            self.disagg.present(job, tokens)

    def _prefill(self) -> bool:
        """The prompts' next chunks: whole ones beside each other, then rests by all threads, each
        behind the pages that the chunk before it ended up with. Whether any was computed."""
        ready = []
        roomless: set[Job] = set()
        for chunk in self.scheduler.chunks():
            if chunk.job in self.scheduler.running and chunk.job not in roomless:
                roomless.update(self.scheduler.make_room(chunk.job, chunk.end))
                if chunk.job not in roomless:
                    ready.append(chunk)
        ready = [chunk for chunk in ready if chunk.job in self.scheduler.running]
        whole = [chunk for chunk in ready if chunk.tokens == self.config.chunk_tokens]
        computed = self._compute(whole, self.runner.prefill_beside)
        for chunk in ready:
            if chunk.tokens < self.config.chunk_tokens and chunk.job.computed == chunk.start:
                computed |= self._compute([chunk], self.runner.prefill_alone)
        return computed

    def _compute(self, chunks: list[Chunk], run: Run) -> bool:
        """Whether any came to something."""
        begun = [self._begin_pass(chunk) for chunk in chunks]
        passes = self._passes(begun)
        waits = any(one.load is not None for one in begun)
        with self._traffic.timed(0 if waits else sum(chunk.tokens for chunk in chunks)):
            outcomes = run(passes)
        ended = [self._end_pass(*one) for one in zip(begun, outcomes, strict=True)]
        return any(ended)

    def _passes(self, begun: list[Begun]) -> list[Pass]:
        before: dict[Job, int] = {}
        passes = []
        for number, (chunk, _, store, _) in enumerate(begun):
            job = chunk.job
            tokens = job.sequence.tokens[chunk.start : chunk.end].tolist()
            span = self._span(job, chunk.start, chunk.end)
            watch = self._watch(job, store, chunk.end)
            passes.append(Pass(tokens, span, watch, chunk.is_last, before.get(job)))
            before[job] = number
        return passes

    def _begin_pass(self, chunk: Chunk) -> Begun:
        job = chunk.job
        whole = chunk.tokens == self.config.chunk_tokens
        shares = whole and self._may_share(job, chunk.end)
        store = self._traffic.begin_store(job, chunk.start, chunk.end) if shares else None
        return Begun(chunk, shares, store, job.load)

    def _end_pass(self, begun: Begun, outcome: Tensor | Exception | None) -> bool:
        chunk, shares, store, load = begun
        job = chunk.job
        try:
            if isinstance(outcome, Exception):
                raise outcome
            if load is not None:
                load.wait_end()
                if store is not None:
                    store.all_done()
        except LoadFailed:
            self._traffic.give_up(job, store)
            return False
        if job.load is not None:
            self._arrived(job)
        self.counts["computed_tokens"] += chunk.tokens
        job.computed = chunk.end
        if self.disagg is not None and load is not None:
            self.disagg.present(job, chunk.end)
        if shares and self._may_share(job, chunk.end):
            rewritten = self.cache.commit(job.sequence, chunk.end)
            self._traffic.hold(job, store, chunk.end, rewritten)
        elif store is not None:  # a pass beside it was first
            store.cancel()
        if outcome is not None and job.answered == 0:
            self._answer(job, outcome)
        return True

    def _watch(self, job: Job, store: Store | None, end: int) -> Watch | None:
        """Who is told of the layers of a pass. What rests on a load is stored and handed over when
        that is proved, not before."""
        pool = PassWatch(job.load, None if job.load else store) if job.load or store else None
        layers = self.disagg.watch(job, end) if self.disagg is not None and not job.load else None
        if pool is None or layers is None:
            return pool or layers
        return Both(pool, layers)

    def _may_share(self, job: Job, end: int) -> bool:
        """While pages are being sent no copy of somebody else's may take their place."""
        if not job.is_pinned or job.handing is None:
            return True
        with self.cache.hold(job.sequence, end) as lease:
            return lease.tokens <= job.sequence.shared_pages * self.config.block_size

    def _share(self, job: Job, tokens: int) -> None:
        """What could not be shared while it was being sent."""
        whole = tokens // self.config.chunk_tokens * self.config.chunk_tokens
        if whole > job.sequence.computed_tokens:
            self.cache.commit(job.sequence, whole)

    def _free(self, job: Job, why: str) -> None:
        """It is over; its pages are too, once a hand-over has left them."""
        if self.disagg is not None and self.disagg.over(job, why):
            self.scheduler.park(job)
        else:
            self.scheduler.remove(job)

    def _check_transfer(self, params: Mapping[str, Any]) -> None:
        if self.disagg is not None:
            self.disagg.check(params)
        elif params.get("do_remote_prefill") or params.get("do_remote_decode"):
            raise BadInput("kv_transfer_params: this engine hands nothing over (engine.role)")

    def _decode(self) -> bool:
        """One more token for everybody past the prompt who has a page for it; whether there was
        any."""
        roomless: set[Job] = set()
        waiting = self.scheduler.decoding()
        for job in waiting:
            if job in self.scheduler.running:
                roomless.update(self.scheduler.make_room(job, job.computed + 1))
        ready = [job for job in waiting if job not in roomless]
        rows = self.runner.decode_rows
        for first in range(0, len(ready), rows):
            batch = ready[first : first + rows]
            logits = self.runner.decode(
                [int(job.sequence.tokens[job.computed]) for job in batch],
                [self._span(job, job.computed, job.computed + 1) for job in batch],
            )
            for job, row in zip(batch, logits, strict=True):
                known = not job.at_the_end
                job.computed += 1
                if not known:
                    self._answer(job, row)
        return bool(ready)

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
        if finish is not None:
            self._free(job, finish)
            del self._jobs[job.number]
        self.tell(job.number, Step([token], finish, job.reuse))

    def _refuse(self, job: Job, now: float) -> None:
        self.counts["refused"] += 1
        waited = now - job.arrived_s
        error = EngineBusy(
            f"no pages for {job.prompt_tokens} tokens within {waited:.1f} s (engine.queue_ms); "
            f"{len(self.scheduler.running)} requests are running",
            retry_after_s=max(1.0, waited / 4),
        )
        if self.disagg is not None:
            self.disagg.over(job, "busy")
        del self._jobs[job.number]
        self.tell(job.number, Step([], "busy", job.reuse, error))

    def _span(self, job: Job, start: int, end: int) -> Span:
        return self.runner.span(job.sequence.table, start, end)


_COUNTED = (
    "requests",
    "prompt_tokens",
    "local_tokens",
    "pool_tokens",
    "peer_tokens",
    "peer_failures",
) + ("computed_tokens", "answer_tokens", "refused", "aborted")
