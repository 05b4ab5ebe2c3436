"""Processes of a pool with tenants, each of a user of its own: `UID ROLE WORDS`.

`node PARENT` is a node, configured on stdin. `fill ADDRESS TENANT` puts stamped objects and says
`filled n`. `search ADDRESS TENANT` is a hostile client: it maps what it can, and says
`searched files own others`.

All that it needs is imported before it becomes that user: the interpreter may lie where only the
first user reads.
"""

from __future__ import annotations

import encodings.ascii
import encodings.idna
import encodings.latin_1  # noqa: F401
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import uvloop  # noqa: F401

import moonpool
import moonpool.pool.node
import moonpool.transfer.tunnels
from moonpool.pool.process import main as child

STAMPS = {"a": b"<<stamp of tenant a>>", "b": b"<<stamp of tenant b>>"}


def fill(address: str, tenant: str) -> None:
    """Some go to the tenant's own node, some to the shared one."""
    stamp = STAMPS[tenant]
    with moonpool.connect(address, timeout_s=10) as pool:
        stored = [pool.put(f"k{i}", stamp * 5000).ok for i in range(16)]
        assert all(pool.get(f"k{i}") == stamp * 5000 for i in range(16))
    print("filled", sum(stored))


def search(address: str, tenant: str) -> None:
    with moonpool.connect(address, timeout_s=10) as pool:
        assert pool.get("k0") == STAMPS[tenant] * 5000
        told = {one.path for one in pool._shell.state.endpoints.values() if one.path}
    mapped = own = others = 0
    for path in sorted(told | set(_within_reach())):
        try:
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as all_:
                mapped += 1
                own += all_.find(STAMPS[tenant]) >= 0
                others += any(all_.find(s) >= 0 for name, s in STAMPS.items() if name != tenant)
        except (OSError, ValueError):
            continue
    print("searched", mapped, own, others)


def _within_reach() -> Iterator[str]:
    """Files in shared memory, and what any process has open or mapped."""
    for folder, _, names in os.walk("/dev/shm"):
        yield from (f"{folder}/{name}" for name in names)
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        for kind in ("fd", "map_files"):
            try:
                yield from (str(one) for one in (process / kind).iterdir())
            except OSError:
                continue


if __name__ == "__main__":
    uid, role, *words = sys.argv[1:]
    os.setgroups([])
    os.setgid(int(uid))
    os.setuid(int(uid))
    if role == "node":
        sys.argv[1:] = [role, *words]
        sys.exit(child())
    {"fill": fill, "search": search}[role](*words)
