"""Tiers below memory: a node's disk, an object store. One interface, `Tier`: docs/tiers.md."""

from moonpool.pool.tiers.base import Entry, Erase, Finished, Notes, Read, Store, Tier, Write
from moonpool.pool.tiers.disk_log import DiskLog
from moonpool.pool.tiers.object_store import ObjectStore
from moonpool.pool.tiers.threaded import ThreadedTier

__all__ = [
    "DiskLog",
    "Entry",
    "Erase",
    "Finished",
    "Notes",
    "ObjectStore",
    "Read",
    "Store",
    "ThreadedTier",
    "Tier",
    "Write",
]
