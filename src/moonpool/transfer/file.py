"""The file transport: blocks between our memory and a file, over io_uring or a pool of threads.

What was asked of a disk cannot be taken back: a cancelled or late op ends when the pieces (of up to
1 MiB) that the kernel has are done with.
"""

import math
import time
from collections.abc import Callable

import numpy as np

from moonpool import _core
from moonpool.core.errors import BadConfig, Closed, MoonpoolError, TransferError
from moonpool.core.sections import TransferConfig
from moonpool.transfer.base import U32, BlockStatus, OpState, Transfer, error_from_status
from moonpool.transfer.file_segment import FileSegment
from moonpool.transfer.op import Op, cancelled, expired
from moonpool.transfer.tcp import CompletionPump


class FileOp(Op):
    """Mirrors a native file job; it settles when somebody looks or waits."""

    __slots__ = ("_job", "_pump")

    def __init__(self, transfer: Transfer, pump: CompletionPump) -> None:
        super().__init__(transfer, "file")
        self._job: _core.FileJob | None = None
        self._pump = pump

    def posted(self, job: _core.FileJob) -> bool:
        """From here on the native job decides; False when it has ended already."""
        self._job = job
        if job.terminal:
            self._poll()
            return False
        return self.post()

    def wait(self, timeout: float | None = None) -> bool:
        if not self.done() and self._job is not None:
            limit_s = self._wait_limit_s() if timeout is None else max(0.0, timeout)
            self._job.wait(math.ceil(limit_s * 1000))
        return self.done()

    def add_done_callback(self, callback: Callable[[Op], None]) -> None:
        super().add_done_callback(callback)
        if not self.done() and self._job is not None:
            self._pump.watch([self._job], self.done)

    def _cancel_posted(self) -> None:
        if self._job is not None:
            self._job.cancel()

    def _poll(self) -> None:
        job = self._job
        if job is None or not job.terminal:
            return
        state, crc = OpState(job.state), self._crc_of(job)
        if state is OpState.DONE:
            self.settle(state, crc=crc)
        else:
            self.settle(state, status=job.status, crc=crc, error=self._error_of(job, state))

    def _crc_of(self, job: _core.FileJob) -> Callable[[], U32] | None:
        return (lambda: job.crcs) if self.transfer.checksum else None

    def _error_of(self, job: _core.FileJob, state: OpState) -> MoonpoolError:
        if state is OpState.CANCELLED:
            return cancelled(self)
        if state is OpState.EXPIRED:
            return expired(self)
        status, remote = job.status, self.transfer.remote
        bad = int(np.argmax(status != BlockStatus.OK))
        count = int(np.count_nonzero(status))
        text = (
            f"{self.transfer.kind} of '{remote.name}' over file: {count} of {len(status)} blocks "
            f"failed, the first is block {bad}: {job.error}"
        )
        return error_from_status(int(status[bad]), text)


class FileTransport:
    """One ring, or one pool of threads, for all files of an engine. Raises BadConfig when the
    settings ask for an io_uring that the kernel does not give."""

    name = "file"

    def __init__(self, config: TransferConfig) -> None:
        self._inline_bytes = config.inline_bytes
        try:
            self._io = _core.FileIo(
                config.file_backend, config.file_depth, config.file_threads, config.queue_ops_max
            )
        except OSError as error:
            raise BadConfig(
                f"transfer.file_backend is io_uring, and this kernel has none for us ({error}); "
                f"take auto or threads"
            ) from None
        self._pump = CompletionPump(self._io)

    @property
    def backend(self) -> str:
        """io_uring or threads."""
        return self._io.backend

    def submit(self, transfer: Transfer) -> Op:
        op, remote = FileOp(transfer, self._pump), transfer.remote
        assert isinstance(remote, FileSegment), remote
        if transfer.deadline_s <= time.monotonic():
            op.settle(OpState.EXPIRED, error=expired(op))
            return op
        try:
            with remote.in_use() as descriptor:
                job = self._io.submit(
                    descriptor,
                    transfer.kind == "write",
                    transfer.local.buffer,
                    transfer.local_offsets,
                    transfer.remote_offsets,
                    transfer.lengths,
                    int(transfer.deadline_s * 1e9),
                    transfer.checksum,
                    not remote.direct and transfer.nbytes <= self._inline_bytes,
                )
                if op.posted(job):
                    remote.hold(op)
        except (IndexError, ValueError, BufferError) as error:
            op.settle(OpState.FAILED, error=TransferError(f"{transfer.kind} over file: {error}"))
        except Closed as error:
            op.settle(OpState.FAILED, error=error)
        return op

    def close(self) -> None:
        self._io.close()
        self._pump.close()
