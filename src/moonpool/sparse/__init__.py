"""Sparse attention over pooled memory: rows of a long prefix stay in the pool, and a decoder reads
only those that its indexer chose.

`SparsePool` keeps prefixes in memory that processes of one host map, `PrefixStore` in objects of a
pool. Readers of both `gather` rows and stream index keys; a `HotBuffer` keeps what was used last.
Imports core, transfer and pool.
"""

from moonpool.sparse.hot import HotBuffer, HotCounters, Resolved
from moonpool.sparse.layout import (
    BF16_ROW_BYTES,
    FP8_ROW_BYTES,
    INDEX_KEY_BYTES,
    SparseLayout,
    full_bytes,
    local_bytes,
)
from moonpool.sparse.policy import Advice, Costs, Expected, advise
from moonpool.sparse.pool import SparsePool, SparseStat
from moonpool.sparse.reader import (
    GatherStats,
    Hint,
    ReaderCounters,
    SparseReader,
    Ticket,
    UnionRows,
    gather_union,
)
from moonpool.sparse.source import RowSource, TableSource, local_source
from moonpool.sparse.stored import PrefixStore, StoredWriter
from moonpool.sparse.writer import SparseWriter

__all__ = [
    "Advice",
    "BF16_ROW_BYTES",
    "Costs",
    "Expected",
    "FP8_ROW_BYTES",
    "GatherStats",
    "Hint",
    "HotBuffer",
    "HotCounters",
    "INDEX_KEY_BYTES",
    "PrefixStore",
    "ReaderCounters",
    "Resolved",
    "RowSource",
    "SparseLayout",
    "SparsePool",
    "SparseReader",
    "SparseStat",
    "SparseWriter",
    "StoredWriter",
    "TableSource",
    "Ticket",
    "UnionRows",
    "advise",
    "full_bytes",
    "gather_union",
    "local_bytes",
    "local_source",
]
