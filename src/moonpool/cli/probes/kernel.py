"""What the processor and the kernel offer: checksum instructions, io_uring, owner locks."""

import ctypes
import errno
import fcntl
import os
import struct
from pathlib import Path
from tempfile import TemporaryFile

from moonpool.cli.probes.finding import Finding, State, read_text

_IO_URING_SETUP = 425  # the same number on every architecture
_USEFUL_FLAGS = ("sse4_2", "pclmulqdq", "avx2", "avx512f", "vpclmulqdq", "sha_ni", "crc32", "sha2")


def probe_kernel(root: Path) -> list[Finding]:
    """All findings about processor and kernel."""
    return [native_core(), processor(root), io_uring(root), owner_locks(), open_files()]


def native_core() -> Finding:
    """The compiled part; without it nothing runs."""
    what = "native core"
    try:
        from moonpool import _core
    except ImportError as error:
        return Finding(what, State.FAILED, str(error), "build it: make setup, or pip install .")
    name = _core.crc32c_implementation()
    if name == "portable":
        detail = "CRC-32C in software: this processor has no instruction for it"
        return Finding(what, State.LIMITED, detail, "expect checksums to dominate large copies")
    return Finding(what, State.OK, f"CRC-32C by {name}")


def processor(root: Path) -> Finding:
    """Cores this process may use, and the instructions that speed up copies and hashes."""
    cores = len(os.sched_getaffinity(0))
    text = read_text(root / "proc/cpuinfo") or ""
    flags: set[str] = set()
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        if key.strip().lower() in ("flags", "features"):
            flags.update(rest.split())
            break
    found = [flag for flag in _USEFUL_FLAGS if flag in flags]
    detail = f"{cores} cores; {' '.join(found) or 'no special instructions seen'}"
    if cores < 2:
        return Finding("processor", State.LIMITED, detail, "give a node two cores or more")
    return Finding("processor", State.OK, detail)


def io_uring(root: Path) -> Finding:
    """Asks the kernel for a ring of one entry and gives it back; for the disk tier."""
    what = "io_uring"
    libc = ctypes.CDLL(None, use_errno=True)
    parameters = ctypes.create_string_buffer(120)
    fd = libc.syscall(_IO_URING_SETUP, 1, parameters)
    if fd >= 0:
        os.close(fd)
        return Finding(what, State.OK, "available")
    code = ctypes.get_errno()
    disabled = read_text(root / "proc/sys/kernel/io_uring_disabled") or "0"
    if code == errno.ENOSYS:
        return Finding(what, State.ABSENT, "this kernel has none", "optional; Linux 5.6 or newer")
    reason = f"refused ({errno.errorcode.get(code, code)}, io_uring_disabled={disabled})"
    advice = "optional; allow it in the seccomp profile, or sysctl kernel.io_uring_disabled=0"
    return Finding(what, State.ABSENT, reason, advice)


def owner_locks() -> Finding:
    """OFD locks: how a dead owner or writer is told from a slow one."""
    what = "file locks"
    with TemporaryFile() as file:
        whole_file = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, whole_file)
        except OSError as error:
            advice = "segments need open-file-description locks: Linux 3.15 or newer"
            return Finding(what, State.FAILED, f"refused: {error.strerror}", advice)
    return Finding(what, State.OK, "open-file-description locks work")


def open_files() -> Finding:
    """RLIMIT_NOFILE against the connections of a larger cluster."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"limit {soft} (hard {hard})"
    if soft < 4096:
        return Finding("open files", State.LIMITED, detail, "ulimit -n 65536 for large clusters")
    return Finding("open files", State.OK, detail)
