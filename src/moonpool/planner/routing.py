"""Routing on a trace: simulated workers around the real router's brain and real cache managers.

Rules of the reference (field notes, users.md A3): a request's hit is counted on arrival, before it
changes the cache; then all its blocks count as used, the first one last; each worker's cache is
LRU; a worker prefills in order of arrival, at the rate that keeps the fleet `busy` with a cache
that forgets nothing. Imbalance is the largest over the mean uncached prompt tokens of the workers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moonpool import _core
from moonpool.cache import BlockRemoved, BlockStored, CacheManager, KvEvent, PageAllocator
from moonpool.core.errors import BadInput
from moonpool.planner.replay import hit_tokens
from moonpool.planner.traces import Request, Trace
from moonpool.router import (
    Brain,
    BrainConfig,
    Cleared,
    Decision,
    Event,
    Removed,
    RouteRequest,
    Stored,
    Worker,
)

MODEL = "trace"


class RoutingFigures(NamedTuple):
    """What a routing made of a trace. Times to first token are of the simulated prefill alone."""

    token_hit_ratio: float
    work_imbalance: float
    prefix_hit_blocks: int
    predicted_hit_ratio: float
    """As the brain foretold it."""
    mean_ttft_s: float
    p99_ttft_s: float
    requests: int


class _Worker:
    """A queue and a cache of its own, or none (`blocks` 0)."""

    def __init__(self, name: str, blocks: int) -> None:
        self.name = name
        self.cache = _Cache(blocks) if blocks else None
        self.idle_at = 0.0
        self.work_tokens = 0

    def prefill(self, tokens: int, now: float, tokens_per_s: float) -> float:
        """When it is done."""
        self.work_tokens += tokens
        self.idle_at = max(self.idle_at, now) + tokens / tokens_per_s
        return self.idle_at


class _Cache:
    """A cache manager with a page for each block of the trace."""

    def __init__(self, blocks: int) -> None:
        self._manager = CacheManager(PageAllocator(blocks), 1, events_max=1 << 20)
        self._blocks = blocks

    def use(self, ids: npt.NDArray[np.uint32]) -> int:
        """Leading blocks found; now all of them are cached. A longer prompt leaves its head."""
        kept = ids[: self._blocks - 1]
        # One token more than the blocks: the last token of a prompt is never taken from a cache.
        sequence = self._manager.sequence(np.append(kept, np.uint32(0)), len(kept) + 1)
        admitted = self._manager.admit(sequence)
        assert admitted, "one request at a time always fits"
        found = sequence.cached_tokens
        self._manager.grow(sequence, len(kept))
        self._manager.commit(sequence, len(kept))
        self._manager.finish(sequence)
        return found

    def events(self) -> list[Event]:
        """What changed, in the brain's words: a page's routing hash is its block's prefix hash."""
        return [_own(event) for event in self._manager.take_events()]


def _own(event: KvEvent) -> Event:
    if isinstance(event, BlockStored):
        return Stored(event.block_hashes, event.parent_block_hash or 0)
    if isinstance(event, BlockRemoved):
        return Removed(event.block_hashes)
    return Cleared()


def simulate(
    trace: Trace,
    workers: int,
    blocks: int,
    *,
    config: BrainConfig | None = None,
    pooled: bool = False,
    busy: float = 0.7,
    seed: int = 0,
) -> RoutingFigures:
    """Route the whole trace over `workers` workers with caches of `blocks` blocks each.

    Args:
        config: how the brain decides; None: the shipped one.
        pooled: workers have no caches; one pool of workers x blocks serves them all.
        busy: load of the fleet, were nothing ever evicted.
        seed: of the draws, where the configuration has a temperature.

    Raises:
        BadInput: without workers, blocks or requests.
    """
    if workers < 1 or blocks < 2 or not trace.requests or not 0 < busy:
        raise BadInput(
            f"{workers} workers, {blocks} blocks, {len(trace.requests)} requests, busy {busy}:"
            " at least one worker, two blocks and a request are needed"
        )
    return _Simulation(trace, workers, blocks, config, pooled, busy, seed).run()


class _Simulation:
    def __init__(
        self,
        trace: Trace,
        workers: int,
        blocks: int,
        config: BrainConfig | None,
        pooled: bool,
        busy: float,
        seed: int,
    ) -> None:
        self._trace = trace
        self._brain = Brain(config)
        self._workers = {f"w{i}": _Worker(f"w{i}", 0 if pooled else blocks) for i in range(workers)}
        self._pool = _Cache(workers * blocks) if pooled else None
        self._rate = tokens_per_s(trace, workers, busy)
        self._draws = np.random.default_rng(seed)
        self._done: list[tuple[float, int, str]] = []
        for name in self._workers:
            self._brain.add_worker(
                Worker(
                    id=name,
                    model=MODEL,
                    block_size=trace.block_tokens,
                    kv_blocks_max=0 if pooled else blocks,
                )
            )
            self._brain.apply_event(name, Cleared())  # what it has is known from now on

    def run(self) -> RoutingFigures:
        first = self._trace.requests[0].timestamp
        hits = blocks = predicted = 0
        waits = []
        for number, request in enumerate(self._trace.requests):
            now = (request.timestamp - first) / 1000
            self._finish(now)
            ids = np.array(request.hash_ids, np.uint32)
            decision = self._decide(request, ids, now)
            worker = self._workers[decision.worker]
            found = self._use(worker, ids)
            tokens = hit_tokens(found, self._trace.block_tokens, request.input_length)
            hits += tokens
            blocks += found
            predicted += min(decision.predicted_hit_tokens, request.input_length)
            end = worker.prefill(request.input_length - tokens, now, self._rate)
            waits.append(end - now)
            heapq.heappush(self._done, (end, number, decision.booking_id))
        asked = self._trace.summary.input_tokens
        work = [worker.work_tokens for worker in self._workers.values()]
        return RoutingFigures(
            token_hit_ratio=hits / asked if asked else 0.0,
            work_imbalance=max(work) * len(work) / sum(work) if sum(work) else 1.0,
            prefix_hit_blocks=blocks,
            predicted_hit_ratio=predicted / asked if asked else 0.0,
            mean_ttft_s=float(np.mean(waits)),
            p99_ttft_s=float(np.percentile(waits, 99)),
            requests=len(waits),
        )

    def _decide(self, request: Request, ids: npt.NDArray[np.uint32], now: float) -> Decision:
        ask = RouteRequest(
            model=MODEL,
            hashes=_core.block_hashes_u64(ids, 1, 0),
            prompt_tokens=request.input_length,
            output_tokens=request.output_length,
        )
        return self._brain.decide(ask, now, float(self._draws.random()))

    def _use(self, worker: _Worker, ids: npt.NDArray[np.uint32]) -> int:
        if self._pool is not None:
            found = self._pool.use(ids)
            self._brain.apply_pool_events(self._pool.events())
            return found
        assert worker.cache is not None
        found = worker.cache.use(ids)
        for event in worker.cache.events():
            self._brain.apply_event(worker.name, event)
        return found

    def _finish(self, now: float) -> None:
        while self._done and self._done[0][0] <= now:
            end, _, booking = heapq.heappop(self._done)
            self._brain.first_token(booking, end)
            self._brain.free(booking, end)


def tokens_per_s(trace: Trace, workers: int, busy: float) -> float:
    """The prefill rate of one worker that keeps `workers` of them `busy` with infinite caches."""
    seen: set[int] = set()
    uncached = 0
    for request in trace.requests:
        known = _leading(request.hash_ids, seen)
        uncached += request.input_length - hit_tokens(
            known, trace.block_tokens, request.input_length
        )
        seen.update(request.hash_ids)
    seconds = max(trace.summary.duration_ms, 1) / 1000
    return max(uncached, 1) / (busy * workers * seconds)


def _leading(ids: Iterable[int], seen: set[int]) -> int:
    count = 0
    for block in ids:
        if block not in seen:
            break
        count += 1
    return count
