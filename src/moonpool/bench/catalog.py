"""The catalog alone, in this process: reserve and commit in batches, no sockets and no bytes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Final

import numpy as np

from moonpool.bench.processes import CHAIN, small_key
from moonpool.bench.runner import Row, Settings, make_row
from moonpool.pool.catalog.base import CatalogConfig
from moonpool.pool.catalog.catalog import Catalog
from moonpool.pool.catalog.commits import CommitRequest
from moonpool.pool.catalog.reservations import PutRequest
from moonpool.pool.columns import pack_keys, u32

BENCH: Final = "catalog"
BATCH: Final = 128
BATCHES: Final = 2000
BLOCK_BYTES: Final = 16 << 10


def rows(settings: Settings) -> Iterator[Row]:
    """Objects without parents, and blocks of prompts."""
    for name, chain in (("no parents", 1), (f"chains of {CHAIN}", CHAIN)):
        puts = [_put(number, chain) for number in range(BATCHES)]
        laps = [_round(puts) for _ in range(settings.rounds + 1)][1:]
        per_batch = np.array(laps) / 1e3
        yield make_row(
            BENCH,
            f"reserve and commit, {BATCH} keys a call, {name}",
            settings.rounds,
            {
                "p50_us": statistics.median(np.percentile(per_batch, 50, axis=1).tolist()),
                "p99_us": statistics.median(np.percentile(per_batch, 99, axis=1).tolist()),
                "ops_per_s": statistics.median(
                    (BATCH * BATCHES * 1e6 / per_batch.sum(axis=1)).tolist()
                ),
                "ok": True,
            },
        )


def _put(number: int, chain: int) -> PutRequest:
    """Batch `number`: 80-byte keys, every `chain`-th without a parent."""
    keys = pack_keys([small_key(number * BATCH + i) for i in range(BATCH)])
    places = np.arange(BATCH, dtype=np.int32)
    return PutRequest(
        owner=1,
        blob=keys.blob,
        ends=u32(keys.ends),
        sizes=np.full(BATCH, BLOCK_BYTES, np.uint64),
        parent_of=np.where(places % chain == 0, -1, places - 1).astype(np.int32),
        outside_blob=b"",
        outside_ends=np.zeros(0, np.uint32),
    )


def _round(puts: list[PutRequest]) -> list[int]:
    """Nanoseconds of each batch in a catalog that starts empty."""
    objects = BATCH * len(puts)
    catalog = Catalog(CatalogConfig(rows_max=2 * objects))
    segment = catalog.segments.add(bytes(16), "node0", "host", 2 * objects * BLOCK_BYTES, objects)
    segment.open = segment.known = True
    laps = []
    for number, put in enumerate(puts):
        slots = np.arange(number * BATCH, (number + 1) * BATCH, dtype=np.uint32)
        start = time.perf_counter_ns()
        admitted = catalog.reserve(put, now=0.0, wall_ms=0)
        call = CommitRequest(
            term=catalog.term,
            rows=admitted.rows,
            attempts=admitted.attempts,
            crcs=slots,
            counts=np.ones(BATCH, np.uint8),
            segments=admitted.segments.reshape(-1),
            slots=slots,
            generations=np.ones(BATCH, np.uint64),
        )
        catalog.commit(call, now=0.0, wall_ms=0)
        laps.append(time.perf_counter_ns() - start)
    assert len(catalog.table) == objects, "a batch of the bench was not committed"
    return laps
