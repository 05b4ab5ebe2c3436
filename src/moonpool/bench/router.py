"""The router: its index and decisions timed, and its choices on whole traces, without a network.

Acceptance cases run the real brain around real cache managers (planner.routing): `token_hit_ratio`
and `work_imbalance` follow from the trace alone and are the same on every machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from moonpool import _core
from moonpool.bench import router_events
from moonpool.bench.runner import Row, Settings, make_row, measure
from moonpool.planner.routing import simulate
from moonpool.planner.traces import load
from moonpool.router import Brain, RouteRequest, Stored, Worker, prefix_hashes, prefix_seed

BENCH: Final = "router"
CASES: Final = (
    ("conversation", 8, 5859, False),
    ("conversation", 16, 5859, False),
    ("synthetic", 8, 5859, False),
    ("conversation", 8, 5859, True),
    ("synthetic", 8, 5859, True),
)
MODEL: Final = "m"
BLOCK: Final = 16
ENTRIES: Final = 1_000_000
EVENT_BLOCKS: Final = 16
CHAIN_BLOCKS: Final = 128
BYTES_MAX: Final = 1 << 30


def rows(settings: Settings) -> Iterator[Row]:
    """A trace alone when one is named; else everything."""
    if settings.trace:
        yield _trace(settings.trace, settings.workers, settings.blocks, pooled=False)
        return
    yield from _finds(settings)
    yield _decision(settings)
    yield from _churn(settings)
    yield from router_events.rows(settings)
    for name, workers, blocks, pooled in CASES:
        yield _trace(name, workers, blocks, pooled=pooled)


def _trace(name: str, workers: int, blocks: int, *, pooled: bool) -> Row:
    start = time.process_time()
    figures = simulate(load(name), workers, blocks, pooled=pooled)
    spent = time.process_time() - start
    case = f"{name}-{workers}x{blocks}"
    if pooled:
        case = f"{name}-{workers}-pool-{workers * blocks}"
    named = figures._asdict() | {"cpu_us_per_request": spent / figures.requests * 1e6}
    return make_row(BENCH, case, 1, named)


def _finds(settings: Settings) -> Iterator[Row]:
    """Depths of every worker; each holds another part of the prompt."""
    for workers, blocks in ((8, 512), (64, 8192)):
        index = _core.PrefixIndex(BYTES_MAX)
        _fill(index, workers, ENTRIES // 10)
        hashes = _core.block_hashes_u64(_tokens(7, blocks), 1)
        places = np.arange(1, workers + 1, dtype=np.int64)
        parts = [blocks * place // workers for place in places.tolist()]
        for kind, depths in (("each another part", parts), ("all hold all", [blocks] * workers)):
            for place, depth in zip(places.tolist(), depths, strict=True):
                index.store(place, 0, hashes[:depth])
            ok = index.find(hashes, places)[0][0].tolist() == depths
            figures = measure(partial(index.find, hashes, places), settings.rounds, 2000)
            case = f"find {blocks} blocks, {workers} workers, {kind}"
            yield make_row(BENCH, case, settings.rounds, figures | {"ok": ok})


def _decision(settings: Settings) -> Row:
    """128k tokens in a buffer to scores and a choice, among 64 workers."""
    brain = Brain()
    tokens = _tokens(3, 131_072)
    hashes = prefix_hashes(tokens, BLOCK, prefix_seed(MODEL))
    for number in range(64):
        brain.add_worker(Worker(id=f"w{number}", model=MODEL, block_size=BLOCK))
        held = hashes[: len(hashes) * (number + 1) // 64]
        brain.apply_event(f"w{number}", Stored(held.tolist()))
    request = RouteRequest(model=MODEL, tokens=tokens)
    decision = brain.decide(request, 0.0, book=False)
    figures = measure(lambda: brain.decide(request, 0.0, book=False), settings.rounds, 200)
    ok = decision.worker == "w63" and len(decision.scores) == 64
    case = "131,072 tokens to 64 scores and a choice, block 16"
    return make_row(BENCH, case, settings.rounds, figures | {"ok": ok})


def _churn(settings: Settings) -> Iterator[Row]:
    """A million blocks stored in events of 16, a tenth removed, one worker dropped."""
    for workers in (8, 64):
        laps = [_one_churn(workers) for _ in range(min(settings.rounds, 3))]
        store, remove, drop, size = (
            statistics.median(column) for column in zip(*laps, strict=True)
        )
        figures = {
            "store_blocks_per_s": store,
            "remove_blocks_per_s": remove,
            "drop_us": drop * 1e6,
            "bytes_per_item": size,
            "ok": True,
        }
        yield make_row(BENCH, f"events of 16 blocks, {workers} workers", len(laps), figures)


def _one_churn(workers: int) -> tuple[float, float, float, float]:
    """Blocks stored a second, removed a second, seconds of a drop, bytes a block."""
    index = _core.PrefixIndex(BYTES_MAX)
    seconds, events = _fill(index, workers, ENTRIES)
    bytes_per_block = index.stat()["memory_bytes"] / len(index)
    per_chain = CHAIN_BLOCKS // EVENT_BLOCKS
    gone = [event for i, event in enumerate(events) if i // per_chain % 10 == 0]
    removed = [(place, hashes[::-1].copy()) for place, hashes, _ in reversed(gone)]
    start = time.perf_counter()
    for place, hashes in removed:  # as engines tell it: the end of a chain first
        index.remove(place, 0, hashes)
    removing = time.perf_counter() - start
    start = time.perf_counter()
    index.drop(2)
    dropping = time.perf_counter() - start
    assert index.held(2, 0) == 0
    stored = len(events) * EVENT_BLOCKS
    return stored / seconds, len(removed) * EVENT_BLOCKS / removing, dropping, bytes_per_block


_Event = tuple[int, npt.NDArray[np.uint64], int]


def _fill(index: _core.PrefixIndex, workers: int, blocks: int) -> tuple[float, list[_Event]]:
    """Chains of 128 blocks, each held by one worker; seconds of storing, and the events."""
    events: list[_Event] = []
    for number in range(blocks // CHAIN_BLOCKS):
        chain = _core.block_hashes_u64(_tokens(number + 1000, CHAIN_BLOCKS), 1)
        for at in range(0, CHAIN_BLOCKS, EVENT_BLOCKS):
            parent = int(chain[at - 1]) if at else 0
            events.append((1 + number % workers, chain[at : at + EVENT_BLOCKS].copy(), parent))
    start = time.perf_counter()
    for place, hashes, parent in events:
        index.store(place, 0, hashes, parent)
    return time.perf_counter() - start, events


def _tokens(seed: int, count: int) -> npt.NDArray[np.uint32]:
    return np.random.default_rng(seed).integers(0, 150_000, count, np.uint32)
