"""The tcp transport: raw reads and writes over the native endpoint's connection, one frame for up
to FRAME_BLOCKS blocks. Works between any two hosts; both ends check bounds and checksums.
"""

import math
import select
import threading
import time
from collections.abc import Callable
from os import EFD_CLOEXEC, close, eventfd, eventfd_write

import numpy as np

from moonpool import _core
from moonpool.core.errors import MoonpoolError
from moonpool.transfer.base import (
    U8,
    U32,
    BlockStatus,
    OpState,
    Transfer,
    error_from_status,
    status_name,
)
from moonpool.transfer.native_errors import NATIVE_ERRORS, translated
from moonpool.transfer.op import Op, expired
from moonpool.transfer.segment import RemoteSegment

FRAME_BLOCKS = 65_536


class TcpOp(Op):
    """Mirrors native ops, one per frame; it settles when somebody looks or waits."""

    __slots__ = ("_frames", "_pump")

    def __init__(self, transfer: Transfer, pump: "CompletionPump") -> None:
        super().__init__(transfer, "tcp")
        self._frames: list[_core.Op] = []
        self._pump = pump

    def posted(self, frames: list[_core.Op]) -> None:
        """From here on the native ops decide."""
        self._frames = frames
        self.post()

    def wait(self, timeout: float | None = None) -> bool:
        limit_s = self._wait_limit_s() if timeout is None else max(0.0, timeout)
        frames = self._frames
        if len(frames) == 1:
            frames[0].wait(math.ceil(limit_s * 1000))
        else:
            until_s = time.monotonic() + limit_s
            for frame in frames:
                frame.wait(math.ceil(max(0.0, until_s - time.monotonic()) * 1000))
        return self.done()

    def add_done_callback(self, callback: Callable[[Op], None]) -> None:
        super().add_done_callback(callback)
        if not self.done():
            self._pump.watch(self, self._frames)

    def _cancel_posted(self) -> None:
        for frame in self._frames:
            frame.cancel()

    def _poll(self) -> None:
        frames = self._frames
        if len(frames) == 1:
            frame = frames[0]
            if not frame.terminal:
                return
            if frame.ok:
                self.settle(OpState.DONE, crc=self._crc_column())
                return
        elif not frames or not all(frame.terminal for frame in frames):
            return
        status = np.concatenate([frame.status for frame in frames])
        state, error = self._verdict(frames, status)
        self.settle(state, status=status, crc=self._crc_column(), error=error)

    def _crc_column(self) -> Callable[[], U32] | None:
        if not self.transfer.checksum:
            return None
        frames = self._frames  # not self: an op that refers to itself would wait for the collector
        if len(frames) == 1:
            frame = frames[0]
            return lambda: frame.crcs
        return lambda: np.concatenate([frame.crcs for frame in frames])

    def _verdict(self, frames: list[_core.Op], status: U8) -> tuple[OpState, MoonpoolError | None]:
        for frame in frames:
            if (state := OpState(frame.state)) is not OpState.DONE:
                first = int(frame.status[0]) if len(frame.status) else BlockStatus.INTERNAL
                return state, error_from_status(first, frame.error)
        if not status.any():
            return OpState.DONE, None
        bad = int(np.argmax(status != BlockStatus.OK))
        count = int(np.count_nonzero(status))
        remote = self.transfer.remote
        text = (
            f"{self.transfer.kind} of segment '{remote.name}' over tcp: {count} of {len(status)} "
            f"blocks failed, the first is block {bad} with {status_name(int(status[bad]))}"
        )
        return OpState.FAILED, error_from_status(int(status[bad]), text)


class TcpTransport:
    """One connection per peer, multiplexed by the endpoint."""

    name = "tcp"

    def __init__(self, pump: "CompletionPump") -> None:
        self._pump = pump

    def submit(self, transfer: Transfer) -> Op:
        op = TcpOp(transfer, self._pump)
        left_s = transfer.deadline_s - time.monotonic()
        if left_s <= 0:
            op.settle(OpState.EXPIRED, error=expired(op))
        elif not len(transfer.lengths):
            op.settle(OpState.DONE)
        else:
            try:
                op.posted(_frames(transfer, math.ceil(left_s * 1000)))
            except NATIVE_ERRORS as error:
                op.settle(OpState.FAILED, error=translated(error, f"{transfer.kind} over tcp"))
        return op

    def close(self) -> None:
        self._pump.close()


def _frames(transfer: Transfer, deadline_ms: int) -> list[_core.Op]:
    remote = transfer.remote
    assert isinstance(remote, RemoteSegment), remote
    connection = remote.peer.connection
    submit = connection.read_raw if transfer.kind == "read" else connection.write_raw
    buffer, checksum = transfer.local.buffer, transfer.checksum
    far, near, lengths = transfer.remote_offsets, transfer.local_offsets, transfer.lengths
    if len(lengths) <= FRAME_BLOCKS:
        return [submit(remote.region, far, lengths, buffer, near, deadline_ms, checksum)]
    return [
        submit(remote.region, far[part], lengths[part], buffer, near[part], deadline_ms, checksum)
        for start in range(0, len(lengths), FRAME_BLOCKS)
        for part in [slice(start, start + FRAME_BLOCKS)]
    ]


class CompletionPump:
    """Settles ops that somebody awaits. One thread, asleep on the endpoint's completion descriptor;
    it starts with the first such op, so callers that only wait() never pay for it."""

    def __init__(self, endpoint: _core.Endpoint) -> None:
        self._endpoint = endpoint
        self._ops: dict[int, TcpOp] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop_fd = -1

    def watch(self, op: TcpOp, frames: list[_core.Op]) -> None:
        with self._lock:
            self._ops.update((frame.id, op) for frame in frames)
            if self._thread is None:
                self._stop_fd = eventfd(0, EFD_CLOEXEC)
                self._thread = threading.Thread(
                    target=self._run, name="moonpool-completions", daemon=True
                )
                self._thread.start()
        for frame in frames:
            frame.notify()

    def close(self) -> None:
        """After the endpoint has ended all ops: tells those that still listen, ends the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            eventfd_write(self._stop_fd, 1)
            thread.join()
            close(self._stop_fd)

    def _run(self) -> None:
        ready = select.poll()
        ready.register(self._endpoint.completion_fd, select.POLLIN)
        ready.register(self._stop_fd, select.POLLIN)
        stopping = False
        while not stopping:
            stopping = any(fd == self._stop_fd for fd, _ in ready.poll())
            for number in self._endpoint.completed():
                with self._lock:
                    op = self._ops.pop(number, None)
                if op is not None:
                    op.done()
