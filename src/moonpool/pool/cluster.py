"""A pool on this machine: a master and its nodes as child processes, up together, down together.

It starts nothing a second time: a child that died is reported by `died`, never replaced.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import msgspec

from moonpool.core.address import parse_address
from moonpool.core.errors import NotReady
from moonpool.core.sections import MasterConfig, NodeConfig, default_directory
from moonpool.pool.children import first_line, reap, uninterrupted

START_S: Final = 60.0
# A node touches its memory before it is ready. Mostly that takes 0.3 to 4 s a GiB, on a virtual
# machine whose host has to find the memory first up to 13 s.
TOUCH_S_PER_GIB: Final = 20.0
STOP_S: Final = 10.0
_LOG_TAIL_BYTES: Final = 2000
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Child:
    """A process of the cluster; `ready` is what it said when it was."""

    role: str
    name: str
    process: subprocess.Popen[bytes]
    ready: dict[str, Any]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


class Cluster:
    """Children of this process, alive between `start` and `stop` (or inside `with`).

    Args:
        master: its settings; port 0 takes any free one.
        nodes: settings of each node; their `master` is filled in.
        masters: how many; more than one need `master.ha`, and nodes and clients find them by it.
        inherit_log: show what the children log on stderr; otherwise it is kept and shown only
            when one does not come up.
    """

    def __init__(
        self,
        master: MasterConfig,
        nodes: Sequence[NodeConfig],
        *,
        masters: int = 1,
        inherit_log: bool = False,
    ) -> None:
        self.address = ""
        self.nodes: list[Child] = []
        self.masters: list[Child] = []
        self._master_count = masters
        self._master_config = master
        self._node_configs = list(nodes)
        self._inherit_log = inherit_log
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log: IO[bytes] | None = None

    def start(self, timeout_s: float | None = None) -> None:
        """Start all; returns when every node is part of the pool. Raises NotReady, all down, after
        `timeout_s`; default: `start_s` of the nodes."""
        begin_s = time.monotonic()
        masters_until = begin_s + (START_S if timeout_s is None else timeout_s)
        nodes_until = begin_s + (start_s(self._node_configs) if timeout_s is None else timeout_s)
        try:
            self._log = None if self._inherit_log else tempfile.TemporaryFile()
            spawned = [
                self._spawn("master", self._master_config) for _ in range(self._master_count)
            ]
            self.masters = [self._await_ready("master", one, masters_until) for one in spawned]
            self.address = self._master_config.ha or self.masters[0].ready["address"]
            started = [
                self._spawn("node", msgspec.structs.replace(config, master=self.address))
                for config in self._node_configs
            ]
            self.nodes = [self._await_ready("node", node, nodes_until) for node in started]
        except BaseException:
            self.stop()
            raise

    @property
    def master(self) -> Child | None:
        """The first one."""
        return self.masters[0] if self.masters else None

    @property
    def master_config(self) -> MasterConfig:
        """As given; the address is `address`."""
        return self._master_config

    @property
    def node_configs(self) -> Sequence[NodeConfig]:
        """As given, in the order of `nodes`."""
        return self._node_configs

    @property
    def children(self) -> list[Child]:
        return self.masters + self.nodes

    def died(self) -> list[Child]:
        """Children that ended by themselves or were killed."""
        return [child for child in self.children if not child.alive]

    def wait(self, timeout_s: float, beside: Sequence[Child] = ()) -> list[Child]:
        """Sleep until a child ends, or one `beside` them, `timeout_s` at most; those that ended."""
        watched = [*self.children, *beside]
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            for child in watched:
                with suppress(ProcessLookupError):
                    descriptor = os.pidfd_open(child.pid)
                    stack.callback(os.close, descriptor)
                    selector.register(descriptor, selectors.EVENT_READ)
            if all(child.alive for child in watched):
                selector.select(timeout_s)
        return [child for child in watched if not child.alive]

    def kill(self, child: Child) -> None:
        """SIGKILL: it gets no chance to say goodbye."""
        child.process.kill()
        child.process.wait()

    def restart_master(self, timeout_s: float = START_S) -> None:
        """A new master process at the same address, in place of one that was killed."""
        assert self.master is not None
        self.replace_master(self.master, parse_address(self.address).port, timeout_s)

    def replace_master(
        self, killed: Child, port: int | None = None, timeout_s: float = START_S
    ) -> Child:
        """A new master process in place of one that was killed; by default at an address of its
        own."""
        assert not killed.alive
        config = self._master_config
        if port is not None:
            config = msgspec.structs.replace(config, port=port)
        process = self._spawn("master", config)
        at = self.masters.index(killed)
        self.masters[at] = self._await_ready("master", process, time.monotonic() + timeout_s)
        return self.masters[at]

    def add_node(self, config: NodeConfig, timeout_s: float | None = None) -> Child:
        """A further node, once it is part of the pool."""
        process = self._spawn("node", msgspec.structs.replace(config, master=self.address))
        deadline = time.monotonic() + (start_s([config]) if timeout_s is None else timeout_s)
        self.nodes.append(self._await_ready("node", process, deadline))
        self._node_configs.append(config)
        return self.nodes[-1]

    def restart_node(self, node: Child, timeout_s: float | None = None) -> Child:
        """A new process for a node that was killed; it adopts the segment of the old one."""
        assert not node.alive
        at = self.nodes.index(node)
        config = msgspec.structs.replace(self._node_configs[at], master=self.address)
        process = self._spawn("node", config)
        deadline = time.monotonic() + (start_s([config]) if timeout_s is None else timeout_s)
        self.nodes[at] = self._await_ready("node", process, deadline)
        return self.nodes[at]

    def stop(self, timeout_s: float = STOP_S) -> None:
        """End all: asked first, killed when they do not go. Nodes go before their master."""
        deadline = time.monotonic() + timeout_s
        masters = {child.pid for child in self.masters}
        nodes = [process for process in self._processes if process.pid not in masters]
        rulers = [process for process in self._processes if process.pid in masters]
        for group in (nodes, rulers):
            for process in group:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            for process in group:
                reap(process, deadline)
        self._processes.clear()
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _spawn(self, role: str, config: MasterConfig | NodeConfig) -> subprocess.Popen[bytes]:
        with uninterrupted():
            # A session of its own: Ctrl-C reaches the parent only, which ends all in order.
            process = subprocess.Popen(
                [sys.executable, "-m", "moonpool.pool.process", role, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                start_new_session=True,
            )
            self._processes.append(process)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(msgspec.json.encode(msgspec.structs.asdict(config)) + b"\n")
        return process

    def _await_ready(self, role: str, process: subprocess.Popen[bytes], deadline: float) -> Child:
        line = first_line(process, deadline)
        try:
            ready = json.loads(line)
        except ValueError:
            why = "did not become ready in time" if process.poll() is None else "ended"
            raise NotReady(f"the {role} process {why}{self._log_tail()}") from None
        return Child(role, ready.get("name", role), process, ready)

    def _log_tail(self) -> str:
        if self._log is None:
            return ""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL_BYTES))
        return f": {self._log.read().decode(errors='replace').strip()}"


def start_s(nodes: Sequence[NodeConfig]) -> float:
    """How long such nodes may take to be ready, started side by side on one machine."""
    return START_S + TOUCH_S_PER_GIB * sum(node.memory for node in nodes) / (1 << 30)


@contextmanager
def local_directory(name: str, base: Path | None = None) -> Iterator[Path]:
    """A folder of this user in shared memory for the segments of one cluster, gone afterwards."""
    base = base or default_directory()
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f"{name}-", dir=base, ignore_cleanup_errors=True
    ) as directory:
        yield Path(directory)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, user and system; 0 when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
