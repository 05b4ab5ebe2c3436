"""A full pool: questions and puts while it evicts, work at 90 %, copies over many segments."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

import moonpool
from moonpool.bench.processes import expect_stored, pool_of_processes, small_key
from moonpool.bench.runner import (
    CpuMeter,
    Figures,
    Laps,
    Row,
    Settings,
    figures_of,
    make_row,
    medians,
)
from moonpool.bench.steady_puts import SteadyPuts
from moonpool.core.units import format_bytes
from moonpool.pool.cluster import Cluster, cpu_seconds

BENCH: Final = "pressure"
BLOCK_BYTES: Final = 4 << 10
BATCH: Final = 32

ASKED: Final = 30_000
ASKED_ABSENT: Final = 3_000  # of them
ASK_MEMORY: Final = 512 << 20
PUTS_PER_S: Final = 3_200  # of the other client
ASK_S: Final = 2.5
ASK_MAX_S: Final = 20.0  # until an eviction was seen

EVICT_OBJECTS: Final = 100_000
EVICT_BYTES: Final = 256
EVICT_BATCH: Final = 1024
EVICT_BATCHES: Final = 32  # in a round

FULL_MEMORY: Final = 512 << 20
FULL_SHARE: Final = 0.9
MIX: Final = ((4 << 10, 0.7), (256 << 10, 0.2), (3 << 20, 0.1))
CHURN: Final = 0.1  # so much of the mix was taken out and put anew

SEGMENTS: Final = 16
REPLICAS: Final = 3
SEGMENT_MEMORY: Final = 64 << 20

CALLS_S: Final = 0.3  # of timed calls, in a round of a case that is not the first two


class Round(NamedTuple):
    """`ok`: what was to happen happened, and every answer was right."""

    figures: Figures
    ok: bool


def rows(settings: Settings) -> Iterator[Row]:
    """Four kinds of pressure, a pool of its own each."""
    yield _asked_while_evicting(settings.rounds)
    yield _evictions(settings.rounds)
    yield from _nearly_full(settings.rounds)
    yield _spread(settings.rounds)


# Questions while it evicts.


def _asked_while_evicting(rounds: int) -> Row:
    slots = 2 * ASK_MEMORY // BLOCK_BYTES
    with (
        pool_of_processes(ASK_MEMORY, slots=slots, headroom=64 << 20) as (cluster, pool),
        SteadyPuts(cluster.address, BLOCK_BYTES, PUTS_PER_S) as others,
    ):
        fresh = itertools.count()
        _put_numbers(pool, fresh, ASK_MEMORY // BLOCK_BYTES)
        found = [_asked(pool, others, fresh) for _ in range(rounds + 1)][1:]
    return make_row(BENCH, f"exists, {ASKED:,} keys a call, while evicting", rounds, _all(found))


def _asked(pool: moonpool.Pool, others: SteadyPuts, fresh: Iterator[int]) -> Round:
    """The keys put last, and some that nobody has put; the oldest objects go meanwhile."""
    known = _put_numbers(pool, fresh, ASKED - ASKED_ABSENT)
    keys = known + [b"bench/absent/%d" % i for i in range(ASKED_ABSENT)]
    expected = [True] * len(known) + [False] * ASKED_ABSENT
    before = _stat(pool, "evicted_objects")
    answers: list[bool] = []

    def call() -> None:
        answers.append(pool.exists(keys) == expected)

    def evicted() -> int:
        return _stat(pool, "evicted_objects") - before

    others.go()
    laps = _laps(call, ASK_S)
    while not evicted() and laps.sum() < ASK_MAX_S * 1e9:
        laps = np.append(laps, _laps(call, 0.0))
    put = others.stop()
    figures = figures_of(laps, ASKED)
    figures |= {"evicted_per_s": evicted() / put.seconds, "puts_per_s": put.stored / put.seconds}
    return Round(figures, all(answers) and evicted() > 0 and not put.refused)


def _put_numbers(pool: moonpool.Pool, numbers: Iterator[int], count: int) -> list[bytes]:
    keys = [small_key(number) for number in itertools.islice(numbers, count)]
    for start in range(0, count, 128):
        part = keys[start : start + 128]
        expect_stored(pool.put_many(part, [bytes(BLOCK_BYTES)] * len(part)))
    return keys


# What an eviction costs.


def _evictions(rounds: int) -> Row:
    """Each batch evicts as many as it puts; beside it the same batches before the pool was full."""
    memory = EVICT_OBJECTS * EVICT_BYTES
    slots = EVICT_OBJECTS + (1 << 16)
    with pool_of_processes(memory, slots=slots, headroom=64 << 20) as (cluster, pool):
        numbers = itertools.count()
        ahead = EVICT_OBJECTS // EVICT_BATCH - EVICT_BATCHES
        _put_small(cluster, pool, numbers, ahead)
        before = _put_small(cluster, pool, numbers, EVICT_BATCHES)
        if _stat(pool, "evicted_objects"):
            raise AssertionError("the pool of the bench evicts before it is full")
        _put_small(cluster, pool, numbers, 4 + EVICT_OBJECTS // EVICT_BATCH // 8)
        found = []
        for _ in range(rounds):
            evicted = _stat(pool, "evicted_objects")
            figures = _put_small(cluster, pool, numbers, EVICT_BATCHES)
            evicted = _stat(pool, "evicted_objects") - evicted
            beyond = figures["master_us_per_object"] - before["master_us_per_object"]
            share = evicted / (EVICT_BATCH * EVICT_BATCHES)
            figures["evict_us_per_object"] = max(beyond, 0.0) / share if share else 0.0
            figures["evicted"] = evicted
            found.append(Round(figures, share > 0.5 and _newest_there(pool, next(numbers))))
    case = f"evict, {EVICT_OBJECTS:,} objects, puts of {EVICT_BATCH:,}"
    return make_row(BENCH, case, rounds, _all(found))


def _put_small(
    cluster: Cluster, pool: moonpool.Pool, numbers: Iterator[int], batches: int
) -> Figures:
    """The master's CPU for each object, and how long the calls took."""
    values = [bytes(EVICT_BYTES)] * EVICT_BATCH
    sets = [[small_key(next(numbers)) for _ in range(EVICT_BATCH)] for _ in range(batches)]
    master = cluster.children[0].pid
    cpu_s = cpu_seconds(master)
    laps = []
    for keys in sets:
        start = time.perf_counter_ns()
        results = pool.put_many(keys, values)
        laps.append(time.perf_counter_ns() - start)
        expect_stored(results)
    cpu_s = cpu_seconds(master) - cpu_s
    each = {"master_us_per_object": cpu_s * 1e6 / (batches * EVICT_BATCH)}
    return figures_of(np.array(laps, np.int64), EVICT_BATCH) | each


def _newest_there(pool: moonpool.Pool, next_number: int) -> bool:
    """What was put last is there, what was put first is not."""
    newest = [small_key(number) for number in range(next_number - 1000, next_number)]
    oldest = [small_key(number) for number in range(1000)]
    return all(pool.exists(newest)) and not any(pool.exists(oldest))


# At 90 %.


def _nearly_full(rounds: int) -> Iterator[Row]:
    with pool_of_processes(FULL_MEMORY) as (cluster, pool):
        _churned(pool)
        pids = [child.pid for child in cluster.children]
        at = f"{FULL_SHARE:.0%} full"
        values = [os.urandom(BLOCK_BYTES) for _ in range(BATCH)]
        kept = [b"bench/kept/%d" % i for i in range(BATCH)]
        expect_stored(pool.put_many(kept, values))
        ok = [getattr(one, "data", None) for one in pool.get_many(kept)] == values
        figures = _rounds(rounds, lambda: pool.get_many(kept), BATCH, BLOCK_BYTES, pids)
        yield make_row(BENCH, f"get_many {BATCH} x 4 KiB, {at}", rounds, figures | {"ok": ok})
        for count, nbytes in ((BATCH, BLOCK_BYTES), (4, 256 << 10)):
            yield _puts_when_full(pool, rounds, count, nbytes, pids, at)


def _puts_when_full(
    pool: moonpool.Pool, rounds: int, count: int, nbytes: int, pids: Sequence[int], at: str
) -> Row:
    """Fresh keys each call, taken out again after it, untimed."""
    values = [os.urandom(nbytes) for _ in range(count)]
    number = itertools.count()
    evicted = _stat(pool, "evicted_objects")
    last: list[bytes] = []

    def call() -> None:
        turn = next(number)
        last[:] = [b"bench/full/%d/%d/%d" % (nbytes, turn, i) for i in range(count)]
        expect_stored(pool.put_many(last, values))

    figures = _rounds(rounds, call, count, nbytes, pids, lambda: pool.remove(last))
    call()
    ok = [getattr(one, "data", None) for one in pool.get_many(last)] == values
    pool.remove(last)
    ok = ok and _stat(pool, "evicted_objects") == evicted
    case = f"put_many {count} x {format_bytes(nbytes)}, {at}"
    return make_row(BENCH, case, rounds, figures | {"ok": ok})


def _churned(pool: moonpool.Pool) -> None:
    """Objects of mixed sizes up to the share; then a part of them, at random, put anew."""
    random = np.random.default_rng(7)
    sizes = [size for size, _ in MIX]
    weights = [weight for _, weight in MIX]
    held: list[tuple[bytes, int]] = []
    numbers = itertools.count()

    def put_up_to_share() -> None:
        used = sum(size for _, size in held)
        while used + (size := int(random.choice(sizes, p=weights))) <= FULL_SHARE * FULL_MEMORY:
            key = b"bench/mix/%d" % next(numbers)
            expect_stored([pool.put(key, bytes(size))])
            held.append((key, size))
            used += size

    put_up_to_share()
    gone = set(random.choice(len(held), int(CHURN * len(held)), replace=False).tolist())
    pool.remove([held[i][0] for i in gone])
    held[:] = [one for i, one in enumerate(held) if i not in gone]
    put_up_to_share()


# Over many segments.


def _spread(rounds: int) -> Row:
    with pool_of_processes(SEGMENT_MEMORY, headroom=16 << 20, nodes=SEGMENTS) as (cluster, pool):
        pids = [child.pid for child in cluster.children]
        values = [os.urandom(BLOCK_BYTES) for _ in range(BATCH)]
        number = itertools.count()
        last: list[bytes] = []
        copies: list[int] = []

        def call() -> None:
            turn = next(number)
            last[:] = [b"bench/spread/%d/%d" % (turn, i) for i in range(BATCH)]
            results = pool.put_many(last, values, replicas=REPLICAS)
            expect_stored(results)
            copies.append(min(result.replicas for result in results))

        figures = _rounds(rounds, call, BATCH, BLOCK_BYTES, pids, lambda: pool.remove(last))
        call()
        ok = min(copies) == REPLICAS
        ok = ok and [getattr(one, "data", None) for one in pool.get_many(last)] == values
    case = f"put_many {BATCH} x 4 KiB, {REPLICAS} replicas over {SEGMENTS} segments"
    return make_row(BENCH, case, rounds, figures | {"ok": ok})


# Figures.


def _rounds(
    rounds: int,
    call: Callable[[], object],
    items: int,
    nbytes: int,
    pids: Sequence[int],
    after: Callable[[], object] = lambda: None,
) -> Row:
    """Medians over rounds of calls for CALLS_S, one round first to warm up."""
    found = []
    for _ in range(rounds + 1):
        meter = CpuMeter(pids)
        laps = _laps(call, CALLS_S, after)
        found.append(figures_of(laps, items, items * nbytes, meter.seconds()))
    return medians(found[1:])


def _laps(
    call: Callable[[], object], span_s: float, after: Callable[[], object] = lambda: None
) -> Laps:
    """Nanoseconds of each call, until they are `span_s` in all; of one at least."""
    laps: list[int] = []
    spent_ns = 0
    while not laps or spent_ns < span_s * 1e9:
        start = time.perf_counter_ns()
        call()
        laps.append(time.perf_counter_ns() - start)
        spent_ns += laps[-1]
        after()
    return np.array(laps, np.int64)


def _all(found: Sequence[Round]) -> Row:
    return medians([one.figures for one in found]) | {"ok": all(one.ok for one in found)}


def _stat(pool: moonpool.Pool, name: str) -> int:
    value = pool.stat()[name]
    assert isinstance(value, int), (name, value)
    return value
