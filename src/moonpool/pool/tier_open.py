"""The tiers that a node's configuration asks for, each ready to serve."""

from __future__ import annotations

from pathlib import Path

from moonpool.core.clock import Clock
from moonpool.core.errors import BadConfig
from moonpool.core.host import host_id
from moonpool.core.sections import NodeConfig
from moonpool.core.units import format_bytes
from moonpool.pool.tier_node import TierNode
from moonpool.pool.tiers.agent import TierAgent
from moonpool.pool.tiers.disk_log import DiskLog, bucket_bytes_of

OBJECT_BYTES = 16_384  # one slot for so many bytes
SLOTS = 1024, 1 << 22
LIVE_SHARE = 0.85  # of what the files may take; the rest is garbage on its way out


def open_tiers(config: NodeConfig, name: str, clock: Clock) -> list[TierNode]:
    """Not started. Raises SegmentLocked, BadConfig."""
    if not config.disk:
        return []
    directory = Path(config.disk).expanduser().absolute() / f"{name}.tier"
    try:
        store = DiskLog(
            directory,
            config.disk_size,
            direct=config.disk_direct,
            sync=config.disk_sync,
            boot_id=host_id(),
            wall_ms=clock.wall_ms(),
        )
    except OSError as error:
        raise BadConfig(f"node.disk = {config.disk}: {error}") from None
    capacity = disk_capacity_bytes(config.disk_size)
    return [TierNode(config, name, TierAgent(store, capacity, slot_count(capacity)), clock)]


def disk_capacity_bytes(limit_bytes: int) -> int:
    """What the master may place in files of so many bytes. Raises BadConfig."""
    capacity = int((limit_bytes - 2 * bucket_bytes_of(limit_bytes)) * LIVE_SHARE)
    if capacity <= 0:
        raise BadConfig(f"node.disk_size = {format_bytes(limit_bytes)} holds nothing; give more")
    return capacity


def slot_count(capacity_bytes: int) -> int:
    return min(SLOTS[1], max(SLOTS[0], capacity_bytes // OBJECT_BYTES))
