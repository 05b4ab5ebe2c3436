"""A Mooncake Store of three processes: its master, one that lends memory, and this one as client.

As a program (`python -m bench.peers.mooncake_cluster MASTER NBYTES SEGMENTS`) it is the one that
lends, as a client of Mooncake for each segment. The client lends nothing, so every byte crosses a
process border, as it does in our own benches.
"""

import contextlib
import os
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.children import Child, await_port, free_port

PACKAGE: Final = "mooncake-transfer-engine-non-cuda"
HOST: Final = "127.0.0.1"
LENDER_BUFFER_BYTES: Final = 16 << 20
CLIENT_BUFFER_BYTES: Final = 256 << 20
READY: Final = "ready"
START_WAIT_S: Final = 60.0


class Cluster(NamedTuple):
    """The client's store, the other two processes, and where the master is and what it counts."""

    store: Any
    master: Child
    lender: Child
    address: str = ""
    metrics_port: int = 0

    def counted(self, name: str) -> float:
        """What the master's metrics say under this name. Raises RuntimeError."""
        url = f"http://{HOST}:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.rsplit(" ", 1)[1])
        raise RuntimeError(f"mooncake: its metrics do not name {name}")


def mooncake_version() -> str:
    return version(PACKAGE)


@contextlib.contextmanager
def cluster(memory_bytes: int, segments: int = 1, further: Sequence[str] = ()) -> Iterator[Cluster]:
    """Master and lender as children on random ports; default settings but for logs and metrics, and
    what `further` says. `memory_bytes` of each segment."""
    quiet()
    port, metrics_port = free_port(), free_port()
    address = f"{HOST}:{port}"
    program = Path(sys.executable).with_name("mooncake_master")
    options = [
        f"--rpc_address={HOST}",
        f"--rpc_port={port}",
        f"--metrics_host={HOST}",
        f"--metrics_port={metrics_port}",
        "--enable_metric_reporting=false",
        "--logtostderr=true",
        "--minloglevel=3",
        *further,
    ]
    lend = [sys.executable, "-m", "bench.peers.mooncake_cluster", address]
    lend += [str(memory_bytes), str(segments)]
    with Child([str(program), *options], name="mooncake_master") as master:
        await_port(master, port)
        with Child(lend, name="mooncake lender") as lender:
            lender.wait_for(READY, START_WAIT_S)
            store = connected(address, 0, CLIENT_BUFFER_BYTES)
            yield Cluster(store, master, lender, address, metrics_port)


def connected(master: str, lent_bytes: int, buffer_bytes: int) -> Any:
    """A store client of this process. Raises RuntimeError."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    status = store.setup(HOST, "P2PHANDSHAKE", lent_bytes, buffer_bytes, "tcp", "", master)
    expect(status == 0, f"setup answered {status}")
    return store


def quiet() -> None:
    """Only what is fatal is logged; before the first import of mooncake."""
    os.environ |= {"GLOG_minloglevel": "3", "MC_LOG_LEVEL": "ERROR"}


def expect(good: bool, what: str) -> None:
    """A rival measures what it says: anything else ends it. Raises RuntimeError."""
    if not good:
        raise RuntimeError(f"mooncake: {what}")


def leave() -> None:
    """End here and now: its engine's own threads may fail while the interpreter winds up."""
    sys.stdout.flush()
    os._exit(0)


def lend() -> None:
    """Lend memory until stdin closes."""
    quiet()
    address, memory_bytes, segments = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    _stores = [connected(address, memory_bytes, LENDER_BUFFER_BYTES) for _ in range(segments)]
    print(READY, flush=True)
    sys.stdin.read()
    leave()


if __name__ == "__main__":
    lend()
