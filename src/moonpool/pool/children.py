"""Child processes that say one line when they are ready: start, wait for it, end."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that end us wait until the child just started is known, so that it ends with us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda n, _: came.append(n))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for late in came:
        signal.raise_signal(late)


def first_line(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """The first line the child prints, or what came until its end or the deadline."""
    assert process.stdout is not None
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                break
            piece = os.read(process.stdout.fileno(), 4096)
            if not piece:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=max(0.0, deadline - time.monotonic()))
                break
            line += piece
    return line


def reap(process: subprocess.Popen[bytes], deadline: float) -> None:
    """Wait until the child is gone; past the deadline it is killed."""
    try:
        process.wait(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
