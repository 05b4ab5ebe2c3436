"""How much memory a replay takes, and whether this machine has it: asked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moonpool.core.errors import SegmentSpace
from moonpool.core.units import counted, format_bytes
from moonpool.planner.traces import Trace

ALIGNMENT_BYTES: Final = 64
HEADROOM_BYTES_MIN: Final = 64 << 20
SLOT_BYTES: Final = 512  # a slot of the table and a row of the catalog beside it
PROCESS_BYTES: Final = 96 << 20  # an interpreter with numpy, and the client's buffers to spare
BALANCE: Final = 1.125  # nodes fill evenly but not to the byte


@dataclass(frozen=True)
class Room:
    """The memory of one replay's pool: `nodes` segments of `capacity_blocks` blocks each."""

    nodes: int
    capacity_blocks: int
    block_bytes: int
    longest_blocks: int

    @classmethod
    def of(cls, trace: Trace, nodes: int, block_bytes: int, capacity_blocks: int | None) -> Room:
        """`capacity_blocks` of each node; None is room for every block of the trace."""
        longest = max((len(r.hash_ids) for r in trace.requests), default=0)
        if capacity_blocks is None:
            different = trace.summary.different_blocks
            capacity_blocks = different if nodes == 1 else int(different * BALANCE) // nodes
            capacity_blocks += longest
        return cls(nodes, capacity_blocks, block_bytes, longest)

    @property
    def stride_bytes(self) -> int:
        return -(-self.block_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    @property
    def capacity_bytes(self) -> int:
        """What one node may commit."""
        return self.capacity_blocks * self.block_bytes

    @property
    def headroom_bytes(self) -> int:
        """On top of it: two longest chains in flight or draining, and the loss of alignment."""
        loss = self.capacity_blocks * (self.stride_bytes - self.block_bytes)
        return max(HEADROOM_BYTES_MIN, 2 * self.longest_blocks * self.stride_bytes) + loss

    @property
    def slots(self) -> int:
        return self.capacity_blocks + self.headroom_bytes // self.stride_bytes

    @property
    def segment_bytes(self) -> int:
        return self.capacity_bytes + self.headroom_bytes + self.slots * SLOT_BYTES

    @property
    def process_bytes(self) -> int:
        buffers = 3 * self.longest_blocks * self.block_bytes
        return (self.nodes + 2) * PROCESS_BYTES + buffers

    def check(self, free: Mapping[str, int]) -> None:
        """Raises SegmentSpace with the sum when `free` ("shared memory", "memory") is less."""
        shared = self.nodes * self.segment_bytes
        needed = {"shared memory": shared, "memory": shared + self.process_bytes}
        for kind, size in needed.items():
            if kind in free and size > free[kind]:
                raise SegmentSpace(
                    f"this replay needs {format_bytes(size)} of {kind}:"
                    f" {counted(self.nodes, 'node')} x"
                    f" ({self.capacity_blocks:,} blocks x {format_bytes(self.block_bytes)}"
                    f" + {format_bytes(self.segment_bytes - self.capacity_bytes)} headroom and"
                    f" tables){'' if kind == 'shared memory' else ' and the processes'}, but"
                    f" {format_bytes(free[kind])} is free."
                    " Give fewer --capacity-blocks, smaller --block-bytes or a --limit"
                )


def free_memory(directory: Path) -> dict[str, int]:
    """Bytes free for segments in `directory`, and in this machine or container as a whole."""
    stat = os.statvfs(directory)
    free = {"shared memory": stat.f_bavail * stat.f_frsize}
    available = [size for size in (_available(), _cgroup_left()) if size is not None]
    if available:
        free["memory"] = min(available)
    return free


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_left() -> int | None:
    """What the container's own limit leaves; None without a limit (cgroup v2)."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)
