"""Tensors: those of the CPU without a copy, those of a device in the order of its stream."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from moonpool.core.errors import BadInput, DeadlineExceeded
from moonpool.transfer import Engine, Staging
from moonpool.transfer.base import U8
from moonpool.transfer.staging import TorchCuda
from tests.transfer.conftest import stamped

NBYTES = 1 << 14


def test_torch_memory_is_used_in_place() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.int64):
        tensor = torch.zeros(4, 16, dtype=dtype)
        with Engine() as engine:
            mine = engine.register(tensor)
            assert mine.nbytes == tensor.nbytes
            op = engine.read(mine, None, engine.register(stamped(mine.nbytes)), None)
            assert op.wait() and op.check().ok
        seen = tensor.view(torch.uint8).reshape(-1).numpy()
        assert np.array_equal(seen, stamped(tensor.nbytes))


def test_torch_memory_that_cannot_be_used() -> None:
    torch = pytest.importorskip("torch")
    with Engine() as engine:
        with pytest.raises(BadInput, match="not contiguous"):
            engine.register(torch.zeros(4, 4).t())
        with pytest.raises(BadInput, match="Staging"):
            engine.register(torch.zeros(4, device="meta"))
        needs_grad = engine.register(torch.zeros(4, requires_grad=True))
        assert needs_grad.nbytes == 16
        assert engine.register(torch.zeros(0)).nbytes == 0


def test_dlpack_without_torch() -> None:
    class Foreign:
        """Somebody else's tensor over numpy memory."""

        def __init__(self, memory: Any) -> None:
            self.memory = memory

        def __dlpack__(self, **how: Any) -> Any:
            return self.memory.__dlpack__(**how)

        def __dlpack_device__(self) -> Any:
            return self.memory.__dlpack_device__()

    memory = np.zeros(NBYTES, np.uint8)
    with Engine() as engine:
        engine.register(Foreign(memory)).array[5] = 7
        assert memory[5] == 7
        with pytest.raises(BadInput, match="not contiguous"):
            engine.register(Foreign(np.zeros((4, 4), np.float32).T))


def test_transfer_imports_no_torch() -> None:
    code = "import sys, moonpool.transfer; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class Moment:
    def __init__(self) -> None:
        self.passed = threading.Event()

    def query(self) -> bool:
        return self.passed.is_set()


class SlowStream:
    """Does what it is given in order, late, on a thread of its own, as a device's stream does."""

    def __init__(self) -> None:
        self.work: list[Callable[[], object]] = []
        self.gate = threading.Event()
        self._ready = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, work: Callable[[], object]) -> None:
        with self._ready:
            self.work.append(work)
            self._ready.notify()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self.work:
                    self._ready.wait()
                work = self.work.pop(0)
            self.gate.wait()
            work()


class SlowDevice:
    """A device whose memory is numpy and whose streams are slow."""

    def pinned(self, nbytes: int) -> U8:
        return np.zeros(nbytes, np.uint8)

    def nbytes(self, tensor: U8) -> int:
        return tensor.nbytes

    def to_host(self, tensor: U8, host: U8, offset: int, stream: SlowStream) -> Moment:
        return self._copy(host[offset : offset + tensor.nbytes], tensor, stream)

    def to_device(self, host: U8, offset: int, tensor: U8, stream: SlowStream) -> Moment:
        return self._copy(tensor, host[offset : offset + tensor.nbytes], stream)

    @staticmethod
    def _copy(to: U8, source: U8, stream: SlowStream) -> Moment:
        moment = Moment()
        stream.add(lambda: np.copyto(to, source))
        stream.add(moment.passed.set)
        return moment


def test_the_last_write_of_the_stream_is_what_is_sent() -> None:
    stream, tensor = SlowStream(), np.zeros(NBYTES, np.uint8)
    with Engine() as engine, Staging(engine, NBYTES, SlowDevice()) as staging:
        pages = engine.allocate(NBYTES).blocks(1 << 12)
        # The kernel that fills the tensor is enqueued, and has not run when write() is called.
        stream.add(lambda: time.sleep(0.05))
        stream.add(lambda: np.copyto(tensor, stamped(NBYTES)))
        stream.gate.set()
        op = staging.write(tensor, pages, [3, 2, 1, 0], stream=stream)
        assert op.check().ok
        want = stamped(NBYTES).reshape(4, -1)[::-1].reshape(-1)
        assert np.array_equal(pages.segment.array, want)  # type: ignore[union-attr]
        tensor[:] = 0
        assert staging.read(tensor, pages, [3, 2, 1, 0], stream=stream).check().ok
        assert np.array_equal(tensor, stamped(NBYTES))


def test_a_stream_that_stands_still() -> None:
    stream, tensor = SlowStream(), stamped(NBYTES)
    with Engine() as engine, Staging(engine, NBYTES, SlowDevice()) as staging:
        far = engine.allocate(NBYTES)
        with pytest.raises(DeadlineExceeded):
            staging.write(tensor, far, None, stream=stream, deadline=0.02)
        assert not far.array.any()
        # The copy that was given up would land on what the next one brings: it is waited for first.
        far.array[:] = 5
        with pytest.raises(DeadlineExceeded):
            staging.read(np.zeros(NBYTES, np.uint8), far, None, stream=stream, deadline=0.02)
        assert not staging.segment.array.any()
        stream.gate.set()
        assert staging.write(tensor, far, None, stream=stream).check().ok
        assert np.array_equal(far.array, tensor)


def test_what_does_not_fit() -> None:
    stream = SlowStream()
    with Engine() as engine, Staging(engine, 100, SlowDevice()) as staging:
        far = engine.allocate(NBYTES)
        with pytest.raises(BadInput, match="does not fit"):
            staging.write(np.zeros(101, np.uint8), far, (0, 101), stream=stream)
        with pytest.raises(BadInput, match="has 50 bytes and the blocks 60"):
            staging.write(np.zeros(50, np.uint8), far, (0, 60), stream=stream)


def test_torch_streams_and_events() -> None:
    """The code that drives CUDA, over streams that are late: torch's tensors, whose copies a
    stream does when its gate is open, and its events."""
    torch: Any = pytest.importorskip("torch")
    standing, current = SlowStream(), SlowStream()

    class Late(torch.Tensor):  # type: ignore[misc]
        """What is copied from or to it is enqueued."""

        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function is not torch.Tensor.copy_:
                return super().__torch_function__(function, types, args, kwargs or {})
            to, source = (one.as_subclass(torch.Tensor) for one in args[:2])
            runtime.inside.add(lambda: to.copy_(source))
            return args[0]

    class Streams:
        """The part of torch.cuda that staging uses."""

        inside = current

        class Event(Moment):
            def record(self, stream: SlowStream) -> None:
                stream.add(self.passed.set)

        @contextlib.contextmanager
        def stream(self, stream: SlowStream) -> Iterator[None]:
            before, self.inside = self.inside, stream
            try:
                yield
            finally:
                self.inside = before

        def current_stream(self, device: Any) -> SlowStream:
            return current

    class Device(TorchCuda):
        def pinned(self, nbytes: int) -> Any:
            return torch.zeros(nbytes, dtype=torch.uint8)

    runtime = Streams()
    want = stamped(NBYTES)
    plain = torch.zeros(NBYTES // 2, dtype=torch.bfloat16)
    tensor = plain.as_subclass(Late)
    with Engine() as engine, Staging(engine, NBYTES, Device(runtime)) as staging:
        far = engine.allocate(NBYTES)
        fill = torch.from_numpy(want.copy()).view(torch.bfloat16)
        current.add(lambda: plain.copy_(fill))
        threading.Timer(0.05, current.gate.set).start()
        assert staging.write(tensor, far, None).check().ok
        assert np.array_equal(far.array, want)
        far.array[:] = want[::-1]
        # Into the tensor by another stream, which stands still: not a byte of it.
        with pytest.raises(DeadlineExceeded):
            staging.read(tensor, far, None, stream=standing, deadline=0.02)
        assert np.array_equal(plain.view(torch.uint8).numpy(), want)
        standing.gate.set()
        assert staging.read(tensor, far, None, stream=standing).check().ok
        assert np.array_equal(plain.view(torch.uint8).numpy(), want[::-1])
        # A copy of it would be filled, and thrown away.
        square = torch.zeros(64, 128, dtype=torch.uint8).as_subclass(Late)
        with pytest.raises(BadInput, match="not contiguous"):
            staging.read(square.t(), far, (0, 8192))
        with pytest.raises(BadInput, match="no tensor"):
            staging.write([1, 2], far, (0, 2))
        # By DLPack, from somebody else's memory.
        assert staging.write(stamped(64, 5), far, (0, 64)).check().ok
        assert np.array_equal(far.array[:64], stamped(64, 5))


def test_cuda() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    tensor = torch.arange(NBYTES // 4, dtype=torch.int32, device="cuda")
    with Engine() as engine, Staging(engine, NBYTES, TorchCuda()) as staging:
        far = engine.allocate(NBYTES)
        assert staging.write(tensor, far, None).check().ok
        assert np.array_equal(far.array.view(np.int32), np.arange(NBYTES // 4))
        back = torch.zeros_like(tensor)
        assert staging.read(back, far, None).check().ok
        assert torch.equal(back, tensor)
