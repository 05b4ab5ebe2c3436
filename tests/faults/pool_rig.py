"""A pool of real processes in a folder of its own, and clients beside it, to be killed and stopped.

Values are stamped: their bytes follow from key and size, so that every read can be checked whole.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from moonpool.core.sections import ClientConfig, MasterConfig, NodeConfig
from moonpool.pool.cluster import Child, Cluster
from moonpool.pool.pool import Pool
from moonpool.pool.shell import BlockingShell

ROOT = Path(__file__).resolve().parents[2]
KIB, MIB = 1 << 10, 1 << 20
LEASE_MS, SLACK_MS, HEARTBEAT_MS = 1000, 100, 100
PATIENCE_S = 60.0  # how long a test waits for what must come; nothing is measured by it
LATE_S = 5.0  # a promised deadline may be missed by so much on a loaded machine
T = TypeVar("T")


def stamp(key: str, size: int) -> bytes:
    """The value of `key`: it names its key and ends where it should."""
    head = f"<{key}|{size}>".encode()
    return (head + random.Random(key).randbytes(max(0, size - len(head))))[:size]


def seed(given: int = 0) -> random.Random:
    """Fresh randomness; the printed number replays it: FAULTS_SEED=number."""
    number = given or int(os.environ.get("FAULTS_SEED", 0)) or random.randrange(1 << 32)
    print(f"seed {number}")
    return random.Random(number)


def eventually(condition: Callable[[], T], what: str) -> T:
    """The first true answer of `condition`."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.02)
    return answer


def answered_within(timeout_s: float, call: Callable[[], T]) -> T:
    """What `call` returns; it may not take longer than its deadline allows."""
    start = time.monotonic()
    answer = call()
    took = time.monotonic() - start
    assert took < timeout_s + LATE_S, f"answered after {took:.1f} s, promised {timeout_s} s"
    return answer


def await_stopped(pid: int) -> None:
    def stopped() -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"

    eventually(stopped, f"{pid} stopped")


class Role:
    """A client process, `python -m tests.faults.MODULE WORDS`: says lines, is told lines, gets
    signals."""

    def __init__(self, shared_memory: bool, module: str, *words: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"tests.faults.{module}", *map(str, words)],
            cwd=ROOT,
            env={**os.environ, "MOONPOOL_CLIENT_SHARED_MEMORY": str(shared_memory).lower()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pipesize=1 << 20,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words, "the process ended early"
        return words

    def expect(self, *words: str) -> None:
        said = self.line()
        assert said == list(words), said

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        await_stopped(self.pid)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> list[list[str]]:
        """SIGKILL; the whole lines said before the end."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.kill()
        rest = self.process.stdout.read()
        self.process.wait()
        self.process.stdout.close()
        self.process.stdin.close()
        return [line.split() for line in rest.splitlines(keepends=True) if line.endswith("\n")]


class Rig:
    """A running pool with its clients; all of it ends with `close`."""

    def __init__(
        self,
        directory: Path,
        nodes: int,
        memory: int,
        token: str,
        headroom: int = 8 * MIB,
        disk_size: int = 0,
        remote: bool = False,
        hosts: bool = False,
        node: dict[str, Any] | None = None,
        **master: Any,
    ) -> None:
        """`hosts`: node i counts as host h{i}. `node`: further settings of every node."""
        settings = {"node_lease_ms": LEASE_MS, "clock_slack_ms": SLACK_MS, "port": 0} | master
        settings.setdefault("grace_ms", settings["node_lease_ms"] + settings["clock_slack_ms"])
        self.directory = directory
        self.token = token
        self.cluster = Cluster(
            MasterConfig(token=token, **settings),
            [
                NodeConfig(
                    name=f"n{i}",
                    memory=memory,
                    headroom=headroom,
                    dir=str(directory),
                    heartbeat_ms=HEARTBEAT_MS,
                    token=token,
                    disk=str(directory / "disk") if disk_size else "",
                    disk_size=disk_size or 1 << 30,
                    remote=f"file://{directory}/remote" if remote else "",
                    host_id=f"h{i}" if hosts else "",
                    **(node or {}),
                )
                for i in range(nodes)
            ],
        )
        self._pools: list[Pool] = []
        self._roles: list[Role] = []
        self._stopped: set[int] = set()

    def start(self) -> Self:
        self.cluster.start()
        return self

    def close(self) -> None:
        with ExitStack() as stack:
            stack.callback(self.cluster.stop)
            for pool in self._pools:
                stack.callback(pool.close)
            for role in self._roles:
                if role.process.returncode is None:
                    stack.callback(role.kill)
            for pid in list(self._stopped):
                stack.callback(self.wake, pid)

    @property
    def address(self) -> str:
        return self.cluster.address

    @property
    def master(self) -> Child:
        assert self.cluster.master is not None
        return self.cluster.master

    @property
    def nodes(self) -> list[Child]:
        return self.cluster.nodes

    def node(self, name: str) -> Child:
        return next(node for node in self.nodes if node.name == name)

    # Clients.

    def connect(
        self, *, shared_memory: bool = True, timeout_s: float = 10.0, **settings: Any
    ) -> Pool:
        config = ClientConfig(
            master=self.address,
            token=self.token,
            timeout_ms=int(timeout_s * 1000),
            shared_memory=shared_memory,
            **settings,
        )
        shell = BlockingShell(config)
        shell.connect(timeout_s)
        self._pools.append(Pool(shell, config))
        return self._pools[-1]

    def role(self, *words: object, shared_memory: bool = True) -> Role:
        """A process of `pool_roles`."""
        name, *rest = words
        return self._role(Role(shared_memory, "pool_roles", name, self.address, *rest))

    def client(self, module: str, *words: object, shared_memory: bool = True) -> Role:
        """A process of another module, told the address first."""
        return self._role(Role(shared_memory, module, self.address, *words))

    def _role(self, role: Role) -> Role:
        self._roles.append(role)
        return role

    # Faults.

    def kill(self, *children: Child) -> None:
        for child in children:
            child.process.kill()
        for child in children:
            child.process.wait()

    def stop(self, child: Child) -> None:
        child.process.send_signal(signal.SIGSTOP)
        self._stopped.add(child.pid)
        await_stopped(child.pid)

    def wake(self, pid: int) -> None:
        self._stopped.discard(pid)
        os.kill(pid, signal.SIGCONT)

    def add_node(self, name: str, memory: int) -> Child:
        """Joins the running pool; of any size."""
        config = msgspec.structs.replace(
            self.cluster.node_configs[0], name=name, memory=memory, disk="", remote=""
        )
        return self.cluster.add_node(config)

    def restart(self) -> None:
        """Start again whatever was killed; the master first."""
        if not self.master.alive:
            self.cluster.restart_master()
        for node in self.nodes:
            if not node.alive:
                self.cluster.restart_node(node)


@contextmanager
def running(
    nodes: int = 2, memory: int = 16 * MIB, token: str = "", **settings: Any
) -> Iterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="moonpool-faults-", dir="/dev/shm") as folder:
        rig = Rig(Path(folder), nodes, memory, token, **settings)
        try:
            yield rig.start()
        finally:
            rig.close()


def put_each(pool: Pool, sizes: dict[str, int], *, replicas: int = 1) -> None:
    """Stamped values, one put each: a batch would lie on one node, so they lie on all."""
    for key, size in sizes.items():
        assert pool.put(key, stamp(key, size), replicas=replicas).replicas == replicas
    segments = pool.stat()["segments"]
    assert isinstance(segments, dict)
    assert all(segment["objects"] for segment in segments.values()), "a node holds nothing"


def usage(pool: Pool) -> dict[str, int]:
    """What the agents said last of their memory, summed over the segments."""
    total: dict[str, int] = {}
    segments = pool.stat()["segments"]
    assert isinstance(segments, dict)
    for segment in segments.values():
        for name, value in (segment["usage"] or {}).items():
            total[name] = total.get(name, 0) + value
    return total


def await_usage(pool: Pool, **wanted: int) -> None:
    def reached() -> bool:
        now = usage(pool)
        return all(now.get(name) == value for name, value in wanted.items())

    try:
        eventually(reached, f"{wanted}")
    except AssertionError as error:
        raise AssertionError(f"{error}; it is {usage(pool)}") from None


def counter(pool: Pool, name: str) -> int:
    value = pool.stat()[name]
    assert isinstance(value, int)
    return value


def live_nodes(pool: Pool) -> int:
    segments = pool.stat()["segments"]
    assert isinstance(segments, dict)
    return sum(segment["alive"] for segment in segments.values())
