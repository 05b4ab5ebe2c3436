"""Asking for existence: the same 128 keys, and random ones, of a million objects."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np

from moonpool.bench.processes import fill, small_key, small_objects
from moonpool.bench.runner import Row, Settings, make_row, measure

BENCH: Final = "exists"
OBJECTS: Final = 1_000_000
KEYS: Final = 128
SETS: Final = 512


def rows(settings: Settings) -> Iterator[Row]:
    """Two rows: the same keys every call, and random keys."""
    random = np.random.default_rng(1)
    same = [small_key(number) for number in range(KEYS)]
    sets = [
        [small_key(int(number)) for number in random.integers(0, OBJECTS, KEYS)]
        for _ in range(SETS)
    ]
    with small_objects(OBJECTS) as (cluster, pool):
        fill(pool, OBJECTS)
        pids = [child.pid for child in cluster.children]
        for name, batches in (("the same", [same]), ("random", sets)):
            ok = all(all(pool.exists(batch)) for batch in batches)
            turn = itertools.cycle(batches)
            figures = measure(
                lambda turn=turn: pool.exists(next(turn)),  # type: ignore[misc]
                settings.rounds,
                2000,
                items_per_call=KEYS,
                pids=pids,
            )
            case = f"{KEYS} keys a call, {name}, of {OBJECTS:,} objects"
            figures |= {"objects": OBJECTS, "ok": ok}
            yield make_row(BENCH, case, settings.rounds, figures)
