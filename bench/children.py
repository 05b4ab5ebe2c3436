"""Child processes of a comparison: started with a bound, ended by pid, never left behind.

Standard library alone, for rivals run in a virtual environment of their own.
"""

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[1]
END_WAIT_S = 10.0
COMPLAINT_BYTES = 500

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


class ChildFailed(Exception):
    """A child ended, or said nothing for too long."""


class Child:
    """A process whose output is read line by line with a deadline; its stdin closes with us.

    What it says on stderr is kept, and shown when it fails.
    """

    def __init__(self, command: Sequence[str], *, name: str) -> None:
        self.name = name
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            preexec_fn=_die_with_parent,
        )
        self._tail = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, line: str) -> None:
        """One line to its stdin. Raises ChildFailed when it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self.failed(f"has ended: {error}") from None

    def lines(self, timeout_s: float) -> Iterator[str]:
        """Its lines until its output ends, all within `timeout_s`. Raises ChildFailed."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        fd = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while True:
                line, found, rest = self._tail.partition(b"\n")
                if found:
                    self._tail = rest
                    yield line.decode()
                    continue
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self.failed(f"did not end its work in {timeout_s:.0f} s")
                piece = os.read(fd, 1 << 16)
                if not piece:
                    return
                self._tail += piece

    def wait_for(self, start: str, timeout_s: float) -> str:
        """What follows `start` on the first line that begins so. Raises ChildFailed."""
        for line in self.lines(timeout_s):
            if line.startswith(start):
                return line[len(start) :].strip()
        raise self.failed("ended early")

    def failed(self, what: str) -> ChildFailed:
        """The error to raise, with the end of what it said on stderr."""
        self._stderr.seek(0)
        said = self._stderr.read()[-COMPLAINT_BYTES:].decode(errors="replace").strip()
        return ChildFailed(f"{self.name} {what}" + (f"; it said: {said}" if said else ""))

    def end(self) -> int:
        """Close its stdin, ask it to end, then make it; returns its exit status."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_WAIT_S / 5)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            try:
                self._process.wait(END_WAIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.stdout.close()
        return self._process.wait()

    def close(self) -> None:
        """`end`, and forget what it said."""
        self.end()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def free_port() -> int:
    """A port of loopback that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_port(child: Child, port: int, timeout_s: float = 20.0) -> None:
    """Until something listens on loopback. Raises ChildFailed."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise child.failed(f"does not listen on port {port}")


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
