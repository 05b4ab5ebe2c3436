"""Shared memory, huge pages and what may be locked. `root` is '/' outside of tests."""

import os
import resource
from pathlib import Path

from moonpool.cli.probes.finding import Finding, State, read_text
from moonpool.core.units import format_bytes

COMFORT_BYTES = 1 << 30


def probe_memory(root: Path, wanted_bytes: int = COMFORT_BYTES) -> list[Finding]:
    """All findings about memory; `wanted_bytes` is what a node would lend by default."""
    return [
        shared_memory(root / "dev/shm", wanted_bytes),
        memory_limit(root, wanted_bytes),
        transparent_huge_pages(root),
        reserved_huge_pages(root),
        locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
    ]


def shared_memory(folder: Path, wanted_bytes: int) -> Finding:
    """Room for segment files."""
    what = "shared memory"
    grow = (
        "give the container more: docker run --shm-size=8g, Kubernetes an emptyDir of medium "
        "Memory at /dev/shm; or name another folder with --dir"
    )
    if not folder.is_dir():
        return Finding(what, State.FAILED, f"{folder} does not exist", grow)
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding(
            what, State.FAILED, f"{folder} is not writable", "mount a tmpfs of mode 1777"
        )
    at = os.statvfs(folder)
    free, size = at.f_bavail * at.f_frsize, at.f_blocks * at.f_frsize
    detail = f"{folder}: {format_bytes(free)} free of {format_bytes(size)}"
    if free < wanted_bytes:
        return Finding(
            what, State.LIMITED, f"{detail}; a node lends {_by_default(wanted_bytes)}", grow
        )
    return Finding(what, State.OK, detail)


def memory_limit(root: Path, wanted_bytes: int) -> Finding:
    """Free memory, and the limit of the cgroup that pages of /dev/shm count against."""
    available = _meminfo(root, "MemAvailable")
    limit = read_text(root / "sys/fs/cgroup/memory.max") or "max"
    used = int(read_text(root / "sys/fs/cgroup/memory.current") or 0)
    if limit != "max":
        available = min(available, max(0, int(limit) - used))
    capped = "" if limit == "max" else f", cgroup limit {format_bytes(int(limit))}"
    detail = f"{format_bytes(available)} available{capped}"
    if available < wanted_bytes:
        advice = "lend less (--memory 256MiB) or raise the memory limit"
        return Finding("memory", State.LIMITED, detail, advice)
    return Finding("memory", State.OK, detail)


def transparent_huge_pages(root: Path) -> Finding:
    """Whether segments in /dev/shm get huge pages: its mount says so, not shmem_enabled, which is
    about memory without a mount and only forbids or forces all."""
    what = "huge pages (shmem)"
    path = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
    text = read_text(root / path)
    if text is None:
        return Finding(what, State.ABSENT, "this kernel has no transparent huge pages for shmem")
    over_all = text.partition("[")[2].partition("]")[0] or text
    if over_all == "deny":
        advice = f"as root: echo never > /{path}, then a mount option decides"
        return Finding(what, State.LIMITED, "shmem_enabled is 'deny'", advice)
    if over_all == "force":
        return Finding(what, State.OK, "shmem_enabled is 'force'")
    chosen = _huge_option(root, "/dev/shm")
    if chosen == "never":
        advice = "as root: mount -o remount,huge=advise /dev/shm (faster copies, rows at random)"
        return Finding(what, State.LIMITED, "/dev/shm is mounted with huge=never", advice)
    return Finding(what, State.OK, f"/dev/shm is mounted with huge={chosen}")


def _huge_option(root: Path, place: str) -> str:
    """Of the tmpfs mounted last at `place`: a mount without the option has 'never'."""
    chosen = "never"
    for line in (read_text(root / "proc/mounts") or "").splitlines():
        where, kind, options = line.split()[1:4]
        if where == place and kind == "tmpfs":
            named = [o.partition("=")[2] for o in options.split(",") if o.startswith("huge=")]
            chosen = named[-1] if named else "never"
    return chosen


def reserved_huge_pages(root: Path) -> Finding:
    """hugetlbfs, where a segment may live instead of /dev/shm."""
    what = "huge pages (hugetlbfs)"
    mounts = (read_text(root / "proc/mounts") or "").splitlines()
    places = [line.split()[1] for line in mounts if line.split()[2:3] == ["hugetlbfs"]]
    total, free = _pages(root, "HugePages_Total"), _pages(root, "HugePages_Free")
    page = _meminfo(root, "Hugepagesize")
    if not total:
        advice = "optional; as root: sysctl vm.nr_hugepages=N, then --dir on a hugetlbfs mount"
        return Finding(what, State.ABSENT, "none reserved", advice)
    detail = f"{free} of {total} pages of {format_bytes(page)} free"
    if not places:
        advice = "mount -t hugetlbfs none /dev/hugepages"
        return Finding(what, State.LIMITED, f"{detail}, not mounted", advice)
    return Finding(what, State.OK, f"{detail}, mounted at {', '.join(places)}")


def locked_memory(limit: int) -> Finding:
    """RLIMIT_MEMLOCK: RDMA registration pins pages; copies do not need it."""
    what = "locked memory"
    if limit == resource.RLIM_INFINITY:
        return Finding(what, State.OK, "unlimited")
    advice = "needed for RDMA only: ulimit -l unlimited (docker: --ulimit memlock=-1)"
    return Finding(what, State.LIMITED, f"limit {format_bytes(limit)}", advice)


def _by_default(wanted_bytes: int) -> str:
    return f"{format_bytes(wanted_bytes)} by default"


def _meminfo(root: Path, name: str) -> int:
    """Bytes of a line of /proc/meminfo, 0 when it is not there."""
    return _pages(root, name) * 1024


def _pages(root: Path, name: str) -> int:
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0])
    return 0
