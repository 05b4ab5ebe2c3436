"""A peer in a process of its own: `python -m tests.transfer.owner FOLDER PORT HOST...` offers
stamped memory, prints its addresses and epoch as JSON, and ends when its input does.

    kv   1 MiB, shared, writable, layout "kv-blocks" of 4 KiB     stamped(1 MiB, seed 7)
    raw  64 KiB, registered, read-only                            stamped(64 KiB, seed 8)
    big  16 MiB, registered, writable, only with HOSTs            stamped(16 MiB, seed 9)
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from moonpool.core.errors import Unreachable
from moonpool.transfer.engine import Engine
from tests.transfer.conftest import stamped

KV_BYTES, RAW_BYTES, BLOCK = 1 << 20, 1 << 16, 4096
KV_SEED, RAW_SEED = 7, 8
BIG_BYTES, BIG_SEED = 16 << 20, 9


def main(folder: str, port: int, *hosts: str) -> None:
    settings: dict[str, Any] = {
        "token": os.environ.get("OWNER_TOKEN", ""),
        "nixl": "OWNER_NIXL" in os.environ,
        "etcd": os.environ.get("OWNER_ETCD", ""),
        "name": os.environ.get("OWNER_NAME", ""),
        "name_ttl_s": 1,
    }
    with Engine(dir=folder, **settings) as engine:
        kv = engine.allocate(KV_BYTES, "kv")
        kv.array[:] = stamped(KV_BYTES, KV_SEED)
        kv.blocks(BLOCK, name="kv-blocks")
        engine.register(stamped(RAW_BYTES, RAW_SEED), "raw", writable=False)
        if hosts:
            engine.register(stamped(BIG_BYTES, BIG_SEED), "big")
        address = _listen(engine, port)
        for host in hosts:
            engine.listen(host)
        hello = {"address": address, "epoch": engine.epoch, "addresses": engine.addresses}
        print(json.dumps(hello), flush=True)
        sys.stdin.read()


def _listen(engine: Engine, port: int) -> str:
    # The port of a process killed a moment ago may take a little to be free.
    for _ in range(100):
        try:
            return engine.listen(port=port)
        except Unreachable:
            time.sleep(0.05)
    return engine.listen(port=port)


class Owner:
    """The test's handle on such a process; a context manager that always ends it."""

    def __init__(
        self, folder: str, port: int = 0, hosts: Sequence[str] = (), within: Sequence[str] = ()
    ) -> None:
        self._process = subprocess.Popen(
            [*within, sys.executable, "-m", "tests.transfer.owner", folder, str(port), *hosts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        hello = json.loads(self._process.stdout.readline())
        self.address: str = hello["address"]
        self.addresses: list[str] = hello["addresses"]
        self.epoch: int = hello["epoch"]
        self.port = int(self.address.rpartition(":")[2])

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{self._process.pid}/stat")
        wait_until(lambda: status.read_text().split()[2] == "T")

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def wait_until(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Sleeps until `condition()`; fails after `limit_s`, which only a broken test reaches."""
    until_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until_s, "waited in vain"
        time.sleep(0.002)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
