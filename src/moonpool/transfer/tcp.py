"""The tcp transport: raw reads and writes over the native endpoint's connection, one frame for up
to FRAME_BLOCKS blocks. Works between any two hosts; both ends check bounds and checksums.
"""

import math
import select
import threading
import time
from collections.abc import Callable, Sequence
from os import EFD_CLOEXEC, close, eventfd, eventfd_write
from typing import Protocol

import numpy as np

from moonpool import _core
from moonpool.core.errors import MoonpoolError, PeerRestarted, TooManyOps, Unreachable
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
from moonpool.transfer.op import Op, expired, known
from moonpool.transfer.segment import RemoteSegment

FRAME_BLOCKS = 65_536

_INHERITING = threading.Lock()


class TcpOp(Op):
    """Mirrors native ops, one per frame; it settles when somebody looks or waits.

    `guard` is told of writes that end without an answer; with `heirs` it may find another op that
    goes on when the connection was lost under this one.
    """

    __slots__ = (
        *("_cancel_wanted", "_checksum", "_frames", "_guard", "_heir", "_heirs", "_inherited"),
        *("_pump", "connection"),
    )

    def __init__(
        self,
        transfer: Transfer,
        pump: "CompletionPump",
        connection: _core.Connection,
        guard: "TcpGuard",
        heirs: bool,
    ) -> None:
        super().__init__(transfer, "tcp")
        self.connection = connection
        self._frames: list[_core.Op] = []
        self._pump = pump
        self._guard = guard
        self._heirs = heirs
        self._checksum = transfer.checksum
        self._heir: Op | None = None
        self._inherited = False
        self._cancel_wanted = False

    @property
    def answered(self) -> bool:
        """The peer has answered for all of it: it does nothing more on behalf of this op."""
        return all(frame.terminal and frame.state == "DONE" for frame in self._frames)

    def posted(self, frames: list[_core.Op]) -> None:
        """From here on the native ops decide."""
        self._frames = frames
        self.post()

    def wait(self, timeout: float | None = None) -> bool:
        limit_s = self._wait_limit_s() if timeout is None else max(0.0, timeout)
        frames, until_s = self._frames, 0.0
        if len(frames) == 1 and not self._heirs:
            frames[0].wait(math.ceil(limit_s * 1000))
        else:
            until_s = time.monotonic() + limit_s
            for frame in frames:
                frame.wait(math.ceil(max(0.0, until_s - time.monotonic()) * 1000))
        # Another thread may be about to find the heir, so this one listens for the end.
        if self.done() or not self._inherited:
            return self.done()
        left_s = None if timeout is None else max(0.0, until_s - time.monotonic())
        return super().wait(left_s)

    def add_done_callback(self, callback: Callable[[Op], None]) -> None:
        super().add_done_callback(callback)
        if not self.done():
            self._pump.watch(self._frames, self.done)

    def _cancel_posted(self) -> None:
        # Either this thread sees the heir, or _inherit() sees the wish.
        self._cancel_wanted = True
        for frame in self._frames:
            frame.cancel()
        if self._heir is not None:
            self._heir.cancel()

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
        if self._heirs and isinstance(error, Unreachable):
            if self._inherit():
                return
        never_sent = isinstance(error, TooManyOps)
        if self.transfer.kind == "write" and not never_sent and not self.answered:
            self._guard.unanswered(self.connection)
        self.settle(state, status=status, crc=self._crc_column(), error=error)

    def _inherit(self) -> bool:
        """Hands all of it to another op; False when there is none. Done once: who looks meanwhile
        sees an op that is under way."""
        with _INHERITING:
            if self._inherited:
                return True
            self._inherited = True
        heir = self._guard.take_over(self)
        if heir is None:
            return False
        self._heir = heir
        heir.add_done_callback(self._mirror)
        if self._cancel_wanted:
            heir.cancel()
        return True

    def _mirror(self, heir: Op) -> None:
        result = heir.result
        crc = None if result.crc is None else known(result.crc)
        self.settle(result.state, status=result.status, crc=crc, error=result.error)

    def _crc_column(self) -> Callable[[], U32] | None:
        if not self._checksum:
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
        late = int(status[bad]) == BlockStatus.EXPIRED
        state = OpState.EXPIRED if late else OpState.FAILED
        return state, error_from_status(int(status[bad]), text)


class TcpGuard(Protocol):
    """Who knows the other connections to the same process: the peer's rails."""

    def unanswered(self, connection: _core.Connection) -> None:
        """A write over `connection` ended, and what was sent may still be applied at the peer."""

    def take_over(self, op: TcpOp) -> Op | None:
        """What goes on with an op whose connection was lost, if anything can."""


class TcpTransport:
    """Connections to each peer, multiplexed by the endpoint."""

    name = "tcp"

    def __init__(self, pump: "CompletionPump") -> None:
        self._pump = pump

    def submit(self, transfer: Transfer) -> Op:
        remote = transfer.remote
        assert isinstance(remote, RemoteSegment), remote
        peer = remote.peer
        connection = peer.data_connection
        if connection is None:
            op = Op(transfer, self.name)
            error = Unreachable(f"none of the rails to {peer.address} that may carry data is up")
            op.settle(OpState.FAILED, error=error)
            return op
        return peer.rails.send(transfer, connection)

    def close(self) -> None:
        self._pump.close()


def start_tcp(
    connection: _core.Connection,
    transfer: Transfer,
    pump: "CompletionPump",
    guard: TcpGuard,
    *,
    heirs: bool,
) -> TcpOp:
    """`transfer` over this connection."""
    op = TcpOp(transfer, pump, connection, guard, heirs)
    left_s = transfer.deadline_s - time.monotonic()
    remote = transfer.remote
    assert isinstance(remote, RemoteSegment), remote
    if left_s <= 0:
        op.settle(OpState.EXPIRED, error=expired(op))
    elif connection.peer_epoch != remote.epoch:
        error = PeerRestarted(f"another process than that of {remote!r} answers there now")
        op.settle(OpState.FAILED, error=error)
    elif not len(transfer.lengths):
        op.settle(OpState.DONE)
    else:
        try:
            op.posted(_frames(connection, remote, transfer, math.ceil(left_s * 1000)))
        except NATIVE_ERRORS as error:
            op.settle(OpState.FAILED, error=translated(error, f"{transfer.kind} over tcp"))
    return op


def _frames(
    connection: _core.Connection, remote: RemoteSegment, transfer: Transfer, deadline_ms: int
) -> list[_core.Op]:
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

    def __init__(self, endpoint: _core.Endpoint | _core.FileIo) -> None:
        self._endpoint = endpoint
        self._looks: dict[int, Callable[[], object]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop_fd = -1

    def watch(self, frames: Sequence[_core.Op | _core.FileJob], look: Callable[[], object]) -> None:
        """Calls `look` when one of `frames` has ended, for each of them."""
        with self._lock:
            self._looks.update((frame.id, look) for frame in frames)
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
                    look = self._looks.pop(number, None)
                if look is not None:
                    look()
