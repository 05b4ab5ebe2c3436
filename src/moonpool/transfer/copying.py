"""Copies between memory this process can address, as ops: small ones on the calling thread, large
ones on one worker thread, so that submitting never blocks for long. The GIL is released throughout.
"""

import itertools
import math
import queue
import threading
from typing import Any

from moonpool import _core
from moonpool.core.errors import Closed, TooManyOps, TransferError
from moonpool.transfer.base import BlockStatus, OpState, Transfer
from moonpool.transfer.op import Op, cancelled, expired
from moonpool.transfer.segment import Segment

_OUTCOMES = {
    BlockStatus.OK: OpState.DONE,
    BlockStatus.CANCELLED: OpState.CANCELLED,
    BlockStatus.EXPIRED: OpState.EXPIRED,
}
_REASONS = {OpState.CANCELLED: cancelled, OpState.EXPIRED: expired}


class RunOp(Op):
    """An op that one thread carries out, from its beginning to its end."""

    __slots__ = ()

    def run(self) -> None:
        """Does all of it on this thread, unless the op is over already."""
        raise NotImplementedError

    def drop(self, error: TransferError) -> None:
        """Fails an op that never ran."""
        self.settle(OpState.FAILED, error=error)


class CopyOp(RunOp):
    """An op that one native block copy carries out."""

    __slots__ = ("_job",)

    def __init__(self, transfer: Transfer, transport: str, remote_memory: Any) -> None:
        super().__init__(transfer, transport)
        dst, src = transfer.local.buffer, remote_memory
        dst_offsets, src_offsets = transfer.local_offsets, transfer.remote_offsets
        if transfer.kind == "write":
            dst, src, dst_offsets, src_offsets = src, dst, src_offsets, dst_offsets
        self._job: _core.BlockCopy | None = _core.BlockCopy(
            dst, dst_offsets, src, src_offsets, transfer.lengths, transfer.checksum
        )

    def run(self) -> None:
        job = self._job
        if job is None or not self.post():
            return
        try:
            self._before_read()
            outcome = job.run(int(self.transfer.deadline_s * 1e9))
            self._after_write()
        except Exception as error:
            # A flush hook is anybody's code, and an op that nobody ends would be waited for.
            self._job = job = None
            text = f"{self.transfer.kind} over {self.transport}: its flush hook failed: {error}"
            self.settle(OpState.FAILED, error=TransferError(text))
            return
        self._job = None
        # The job has let the buffers go, so nobody hears of the end before memory can be unmapped.
        crc = job.crc if self.transfer.checksum else None
        if outcome == BlockStatus.OK:
            self.settle(OpState.DONE, crc=crc)
            return
        state = _OUTCOMES[BlockStatus(outcome)]
        self.settle(state, status=job.status(), crc=crc, error=_REASONS[state](self))

    def _before_read(self) -> None:
        transfer = self.transfer
        source: object = transfer.local
        offsets = transfer.local_offsets
        if transfer.kind == "read":
            source, offsets = transfer.remote, transfer.remote_offsets
        if isinstance(source, Segment) and source.flush is not None:
            source.flush.before_read(source.array, offsets, transfer.lengths)

    def _after_write(self) -> None:
        transfer = self.transfer
        target, offsets = transfer.remote, transfer.remote_offsets
        if transfer.kind == "read":
            target, offsets = transfer.local, transfer.local_offsets
        if isinstance(target, Segment) and target.flush is not None:
            target.flush.after_write(target.array, offsets, transfer.lengths)

    def drop(self, error: TransferError) -> None:
        self._job = None
        super().drop(error)

    def _cancel_posted(self) -> None:
        if (job := self._job) is not None:
            job.cancel()


class CopyRunner:
    """Decides where a copy runs. `inline_bytes`: up to there on the calling thread;
    `queue_ops_max`: how many may wait for the worker, whose thread has the `name`."""

    def __init__(
        self,
        inline_bytes: int = 2 << 20,
        queue_ops_max: int = 1024,
        name: str = "moonpool-copies",
    ) -> None:
        self.inline_bytes = inline_bytes
        self._name = name
        # -priority, deadline, age: the most urgent first. None ends the worker.
        self._queue: queue.PriorityQueue[tuple[float, float, int, RunOp | None]]
        self._queue = queue.PriorityQueue(queue_ops_max)
        self._ages = itertools.count()
        self._worker: threading.Thread | None = None
        self._running: RunOp | None = None
        self._lock = threading.Lock()
        self._closed = False

    def start(self, op: RunOp) -> None:
        """Runs `op` or hands it to the worker; a full queue fails it as busy."""
        if op.transfer.nbytes <= self.inline_bytes:
            op.run()
            return
        with self._lock:
            if self._closed:
                op.drop(Closed("the engine is closed"))
                return
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._worker.start()
            try:
                transfer = op.transfer
                urgency = (-transfer.priority, transfer.deadline_s, next(self._ages))
                self._queue.put_nowait((*urgency, op))
            except queue.Full:
                full = self._queue.maxsize
                op.drop(
                    TooManyOps(
                        f"{full} copies wait already: queue_ops_max is {full}; wait for some"
                    )
                )

    def close(self) -> None:
        """Cancels what runs and what waits; quiet when it returns."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            worker = self._worker
            while not self._queue.empty():
                if (waiting := self._queue.get_nowait()[-1]) is not None:
                    waiting.drop(Closed("the engine was closed"))
        if worker is not None:
            if (running := self._running) is not None:
                running.cancel()
            self._queue.put((math.inf, math.inf, next(self._ages), None))
            worker.join()

    def _work(self) -> None:
        while (op := self._queue.get()[-1]) is not None:
            self._running = op
            op.run()
            self._running = op = None
