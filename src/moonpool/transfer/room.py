"""Whether memory can be had, asked before it is taken: shared memory is allocated page by page, and
asking for more than there is ends in the kernel killing somebody, not in an error.
"""

from pathlib import Path

from moonpool.core.errors import SegmentSpace
from moonpool.core.units import format_bytes

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int:
    """Free memory of this machine or of our control group, whichever is less; 2^63-1 if unknown."""
    return min(_machine_bytes(meminfo), _group_bytes(cgroup))


def require_room(nbytes: int) -> None:
    """Raises SegmentSpace when `nbytes` are more than available."""
    if nbytes > (free := available_bytes()):
        raise SegmentSpace(
            f"{format_bytes(nbytes)} of shared memory were asked for and {format_bytes(free)} are "
            f"free; take a smaller segment or stop something"
        )


def _machine_bytes(meminfo: Path) -> int:
    for line in _text(meminfo).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 2**63 - 1


def _group_bytes(cgroup: Path) -> int:
    limit, used = _text(cgroup / "memory.max").strip(), _text(cgroup / "memory.current").strip()
    if not limit.isdigit() or not used.isdigit():
        return 2**63 - 1
    return max(0, int(limit) - int(used))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
