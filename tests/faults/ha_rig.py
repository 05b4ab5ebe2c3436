"""Several masters, nodes and clients of one pool that find each other through a real etcd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from moonpool.core.clock import Deadline, SystemClock
from moonpool.core.errors import MoonpoolError
from moonpool.core.sections import ClientConfig, MasterConfig, NodeConfig
from moonpool.pool import messages as m
from moonpool.pool.children import first_line, reap
from moonpool.pool.ha_registry import Registry
from moonpool.pool.link import BlockingLink
from moonpool.pool.pool import Pool
from moonpool.pool.shell import BlockingShell
from tests.faults.pool_rig import MIB, PATIENCE_S, await_stopped, eventually

LEASE_MS = 1000


class Child:
    """A master or a node, and what it said when it was ready."""

    def __init__(self, role: str, config: MasterConfig | NodeConfig, older: bool = False) -> None:
        module = "tests.faults.older" if older else "moonpool.pool.process"
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, role, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        with suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(msgspec.json.encode(msgspec.structs.asdict(config)) + b"\n")
        self.ready: dict[str, Any] = {}

    def await_ready(self) -> Child:
        self.ready = json.loads(first_line(self.process, time.monotonic() + PATIENCE_S))
        return self

    @property
    def address(self) -> str:
        return str(self.ready["address"])

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        await_stopped(self.process.pid)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        reap(self.process, time.monotonic() + 10)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Fleet:
    """All of it; ends with `close`."""

    def __init__(
        self,
        url: str,
        folder: Path,
        stack: ExitStack,
        memory: int = 32 * MIB,
        disk_size: int = 0,
    ) -> None:
        self.url = url
        self.masters: list[Child] = []
        self.nodes: list[Child] = []
        self._folder = folder
        self._stack = stack
        self._memory = memory
        self._disk_size = disk_size
        self._registry = Registry(url, timeout_s=5.0, try_s=0.5)
        stack.callback(self._registry.close)

    def add_master(self, older: bool = False, **settings: Any) -> Child:
        defaults: dict[str, Any] = {
            "node_lease_ms": 1500,
            "clock_slack_ms": 100,
            "grace_ms": 1600,
            "rows_max": 65_536,
        }
        config = MasterConfig(
            port=0, ha=self.url, election_lease_ms=LEASE_MS, **(defaults | settings)
        )
        child = Child("master", config, older)
        self._stack.callback(child.end)
        self.masters.append(child.await_ready())
        return child

    def add_node(self, older: bool = False) -> Child:
        config = NodeConfig(
            name=f"n{len(self.nodes)}",
            master=self.url,
            memory=self._memory,
            headroom=8 * MIB,
            dir=str(self._folder),
            heartbeat_ms=100,
            disk=str(self._folder / "disk") if self._disk_size else "",
            disk_size=self._disk_size or 1 << 30,
        )
        child = Child("node", config, older)
        self._stack.callback(child.end)
        self.nodes.append(child.await_ready())
        return child

    def connect(self, master: str = "", **settings: Any) -> Pool:
        config = ClientConfig(master=master or self.url, **settings)
        shell = BlockingShell(config)
        self._stack.callback(shell.close)
        shell.connect(10)
        return Pool(shell, config)

    # Who leads.

    def leader(self) -> Child:
        """The master that etcd names, once it leads in fact."""

        def found() -> Child | None:
            with suppress(MoonpoolError):
                seen = self._registry.read()
                for child in self.masters:
                    if (
                        seen.leader is not None
                        and seen.beat_revision
                        and not seen.beat.resigned
                        and seen.leader.address == child.address
                        and child.process.poll() is None
                        and not self.stat(child).get("stands_by", True)
                    ):
                        return child
            return None

        child = eventually(found, "a leader")
        assert child is not None
        return child

    def standbys(self) -> list[Child]:
        leader = self.leader()
        return [one for one in self.masters if one is not leader and one.process.poll() is None]

    def stat(self, master: Child) -> dict[str, Any]:
        """What one master says of itself, whether it leads or not."""
        deadline = Deadline.after(SystemClock().monotonic(), 2.0)
        link = BlockingLink(master.address, "", "tester", deadline)
        try:
            reply = link.request(m.Stat(), deadline)
        finally:
            link.close()
        assert isinstance(reply, m.Status)
        return reply.values

    def stands_by(self, master: Child) -> bool | None:
        """None: it does not say now. Who is replaced ends the connections of those who ask."""
        with suppress(MoonpoolError):
            return bool(self.stat(master)["stands_by"])
        return None

    def await_followed(self, objects: int) -> None:
        """Every master that stands by knows as many objects."""
        for one in self.standbys():

            def there(one: Child = one) -> bool:
                with suppress(MoonpoolError):
                    return int(self.stat(one)["objects"]) == objects
                return False

            eventually(there, f"{one.address} follows {objects} objects")


@contextmanager
def fleet(
    url: str,
    masters: int = 2,
    nodes: int = 2,
    memory: int = 32 * MIB,
    disk_size: int = 0,
    **settings: Any,
) -> Iterator[Fleet]:
    with ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="moonpool-ha-", dir="/dev/shm")
        )
        made = Fleet(url, Path(folder), stack, memory, disk_size)
        for _ in range(masters):
            made.add_master(**settings)
        for _ in range(nodes):
            made.add_node()
        yield made
