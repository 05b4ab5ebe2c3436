"""Which machine this is: two processes with the same host id can share memory."""

from __future__ import annotations

from functools import cache
from pathlib import Path


def host_id(given: str = "") -> str:
    """`given`, for processes that are to count as another host's, or this machine's."""
    return given or _machine_id()


@cache
def _machine_id() -> str:
    """Boot id and machine id: equal on one running machine, different after a reboot.

    Containers of one machine share the boot id but may not share /dev/shm: opening the segment's
    file decides, this id only says that it is worth a try.
    """
    parts = []
    for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"):
        try:
            parts.append(Path(path).read_text().strip().replace("-", ""))
        except OSError:
            parts.append("")
    return ":".join(parts)
