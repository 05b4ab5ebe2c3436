"""Which tokens a query wants: indexers behind one small interface.

`DsaIndexer` (DeepSeek's lightning indexer), `QuestIndexer` (page bounds, no training),
`OracleIndexer` (exact), `RecencyIndexer` (newest and first tokens). Their keys are what a prefix's
index pages hold: `encode` makes them, `SparseReader.load_index` brings them.
"""

from moonpool.sparse.indexers.base import Indexer, choose, top_positions
from moonpool.sparse.indexers.dsa import DsaIndexer, DsaQuery
from moonpool.sparse.indexers.plain import OracleIndexer, RecencyIndexer
from moonpool.sparse.indexers.quest import QuestIndexer

__all__ = [
    "DsaIndexer",
    "DsaQuery",
    "Indexer",
    "OracleIndexer",
    "QuestIndexer",
    "RecencyIndexer",
    "choose",
    "top_positions",
]
