"""Replays block chains through a catalog as a client would: match, touch, put what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from moonpool.pool.catalog.base import CatalogConfig
from moonpool.pool.columns import pack_keys, u32
from moonpool.pool.messages import LookupStatus
from tests.pool.catalog.harness import Pool


def replay(
    blocks: int, requests: Iterable[tuple[int, Sequence[int]]], policy: str = "lru"
) -> tuple[int, int]:
    """(prefix-hit blocks, hit tokens) of (input tokens, block ids) through one segment of so many
    blocks."""
    config = CatalogConfig(
        rows_max=max(4 * blocks, 4096),
        segments_max=2,
        reservations_max=100_000,
        events_max=1024,
        eviction=policy,
    )
    pool = Pool(config)
    pool.add_segment(blocks, slots=2 * blocks + 1024)
    catalog, table = pool.catalog, pool.catalog.table
    hit_blocks = hit_tokens = 0
    for tokens, ids in requests:
        keys = [b"%d" % one for one in ids]
        column = pack_keys(keys)
        placed = catalog.lookup(column.blob, u32(column.ends), True, 0)
        hits = int((placed.status == LookupStatus.FOUND).sum())
        hit_blocks += hits
        hit_tokens += min(512 * hits, tokens)
        rows: np.ndarray[tuple[int], np.dtype[np.int32]] = placed.rows[:hits].copy()
        catalog.touch(rows, table.seq[rows])
        if hits < len(keys):
            outside = keys[hits - 1 : hits]
            parents = [i - 1 if i else (-2 if hits else -1) for i in range(len(keys) - hits)]
            pool.put(keys[hits:], 1, parents=parents, outside=outside, chain=True)
    pool.check()
    return hit_blocks, hit_tokens
