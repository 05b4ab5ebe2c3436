"""Tiers below memory: a node's disk, an object store. One interface, `Tier`: docs/tiers.md."""

from moonpool.pool.tiers.base import Entry, Erase, Finished, Notes, Read, Store, Tier, Write
from moonpool.pool.tiers.disk_log import DiskLog

__all__ = ["DiskLog", "Entry", "Erase", "Finished", "Notes", "Read", "Store", "Tier", "Write"]
