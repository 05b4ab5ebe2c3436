"""A master killed and started again: how long until every object of its node is readable."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import moonpool
from moonpool.bench.processes import BATCH, fill, small_key, small_objects
from moonpool.bench.runner import CpuMeter, Row, Settings, make_row
from moonpool.core.errors import DeadlineExceeded
from moonpool.pool.cluster import Cluster

BENCH: Final = "restart"
OBJECTS: Final = 1_000_000
GIVE_UP_S: Final = 120.0
SNAPSHOT_S: Final = 5.0


def rows(settings: Settings) -> Iterator[Row]:
    """Without and with a snapshot; with `full` the same of ten million objects on ten nodes. Every
    round kills the master, and the last one looks for every object."""
    for snapshot in (False, True):
        yield _row(OBJECTS, 1, min(settings.rounds, 3), snapshot)
    if settings.full:
        for snapshot in (False, True):
            yield _row(10 * OBJECTS, 10, 1, snapshot)


def _row(objects: int, nodes: int, rounds: int, snapshot: bool) -> Row:
    seconds, cpu = [], []
    interval_s = SNAPSHOT_S if snapshot else 0.0
    with small_objects(objects, nodes, interval_s) as (cluster, pool):
        fill(pool, objects)
        if snapshot:
            _await_restorable(cluster, pool)
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
        restored = int(str(pool.stat()["restored_objects"]))
    where = "one node" if nodes == 1 else f"{nodes} nodes"
    return make_row(
        BENCH,
        f"master killed, {objects:,} objects on {where}, until all are readable"
        + (", with a snapshot" if snapshot else ""),
        rounds,
        {
            "seconds": statistics.median(seconds),
            "seconds_max": max(seconds),
            "cpu_s_client_and_node": statistics.median(cpu),
            "objects": objects,
            "restored": restored,
            "ok": found == objects and (restored > 0) == snapshot,
        },
    )


def _await_restorable(cluster: Cluster, pool: moonpool.Pool) -> None:
    """Until a snapshot was begun and ended after all was put: the third one from now."""
    config = cluster.master_config
    path = Path(config.snapshot)
    seen: set[int] = set()
    deadline = time.perf_counter() + GIVE_UP_S
    while len(seen) < 3:
        if time.perf_counter() > deadline:
            raise DeadlineExceeded(f"no snapshot was written within {GIVE_UP_S:.0f} s")
        pool.get(small_key(0))  # nothing happens, nothing is written
        if path.exists():
            seen.add(path.stat().st_mtime_ns)
        time.sleep(0.1)


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
