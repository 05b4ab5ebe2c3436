"""A pool of processes to measure, and a million small objects to fill it with."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Final

import moonpool
from moonpool.core.errors import PoolError
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.cluster import Cluster, local_directory

CHAIN: Final = 32  # blocks of one prompt: the parent of each is the one before
BATCH: Final = 1024
VALUE_BYTES: Final = 64


@contextlib.contextmanager
def pool_of_processes(
    memory: int,
    *,
    slots: int = 0,
    headroom: int = 256 << 20,
    nodes: int = 1,
    snapshot_interval_s: float = 0.0,
) -> Iterator[tuple[Cluster, moonpool.Pool]]:
    """A master and nodes of `memory` bytes on loopback, and a client of theirs. With an interval
    the master writes snapshots."""
    with local_directory("bench") as directory:
        configs = [
            NodeConfig(
                name=f"node{number}",
                memory=memory,
                headroom=headroom,
                slots=slots,
                dir=str(directory),
                persist=False,
            )
            for number in range(nodes)
        ]
        master = MasterConfig(
            port=0,
            nodes_expected=nodes,
            slow_start_s=0.0,
            snapshot=str(directory / "snapshot") if snapshot_interval_s else "",
            snapshot_interval_s=snapshot_interval_s or 60.0,
        )
        cluster = Cluster(master, configs)
        with cluster, moonpool.connect(cluster.address, token="", timeout_s=30) as pool:
            yield cluster, pool


@contextlib.contextmanager
def small_objects(
    count: int, nodes: int = 1, snapshot_interval_s: float = 0.0
) -> Iterator[tuple[Cluster, moonpool.Pool]]:
    """`pool_of_processes` with room for `count` of the small objects of `fill`, and none in it;
    on several nodes with a quarter more, since they are not filled evenly."""
    share = count if nodes == 1 else count * 5 // (4 * nodes)
    with pool_of_processes(
        share * VALUE_BYTES,
        slots=share + (1 << 16),
        headroom=(256 << 20) // nodes,
        nodes=nodes,
        snapshot_interval_s=snapshot_interval_s,
    ) as (cluster, pool):
        yield cluster, pool


def small_key(number: int) -> bytes:
    """80 bytes, as an engine's: a model's prefix and a digest."""
    return b"bench/model-layout/" + hashlib.sha256(b"%d" % number).hexdigest()[:61].encode()


def fill(pool: moonpool.Pool, count: int) -> None:
    """Put `count` objects of 64 bytes with 80-byte keys in chains of 32. Raises PoolError."""
    value = os.urandom(VALUE_BYTES)
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        keys = [small_key(number) for number in numbers]
        parents = [None if n % CHAIN == 0 else keys[i - 1] for i, n in enumerate(numbers)]
        expect_stored(pool.put_many(keys, [value] * len(keys), parents=parents))


def expect_stored(results: Sequence[moonpool.PutResult]) -> None:
    """A bench measures what it says: a put that was not stored ends it. Raises PoolError."""
    for result in results:
        if not result.ok:
            raise PoolError(f"a put of the bench was not stored: {result.status} {result.text}")
