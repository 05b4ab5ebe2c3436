"""A pool with tenants: the rig with a tenants file, and clients that show a tenant's token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from moonpool.core.sections import ClientConfig
from moonpool.pool.cluster import Cluster
from moonpool.pool.pool import Pool
from moonpool.pool.shell import BlockingShell
from tests.faults.pool_rig import MIB, Rig

CLUSTER = "a long and random text of the cluster"
TOKENS = {name: f"a long and random text of tenant {name}" for name in ("a", "b")}


def tenants_file(folder: Path, **more: str) -> str:
    """Two tenants; `more` has lines for each by name."""
    path = folder / "tenants.toml"
    path.write_text(
        "".join(
            f"[tenants.{name}]\ntoken = '{token}'\n{more.get(name, '')}\n"
            for name, token in TOKENS.items()
        )
    )
    return str(path)


@contextmanager
def tenant_pool(
    folder: Path,
    nodes: int = 1,
    memory: int = 16 * MIB,
    lines: dict[str, str] | None = None,
    node: dict[str, Any] | None = None,
    **master: Any,
) -> Iterator[Rig]:
    path = tenants_file(folder, **(lines or {}))
    rig = Rig(folder, nodes, memory, CLUSTER, tenants=path, **master)
    configs = rig.cluster._node_configs
    configs[:] = [msgspec.structs.replace(one, tenants=path, **(node or {})) for one in configs]
    try:
        yield rig.start()
    finally:
        rig.close()


@contextmanager
def visitor(
    rig: Rig | Cluster, name: str, *, timeout_s: float = 10.0, **how: Any
) -> Iterator[Pool]:
    """A client of this tenant; the operator without a name."""
    token = TOKENS[name] if name else CLUSTER
    config = ClientConfig(master=rig.address, token=token, timeout_ms=int(timeout_s * 1000), **how)
    shell = BlockingShell(config)
    with ExitStack() as stack:
        stack.callback(shell.close)
        shell.connect(timeout_s)
        yield Pool(shell, config)
