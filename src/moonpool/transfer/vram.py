"""The vram transport: blocks between our memory and a device's, by copies that the device's stream
makes. One thread enqueues and waits; what waits for it is bounded.

What was enqueued cannot be taken back: a cancelled or late op ends when the stream has passed it.
"""

from __future__ import annotations

import time
from typing import Any, Final

from moonpool.core.errors import Closed, MissingExtra, SegmentSpace, TransferError
from moonpool.transfer.base import U8, OpState, Transfer
from moonpool.transfer.copying import CopyRunner, RunOp
from moonpool.transfer.op import Op, cancelled, expired, known, local_crcs
from moonpool.transfer.staging import Event, TorchCuda
from moonpool.transfer.tensors import host_tensor
from moonpool.transfer.vram_segment import VramDevice, VramSegment

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
        try:
            return self._torch.empty(nbytes, dtype=self._torch.uint8, device=self.name)
        except RuntimeError as error:
            raise SegmentSpace(f"'{self.name}' gives no {nbytes} bytes: {error}") from None

    def adopt(self, tensor: Any) -> Any:
        self.nbytes(tensor)  # says what is wrong with it
        return self._tensor(tensor).detach().reshape(-1).view(self._torch.uint8)

    def host(self, array: U8) -> Any:
        return host_tensor(self._torch, array)

    def current_stream(self, memory: Any) -> Any:
        return self._runtime.current_stream(memory.device)


class VramOp(RunOp):
    """Copies on the stream that is the submitter's: they come after all that it had to do."""

    __slots__ = ("_device", "_given_up", "_last", "_memory", "_stream")

    def __init__(self, transfer: Transfer, device: VramDevice, memory: Any) -> None:
        super().__init__(transfer, "vram")
        self._device = device
        self._memory = memory  # stays while the op does
        self._stream = device.current_stream(memory)
        self._given_up = False
        self._last: Event | None = None  # after what was enqueued so far

    def run(self) -> None:
        self._poll()
        if not self.post():
            self._memory = None
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
            sums = known(local_crcs(self.transfer)) if self.transfer.checksum else None
            self.settle(OpState.DONE, crc=sums)

    def _enqueue(self) -> None:
        device, transfer = self._device, self.transfer
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

    def _poll(self) -> None:
        """What waits for its turn need not wait for that to be late."""
        if self.transfer.deadline_s <= time.monotonic():
            self.settle(OpState.EXPIRED, error=expired(self), only_from=OpState.QUEUED)

    def _cancel_posted(self) -> None:
        self._given_up = True


class VramTransport:
    """One thread for all device segments of an engine."""

    name = "vram"

    def __init__(self, queue_ops_max: int) -> None:
        # Only what has no bytes to copy ends on the calling thread.
        self._runner = CopyRunner(0, queue_ops_max, "moonpool-vram")

    def submit(self, transfer: Transfer) -> Op:
        segment = transfer.remote
        assert isinstance(segment, VramSegment), segment
        memory = segment.memory
        if memory is None:
            closed = Op(transfer, self.name)
            text = f"{segment!r} was closed a moment ago"
            closed.settle(OpState.FAILED, error=Closed(text))
            return closed
        op = VramOp(transfer, segment.device, memory)
        segment.hold(op)
        self._runner.start(op)
        return op

    def close(self) -> None:
        """Ends what waits; quiet when it returns."""
        self._runner.close()
