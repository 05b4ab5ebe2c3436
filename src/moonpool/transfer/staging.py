"""Tensors on a device, through pinned host memory.

What a stream still has to do to a tensor comes before the copy, and the copy before the transfer:
both are ordered here, by the event that `to_host` gives back, so no caller can forget it.
"""

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from moonpool.core.errors import BadInput, DeadlineExceeded, MissingExtra
from moonpool.transfer.base import U64
from moonpool.transfer.layout import resolve
from moonpool.transfer.op import Op
from moonpool.transfer.request import Target, checked_deadline

if TYPE_CHECKING:
    from moonpool.transfer.engine import Engine

_LOOK_S = 0.0002


class Event(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """True once the stream has passed it."""
        ...


class Device(Protocol):
    """What staging needs of a device. `stream` None: the current one of the tensor's device."""

    def pinned(self, nbytes: int) -> Any:
        """Host memory with the buffer protocol, or a tensor, that the device can copy to."""
        ...

    def nbytes(self, tensor: Any) -> int: ...

    def to_host(self, tensor: Any, host: Any, offset: int, stream: Any) -> Event:
        """Enqueues a copy of the tensor's bytes to `host` behind all that `stream` has to do."""
        ...

    def to_device(self, host: Any, offset: int, tensor: Any, stream: Any) -> Event:
        """Enqueues the copy back; what is enqueued on `stream` afterwards sees it."""
        ...


class TorchCuda:
    """CUDA through torch, which whoever has such a tensor has loaded; tensors of others come in by
    DLPack. `runtime` is a module with the streams and events of torch.cuda: torch.xpu, say."""

    def __init__(self, runtime: Any = None) -> None:
        self._torch: Any = sys.modules.get("torch")
        if self._torch is None:
            raise MissingExtra("staging of CUDA tensors is by torch: import torch first")
        self._runtime = self._torch.cuda if runtime is None else runtime

    def pinned(self, nbytes: int) -> Any:
        return self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True)

    def nbytes(self, tensor: Any) -> int:
        tensor = self._tensor(tensor)
        if not tensor.is_contiguous():
            raise BadInput(f"tensor of shape {tuple(tensor.shape)} is not contiguous")
        return int(tensor.nbytes)

    def to_host(self, tensor: Any, host: Any, offset: int, stream: Any) -> Event:
        return self._copy(tensor, stream, lambda raw, part: part.copy_(raw, True), host, offset)

    def to_device(self, host: Any, offset: int, tensor: Any, stream: Any) -> Event:
        return self._copy(tensor, stream, lambda raw, part: raw.copy_(part, True), host, offset)

    def _copy(self, tensor: Any, stream: Any, copy: Any, host: Any, offset: int) -> Event:
        runtime, tensor = self._runtime, self._tensor(tensor)
        stream = runtime.current_stream(tensor.device) if stream is None else stream
        raw = tensor.detach().reshape(-1).view(self._torch.uint8)
        with runtime.stream(stream):
            copy(raw, host[offset : offset + raw.numel()])
            event: Event = runtime.Event()
            event.record(stream)  # type: ignore[attr-defined]
        return event

    def _tensor(self, tensor: Any) -> Any:
        if isinstance(tensor, self._torch.Tensor):
            return tensor
        if not hasattr(tensor, "__dlpack__"):
            raise BadInput(f"a {type(tensor).__name__} is no tensor: neither torch's nor DLPack's")
        return self._torch.from_dlpack(tensor)


class Staging:
    """`nbytes` of pinned memory, for one transfer after the other. Thread-safe; a context manager.

    write() and read() return when the op has ended and, for a read, when the tensor has its bytes
    in stream order; until then the tensor must not be freed. After DeadlineExceeded the tensor must
    stay until the stream has got there.
    """

    def __init__(self, engine: "Engine", nbytes: int, device: Device | None = None) -> None:
        self._pending: Event | None = None
        self._engine = engine
        self._device = device if device is not None else TorchCuda()
        self._host = self._device.pinned(nbytes)
        self.segment = engine.register(self._host)
        self._lock = threading.Lock()

    def write(
        self, tensor: Any, dst: Target, dst_ids: Any, *, stream: Any = None, deadline: float = 5.0
    ) -> Op:
        """The tensor's bytes, as they are when `stream` gets there, to blocks of `dst`, in order.

        Raises BadInput for a tensor larger than the staging memory or not of the blocks' size,
        DeadlineExceeded when the stream does not get there in time: nothing was sent then, and the
        next call waits for it.
        """
        with self._lock:
            until_s = time.monotonic() + checked_deadline(deadline)
            self._settle(until_s)
            here = self._places(dst, dst_ids, self._checked(tensor))
            self._await(self._device.to_host(tensor, self._host, 0, stream), until_s)
            left_s = max(0.0, until_s - time.monotonic())
            op = self._engine.write(self.segment, here, dst, dst_ids, deadline=left_s)
            op.wait()
            return op

    def read(
        self, tensor: Any, src: Target, src_ids: Any, *, stream: Any = None, deadline: float = 5.0
    ) -> Op:
        """Blocks of `src`, in order, into the tensor; untouched unless the op is DONE."""
        with self._lock:
            until_s = time.monotonic() + checked_deadline(deadline)
            self._settle(until_s)
            here = self._places(src, src_ids, self._checked(tensor))
            op = self._engine.read(self.segment, here, src, src_ids, deadline=deadline)
            op.wait()
            if op.result.ok:
                self._await(self._device.to_device(self._host, 0, tensor, stream), until_s)
            return op

    def close(self) -> None:
        """Ends what runs and gives the memory back."""
        self.segment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _checked(self, tensor: Any) -> int:
        nbytes = self._device.nbytes(tensor)
        if nbytes > self.segment.nbytes:
            raise BadInput(
                f"a tensor of {nbytes} bytes does not fit into {self.segment.nbytes} of staging"
            )
        return nbytes

    def _places(self, target: Target, which: Any, nbytes: int) -> tuple[U64, U64]:
        """Where in the staging memory each block of `target` lies: one behind the other."""
        blocks = resolve(target, which)
        if blocks.nbytes != nbytes:
            raise BadInput(f"the tensor has {nbytes} bytes and the blocks {blocks.nbytes}")
        ends = np.cumsum(blocks.lengths, dtype=np.uint64)
        return ends - blocks.lengths, blocks.lengths

    def _settle(self, until_s: float) -> None:
        """A copy that was given up may still be on its way to or from the staging memory."""
        if self._pending is not None:
            self._await(self._pending, until_s)

    def _await(self, event: Event, until_s: float) -> None:
        # Looking again and again, since no event of a device takes a deadline.
        self._pending = event
        while not event.query():
            if time.monotonic() >= until_s:
                raise DeadlineExceeded("the device's stream did not get there in time")
            time.sleep(_LOOK_S)
        self._pending = None
