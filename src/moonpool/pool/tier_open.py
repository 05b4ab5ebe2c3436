"""The tiers that a node's configuration asks for, each ready to serve."""

from __future__ import annotations

from pathlib import Path

from moonpool.core.clock import Clock
from moonpool.core.errors import BadConfig, MoonpoolError
from moonpool.core.host import host_id
from moonpool.core.sections import NodeConfig
from moonpool.core.units import format_bytes
from moonpool.pool.node_segments import require_same_tenant
from moonpool.pool.tier_node import TierNode
from moonpool.pool.tiers.agent import TierAgent
from moonpool.pool.tiers.device_memory import TorchMemory
from moonpool.pool.tiers.device_store import DeviceStore
from moonpool.pool.tiers.disk_log import DiskLog, bucket_bytes_of
from moonpool.pool.tiers.index_file import INDEX_NAME
from moonpool.pool.tiers.object_store import ObjectStore, open_remote

OBJECT_BYTES = 16_384  # one slot for so many bytes
SLOTS = 1024, 1 << 22
TENANT_NAME = "tenant"
LIVE_SHARE = 0.85  # of what the files may take; the rest is garbage on its way out


def open_tiers(config: NodeConfig, name: str, clock: Clock) -> list[TierNode]:
    """Not started, fastest first. Raises SegmentLocked, BadConfig, MissingExtra."""
    agents: list[TierAgent] = []
    home = Path(config.disk).expanduser().absolute() if config.disk else config.directory
    try:
        if config.vram:
            store = DeviceStore(TorchMemory(config.vram_device, config.vram))
            agents.append(TierAgent(store, config.vram, slot_count(config.vram)))
        if config.disk:
            agents.append(_disk(config, home / f"{name}.tier", clock))
        if config.remote:
            agents.append(_remote(config, name, home / f"{name}.remote", clock))
    except BaseException as error:
        for agent in agents:
            agent.close()
        if isinstance(error, OSError) and not isinstance(error, MoonpoolError):
            raise BadConfig(f"no tier can lie in {home}: {error}") from None
        raise
    return [TierNode(config, name, agent, clock) for agent in agents]


def _for_tenant(directory: Path, tenant: str) -> None:
    """Whom the folder serves stands in it; nothing does: all. Raises BadConfig, OSError."""
    mark = directory / TENANT_NAME
    if (directory / INDEX_NAME).exists():
        require_same_tenant(directory, mark.read_text() if mark.exists() else "", tenant)
        return
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    mark.unlink(missing_ok=True)
    if tenant:
        mark.write_text(tenant)


def _disk(config: NodeConfig, directory: Path, clock: Clock) -> TierAgent:
    capacity = disk_capacity_bytes(config.disk_size)
    _for_tenant(directory, config.tenant)
    store = DiskLog(
        directory,
        config.disk_size,
        direct=config.disk_direct,
        sync=config.disk_sync,
        boot_id=host_id(),
        wall_ms=clock.wall_ms(),
    )
    return TierAgent(store, capacity, slot_count(capacity))


def _remote(config: NodeConfig, name: str, directory: Path, clock: Clock) -> TierAgent:
    _for_tenant(directory, config.tenant)
    store = ObjectStore(
        directory,
        open_remote(config.remote),
        name,
        config.remote_size,
        sync=config.disk_sync,
        boot_id=host_id(),
        wall_ms=clock.wall_ms(),
    )
    return TierAgent(store, config.remote_size, slot_count(config.remote_size))


def disk_capacity_bytes(limit_bytes: int) -> int:
    """What the master may place in files of so many bytes. Raises BadConfig."""
    capacity = int((limit_bytes - 2 * bucket_bytes_of(limit_bytes)) * LIVE_SHARE)
    if capacity <= 0:
        raise BadConfig(f"node.disk_size = {format_bytes(limit_bytes)} holds nothing; give more")
    return capacity


def slot_count(capacity_bytes: int) -> int:
    return min(SLOTS[1], max(SLOTS[0], capacity_bytes // OBJECT_BYTES))
