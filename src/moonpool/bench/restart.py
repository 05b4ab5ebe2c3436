"""A master killed and started again: how long until every object of its node is readable."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Final

import moonpool
from moonpool.bench.processes import BATCH, fill, small_key, small_objects
from moonpool.bench.runner import CpuMeter, Row, Settings, make_row
from moonpool.core.errors import DeadlineExceeded

BENCH: Final = "restart"
OBJECTS: Final = 1_000_000
GIVE_UP_S: Final = 120.0


def rows(settings: Settings) -> Iterator[Row]:
    """One row; with `full` another one of ten million objects on ten nodes. Every round kills the
    master, and the last one looks for every object."""
    yield _row(OBJECTS, 1, min(settings.rounds, 3))
    if settings.full:
        yield _row(10 * OBJECTS, 10, 1)


def _row(objects: int, nodes: int, rounds: int) -> Row:
    seconds, cpu = [], []
    with small_objects(objects, nodes) as (cluster, pool):
        fill(pool, objects)
        for _ in range(rounds):
            assert cluster.master is not None
            cluster.kill(cluster.master)
            meter = CpuMeter([node.pid for node in cluster.nodes])
            start = time.perf_counter()
            cluster.restart_master()
            _await_all(pool, objects, start)
            seconds.append(time.perf_counter() - start)
            cpu.append(meter.seconds())
        found = _count(pool, objects, 1)
    where = "one node" if nodes == 1 else f"{nodes} nodes"
    return make_row(
        BENCH,
        f"master killed, {objects:,} objects on {where}, until all are readable",
        rounds,
        {
            "seconds": statistics.median(seconds),
            "seconds_max": max(seconds),
            "cpu_s_client_and_node": statistics.median(cpu),
            "objects": objects,
            "ok": found == objects,
        },
    )


def _await_all(pool: moonpool.Pool, objects: int, start: float) -> None:
    """Until a sample over all chunks of the inventory is there. Raises DeadlineExceeded."""
    while _count(pool, objects, 100) < objects // 100:
        if time.perf_counter() - start > GIVE_UP_S:
            raise DeadlineExceeded(f"the master did not recover within {GIVE_UP_S:.0f} s")
        time.sleep(0.02)


def _count(pool: moonpool.Pool, objects: int, step: int) -> int:
    """How many of every `step`-th object are there."""
    count = 0
    for start in range(0, objects, BATCH * step):
        numbers = range(start, min(start + BATCH * step, objects), step)
        found = sum(pool.exists([small_key(number) for number in numbers]))
        count += found
        if step > 1 and found < len(numbers):
            break
    return count
