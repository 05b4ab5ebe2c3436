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
    """One row; every round kills the master, and the last one looks for every object."""
    rounds = min(settings.rounds, 3)
    seconds, cpu = [], []
    with small_objects(OBJECTS) as (cluster, pool):
        fill(pool, OBJECTS)
        for _ in range(rounds):
            assert cluster.master is not None
            cluster.kill(cluster.master)
            meter = CpuMeter([node.pid for node in cluster.nodes])
            start = time.perf_counter()
            cluster.restart_master()
            _await_all(pool, start)
            seconds.append(time.perf_counter() - start)
            cpu.append(meter.seconds())
        found = _count(pool, 1)
    yield make_row(
        BENCH,
        f"master killed, {OBJECTS:,} objects on one node, until all are readable",
        rounds,
        {
            "seconds": statistics.median(seconds),
            "seconds_max": max(seconds),
            "cpu_s_client_and_node": statistics.median(cpu),
            "objects": OBJECTS,
            "ok": found == OBJECTS,
        },
    )


def _await_all(pool: moonpool.Pool, start: float) -> None:
    """Until a sample over all chunks of the inventory is there. Raises DeadlineExceeded."""
    while _count(pool, 100) < OBJECTS // 100:
        if time.perf_counter() - start > GIVE_UP_S:
            raise DeadlineExceeded(f"the master did not recover within {GIVE_UP_S:.0f} s")
        time.sleep(0.02)


def _count(pool: moonpool.Pool, step: int) -> int:
    """How many of every `step`-th object are there."""
    count = 0
    for start in range(0, OBJECTS, BATCH * step):
        numbers = range(start, min(start + BATCH * step, OBJECTS), step)
        found = sum(pool.exists([small_key(number) for number in numbers]))
        count += found
        if step > 1 and found < len(numbers):
            break
    return count
