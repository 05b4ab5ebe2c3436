"""The vram transport: blocks between our memory and a device's, by copies that the device's stream
makes. One thread submits and waits; what waits for it is bounded.

What was enqueued cannot be taken back: a cancelled or late op ends when the stream has passed it.
"""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import time
from typing import Any, Final

import numpy as np

from moonpool._core import crc32c
from moonpool.core.errors import Closed, MissingExtra, TooManyOps, TransferError
from moonpool.transfer.base import U8, U32, OpState, Transfer
from moonpool.transfer.op import Op, cancelled, expired, known
from moonpool.transfer.staging import Event, TorchCuda
from moonpool.transfer.vram_segment import VramSegment

_LOOK_S: Final = (0.00002, 0.0005)  # between looks at an event: the first, and the longest


class TorchVram(TorchCuda):
    """CUDA memory through torch; `device` may name another one of those, as "cuda:1"."""

    def __init__(self, device: str = "cuda", runtime: Any = None) -> None:
        """Raises MissingExtra where torch, or such a device, is not there."""
        super().__init__(runtime)
        self.name = device
        if runtime is None and not self._torch.cuda.is_available():
            raise MissingExtra(
                f"a segment on '{device}' needs a GPU and a torch that sees it; torch sees none"
            )

    def allocate(self, nbytes: int) -> Any:
        return self._torch.empty(nbytes, dtype=self._torch.uint8, device=self.name)

    def adopt(self, tensor: Any) -> Any:
        self.nbytes(tensor)  # says what is wrong with it
        return self._tensor(tensor).detach().reshape(-1).view(self._torch.uint8)

    def host(self, array: U8) -> Any:
        # By address: from_numpy warns of memory that is read-only, and we do not write to that.
        memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
        return self._torch.frombuffer(memory, dtype=self._torch.uint8)

    def current_stream(self, memory: Any) -> Any:
        return self._runtime.current_stream(memory.device)


class VramOp(Op):
    """Copies on `stream`, which is the submitter's: they come after all that it had to do."""

    __slots__ = ("_given_up", "_last", "_memory", "_segment", "_stream")

    def __init__(self, transfer: Transfer, segment: VramSegment) -> None:
        super().__init__(transfer, "vram")
        self._segment = segment
        self._memory: Any = segment.memory  # stays while the op does
        self._stream = segment.device.current_stream(self._memory)
        self._given_up = False
        self._last: Event | None = None  # after what was enqueued so far

    def run(self) -> None:
        """On the transport's thread, from here to the end."""
        if self.transfer.deadline_s <= time.monotonic():
            self.settle(OpState.EXPIRED, error=expired(self))
            return
        if not self.post():
            return
        failure = ""
        try:
            self._enqueue()
        except Exception as error:  # whatever the device's library raises
            failure = f"{self.transfer.kind} over vram: {error}"
        try:
            late = self._await()
        except Exception as error:
            failure = failure or f"{self.transfer.kind} over vram: {error}"
        self._memory = self._last = None
        if failure:
            self.settle(OpState.FAILED, error=TransferError(failure))
        elif self._given_up:
            self.settle(OpState.CANCELLED, error=cancelled(self))
        elif late:
            self.settle(OpState.EXPIRED, error=expired(self))
        else:
            self.settle(OpState.DONE, crc=known(self._crcs()) if self.transfer.checksum else None)

    def _enqueue(self) -> None:
        device, transfer = self._segment.device, self.transfer
        if transfer.nbytes == 0:
            return
        host = device.host(transfer.local.array)
        for near, far, length in zip(
            transfer.local_offsets.tolist(),
            transfer.remote_offsets.tolist(),
            transfer.lengths.tolist(),
            strict=True,
        ):
            if length == 0:
                continue
            block = self._memory[far : far + length]
            if transfer.kind == "write":
                self._last = device.to_device(host, near, block, self._stream)
            else:
                self._last = device.to_host(block, host, near, self._stream)

    def _await(self) -> bool:
        """Until the stream has passed all of it, however late: then both ends are quiet. Whether
        that was after the deadline."""
        pause, longest = _LOOK_S
        while self._last is not None and not self._last.query():
            time.sleep(pause)
            pause = min(pause * 2, longest)
        return time.monotonic() > self.transfer.deadline_s

    def _crcs(self) -> U32:
        """Of the bytes here: what a read brought, what a write sent."""
        transfer = self.transfer
        found = [
            crc32c(transfer.local.array[start : start + length])
            for start, length in zip(
                transfer.local_offsets.tolist(), transfer.lengths.tolist(), strict=True
            )
        ]
        return np.array(found, np.uint32)

    def _cancel_posted(self) -> None:
        self._given_up = True


class VramTransport:
    """One thread for all device segments of an engine."""

    name = "vram"

    def __init__(self, queue_ops_max: int) -> None:
        self._queue: queue.Queue[VramOp | None] = queue.Queue(queue_ops_max)
        self._lock = threading.Lock()
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="moonpool-vram", daemon=True)
        self._worker.start()

    def submit(self, transfer: Transfer) -> Op:
        segment = transfer.remote
        assert isinstance(segment, VramSegment), segment
        op = VramOp(transfer, segment)
        segment.hold(op)
        with self._lock:
            if self._closed:
                op.settle(OpState.FAILED, error=Closed("the engine is closed"))
                return op
            try:
                self._queue.put_nowait(op)
            except queue.Full:
                full = self._queue.maxsize
                text = f"{full} copies wait already: queue_ops_max is {full}; wait for some"
                op.settle(OpState.FAILED, error=TooManyOps(text))
        return op

    def close(self) -> None:
        """Ends what waits; quiet when it returns."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(queue.Empty):
                while (waiting := self._queue.get_nowait()) is not None:
                    waiting.settle(OpState.FAILED, error=Closed("the engine was closed"))
        self._queue.put(None)
        self._worker.join()

    def _work(self) -> None:
        while (op := self._queue.get()) is not None:
            op.run()
            op = None
