"""What an object costs the master: growth of its resident memory over a million objects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from moonpool.bench.processes import fill, small_objects
from moonpool.bench.runner import Row, Settings, make_row

BENCH: Final = "memory"
OBJECTS: Final = 1_000_000


def rows(settings: Settings) -> Iterator[Row]:
    """One row; one round, for nothing about it is random."""
    with small_objects(OBJECTS) as (cluster, pool):
        assert cluster.master is not None
        before = resident_bytes(cluster.master.pid)
        fill(pool, OBJECTS)
        after = resident_bytes(cluster.master.pid)
    yield make_row(
        BENCH,
        f"master, {OBJECTS:,} one-replica objects, 80-byte keys, with parents",
        1,
        {
            "bytes_per_item": (after - before) / OBJECTS,
            "rss_bytes": after,
            "objects": OBJECTS,
        },
    )


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
