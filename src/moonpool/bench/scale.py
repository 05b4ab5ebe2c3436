"""One master's machine at its limits: up to ten million objects, up to a thousand nodes.

No sockets and no bytes: simulated nodes speak the real messages, encoded and decoded, to a real
MasterMachine. What is counted is the time of the master, which is one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import numpy as np

from moonpool.bench.runner import Row, Settings, make_row
from moonpool.bench.scale_nodes import keys_of
from moonpool.bench.scale_pool import ScalePool
from moonpool.pool import messages as m

BENCH: Final = "scale"
BATCH: Final = 128
FILL: Final = 1024  # keys a call until the pool is full
CALLS: Final = 1000  # of each kind, timed
OBJECTS: Final = (100_000, 1_000_000)
OBJECTS_FULL: Final = 10_000_000  # about 5 GiB
NODES: Final = (1, 10, 100, 1000)


def rows(settings: Settings) -> Iterator[Row]:
    """A row for each number of objects and nodes; ten millions with `full`."""
    for objects in (*OBJECTS, OBJECTS_FULL) if settings.full else OBJECTS:
        for nodes in NODES:
            yield _row(objects, nodes)


def _row(objects: int, nodes: int) -> Row:
    pool = ScalePool(objects, nodes)
    slots = sum(node.agent.slots for node in pool.nodes)
    calls = min(CALLS, objects // (4 * BATCH))
    _fill(pool, slots - 2 * BATCH * calls)
    rng = np.random.default_rng(7)
    puts = np.array([pool.put(_next(pool, BATCH)) for _ in range(calls)]) / 1e3
    looks = _timed(pool, rng, calls, m.Lookup, m.Found)
    asks = _timed(pool, rng, calls, m.Exists, m.Existence)
    beats = np.array(pool.heartbeats()) / 1e3
    ticks = np.array([pool.tick_ns() for _ in range(20)]) / 1e3
    stat_us = pool.ask(m.Stat(), m.Status)[1] / 1e3
    _fill(pool, slots)
    evicting = _evicting(pool, calls // 4)
    held = pool.master.catalog
    nbytes = held.table.memory_bytes() + sum(one.by_slot.nbytes for one in held.segments)
    per_item = nbytes / held.rows.objects
    rebuild_s, seconds = _rebuild(pool)
    figures = {"reserve": puts[:, 0], "commit": puts[:, 1], "locate": looks, "exists": asks}
    return make_row(
        BENCH,
        f"{objects:,} objects on {nodes:,} node{'s' if nodes > 1 else ''}, {BATCH} keys a call",
        1,
        {
            **{f"{name}_p50_us": float(np.median(laps)) for name, laps in figures.items()},
            **{f"{name}_p99_us": _p99(laps) for name, laps in figures.items()},
            "ops_per_s": BATCH * calls * 1e6 / float(puts.sum()),
            "locates_per_s": BATCH * calls * 1e6 / float(looks.sum()),
            "exists_per_s": BATCH * calls * 1e6 / float(asks.sum()),
            "evict_us_per_victim": evicting,
            "heartbeat_us": float(np.median(beats)),
            "tick_us": float(np.median(ticks)),
            "stat_us": stat_us,
            "bytes_per_item": per_item,
            "rebuild_s": rebuild_s,
            "rebuild_with_nodes_s": seconds,
            "objects": objects,
            "nodes": nodes,
            "ok": pool.master.catalog.rows.objects == slots,
        },
    )


def _p99(laps: np.ndarray) -> float:
    return float(np.percentile(laps, 99))


def _next(pool: ScalePool, count: int) -> np.ndarray:
    """Numbers that were not put yet."""
    first = pool.master.catalog.admission.next_sequence
    return np.arange(first, first + count, dtype=np.int64)


def _fill(pool: ScalePool, objects: int) -> None:
    """Until there are so many."""
    for _ in range(8):  # a call does not always fit on one node, and then takes what goes
        while (left := objects - pool.master.catalog.rows.objects) > 0:
            pool.put(_next(pool, min(left, FILL)))
            pool.now += 0.001
    pool.heartbeats()


def _timed(
    pool: ScalePool,
    rng: np.random.Generator,
    calls: int,
    ask: type[m.Lookup] | type[m.Exists],
    kind: type[m.Found] | type[m.Existence],
) -> np.ndarray:
    """Microseconds of calls for keys all over the pool."""
    filled, laps = pool.master.catalog.rows.objects, []
    for _ in range(calls):
        numbers = rng.integers(1, filled, BATCH)
        laps.append(pool.ask(ask(keys_of(numbers)), kind)[1] / 1e3)
    return np.array(laps)


def _evicting(pool: ScalePool, calls: int) -> float:
    """A full pool: microseconds of a reservation for each object that goes for it."""
    room = pool.master.catalog.room
    before = room.evicted_objects
    took = sum(pool.put(_next(pool, BATCH))[0] for _ in range(calls))
    return took / 1e3 / max(room.evicted_objects - before, 1)


def _rebuild(pool: ScalePool) -> tuple[float, float]:
    """A new master hears all nodes: its own seconds, and with those of the nodes."""
    pool.handling_ns = 0
    start = time.perf_counter()
    pool.start(2)
    return pool.handling_ns / 1e9, time.perf_counter() - start
