"""An engine's own paged KV cache: pages, prefix reuse, eviction, admission. docs/cache.md.

Nothing here starts a thread, reads a clock or imports torch before a PagePool is made.
"""

from moonpool.cache.allocator import PageAllocator
from moonpool.cache.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KvEvent,
    encode_batch,
)
from moonpool.cache.layout import HeadsLayout, KvLayout, LatentLayout, local_kv_heads
from moonpool.cache.manager import CacheCounts, CacheManager
from moonpool.cache.namespace import Namespace
from moonpool.cache.pages import PagePool
from moonpool.cache.radix import Insertion, Lease, RadixCache
from moonpool.cache.sequence import Sequence, SequenceState

__all__ = [
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "CacheCounts",
    "CacheManager",
    "EventBatch",
    "HeadsLayout",
    "Insertion",
    "KvEvent",
    "KvLayout",
    "LatentLayout",
    "Lease",
    "Namespace",
    "PageAllocator",
    "PagePool",
    "RadixCache",
    "Sequence",
    "SequenceState",
    "encode_batch",
    "local_kv_heads",
]
