"""A device's memory as a segment: the code that drives CUDA, over torch's CPU tensors and streams
that are late, and over CUDA itself where there is one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from moonpool.core.errors import BadInput, Closed, DeadlineExceeded, MissingExtra, SegmentSpace
from moonpool.transfer import CostClass, Engine, OpState, VramSegment
from moonpool.transfer.vram import TorchVram
from tests.transfer.conftest import stamped, state_of, transfer
from tests.transfer.owner import wait_until

torch: Any = pytest.importorskip("torch")
NBYTES = 1 << 14
BLOCK = 1 << 10
LONG_S = 60.0


class Stream:
    """What is on it has passed when its gate is open."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.gate = threading.Event()
        self.gate.set()
        self.recorded = 0


class Runtime:
    """The part of torch.cuda that is used, for memory of the CPU."""

    def __init__(self) -> None:
        self.current = Stream(0)
        self.inside: list[Stream] = []

    def current_stream(self, device: Any) -> Stream:
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.inside.append(stream)
        try:
            yield
        finally:
            self.inside.pop()

    def Event(self) -> Passed:
        return Passed(self)


class Passed:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._stream: Stream | None = None

    def record(self, stream: Stream) -> None:
        assert self._runtime.inside[-1] is stream, "recorded on the stream of the copy"
        stream.recorded += 1
        self._stream = stream

    def query(self) -> bool:
        assert self._stream is not None
        return self._stream.gate.is_set()


@pytest.fixture
def runtime() -> Runtime:
    return Runtime()


@pytest.fixture(params=["late", "cuda"])
def device(request: pytest.FixtureRequest, runtime: Runtime) -> TorchVram:
    if request.param == "late":
        return TorchVram("cpu", runtime)
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    return TorchVram("cuda")


def test_blocks_there_and_back(device: TorchVram) -> None:
    with Engine() as engine:
        vram = engine.vram(NBYTES, device=device, name="kv")
        here = engine.register(stamped(NBYTES).copy())
        pages, mine = vram.blocks(BLOCK), here.blocks(BLOCK)
        ids = np.random.default_rng(1).permutation(16)
        sent = engine.write(mine, np.arange(16), pages, ids)
        assert sent.wait() and sent.check().ok and sent.transport == "vram"
        back = engine.allocate(NBYTES)
        op = engine.read(back.blocks(BLOCK), ids, pages, ids)
        assert op.wait()
        blocks = stamped(NBYTES).reshape(16, BLOCK)
        assert np.array_equal(back.array.reshape(16, BLOCK)[ids], blocks)
        crcs = [one.check().crc for one in (op, sent)]
        assert crcs[0] is not None and crcs[1] is not None and np.array_equal(crcs[0], crcs[1])
        assert engine.stats()["ops"]["vram"]["bytes"] == 2 * NBYTES


def test_somebodys_tensor_is_used_in_place(device: TorchVram) -> None:
    tensor = torch.zeros(64, 32, dtype=torch.bfloat16, device=device.name)
    want = stamped(tensor.nbytes)
    with Engine() as engine, engine.vram(tensor, device=device) as vram:
        assert vram.nbytes == tensor.nbytes
        frozen = stamped(tensor.nbytes).copy()
        frozen.flags.writeable = False
        here = engine.register(frozen, writable=False)
        assert engine.write(here, None, vram, None).wait()
        assert np.array_equal(tensor.view(torch.uint8).cpu().numpy().reshape(-1), want)


def test_an_op_comes_after_what_the_stream_has_to_do_and_ends_when_it_has_passed(
    runtime: Runtime,
) -> None:
    with Engine() as engine:
        vram = engine.vram(NBYTES, device=TorchVram("cpu", runtime))
        here = engine.register(stamped(NBYTES).copy())
        runtime.current = busy = Stream(7)
        busy.gate.clear()
        op = engine.write(here, None, vram, None)
        runtime.current = Stream(8)
        assert not op.wait(0.05) and op.state in (OpState.QUEUED, OpState.POSTED)
        busy.gate.set()
        assert op.wait() and op.check().ok
        assert busy.recorded == 1 and runtime.current.recorded == 0


def test_late_and_cancelled_ops_end_quiet(runtime: Runtime) -> None:
    with Engine() as engine:
        vram = engine.vram(NBYTES, device=TorchVram("cpu", runtime))
        here = engine.allocate(NBYTES)
        runtime.current.gate.clear()
        late = engine.read(here, None, vram, None, deadline=1.0)
        wait_until(lambda: late.state is OpState.POSTED)
        behind = engine.read(here, None, vram, None)
        assert behind.cancel() and behind.state is OpState.CANCELLED  # it had not begun
        assert not late.wait(1.1)  # the device may still write here
        runtime.current.gate.set()
        assert late.wait(LONG_S) and late.state is OpState.EXPIRED
        assert isinstance(late.error, DeadlineExceeded)
        runtime.current.gate.clear()
        given_up = engine.read(here, None, vram, None, deadline=LONG_S)
        wait_until(lambda: given_up.state is OpState.POSTED)
        assert given_up.cancel() and state_of(given_up) is OpState.POSTED
        runtime.current.gate.set()
        assert given_up.wait(LONG_S) and state_of(given_up) is OpState.CANCELLED


def test_what_waits_behind_a_stream_that_hangs_ends_in_its_own_time(runtime: Runtime) -> None:
    with Engine() as engine:
        vram = engine.vram(NBYTES, device=TorchVram("cpu", runtime))
        here = engine.allocate(NBYTES)
        runtime.current.gate.clear()
        hangs = engine.read(here, None, vram, None, deadline=LONG_S)
        wait_until(lambda: hangs.state is OpState.POSTED)
        behind = engine.read(here, None, vram, None, deadline=0.01)
        assert behind.wait() and behind.state is OpState.EXPIRED
        runtime.current.gate.set()
        assert hangs.wait(LONG_S) and hangs.check().ok


def test_the_more_urgent_goes_first(runtime: Runtime) -> None:
    with Engine() as engine:
        vram = engine.vram(NBYTES, device=TorchVram("cpu", runtime))
        here = engine.register(stamped(NBYTES).copy())
        runtime.current.gate.clear()
        first = engine.write(here, None, vram, None, deadline=LONG_S)
        wait_until(lambda: first.state is OpState.POSTED)
        ended: list[int] = []
        ops = [
            engine.write(here, None, vram, None, deadline=LONG_S, priority=priority)
            for priority in (0, 2, 1)
        ]
        for op in ops:
            op.add_done_callback(lambda done: ended.append(done.transfer.priority))
        runtime.current.gate.set()
        assert all(op.wait(LONG_S) and op.check().ok for op in ops)
        assert ended == [2, 1, 0]


def test_a_segment_closed_by_another_thread_is_the_ops_error(runtime: Runtime) -> None:
    """Between the check of what was asked for and its beginning."""
    with Engine() as engine:
        vram = engine.vram(NBYTES, device=TorchVram("cpu", runtime))
        request = transfer("read", engine.allocate(NBYTES), vram, [(0, 0, NBYTES)])
        vram.close()
        op = engine.post(request, via=None)
        assert op.state is OpState.FAILED and isinstance(op.error, Closed)


def test_memory_that_the_device_does_not_have(runtime: Runtime) -> None:
    with Engine() as engine, pytest.raises(SegmentSpace, match="'cpu' gives no"):
        engine.vram(1 << 60, device=TorchVram("cpu", runtime))


def test_what_the_library_raises_is_the_ops_error(runtime: Runtime) -> None:
    class Broken(TorchVram):
        left = 1

        def to_device(self, *what: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("an illegal memory access was encountered")
            return super().to_device(*what)

    with Engine() as engine:
        vram = engine.vram(NBYTES, device=Broken("cpu", runtime))
        here = engine.register(stamped(NBYTES).copy())
        runtime.current.gate.clear()
        which = [0, 1]
        op = engine.write(here.blocks(BLOCK), which, vram.blocks(BLOCK), which, deadline=LONG_S)
        assert not op.wait(0.05)  # the first block's copy is still under way
        runtime.current.gate.set()
        assert op.wait(LONG_S) and op.state is OpState.FAILED
        assert "illegal memory access" in str(op.error)


def test_a_closed_one_takes_no_ops_and_ends_those_it_has(runtime: Runtime) -> None:
    with Engine() as engine:
        vram = engine.vram(NBYTES, device=TorchVram("cpu", runtime))
        here = engine.allocate(NBYTES)
        runtime.current.gate.clear()
        op = engine.read(here, None, vram, None)
        threading.Timer(0.05, runtime.current.gate.set).start()
        vram.close()
        assert op.state.terminal
        with pytest.raises(Closed, match="device memory"):
            engine.read(here, None, vram, None)
        other = engine.vram(NBYTES, device=TorchVram("cpu", runtime))
    assert other.closed


def test_it_is_told_what_reaches_it(runtime: Runtime) -> None:
    with Engine() as engine:
        vram = engine.vram(NBYTES, device=TorchVram("cpu", runtime), name="kv")
        choices = {one.transport: one for one in engine.explain(vram)}
        assert [name for name, one in choices.items() if one.usable] == ["vram"]
        assert "device's memory" in choices["tcp"].why
        assert (vram.location.device, vram.cost_class) == ("cpu", CostClass.VRAM)
        assert "kv" not in engine.segments  # no peer sees it
        here = engine.allocate(NBYTES)
        with pytest.raises(BadInput, match="a device's"):
            engine.read(vram, None, here, None)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="read-only"):
            frozen = engine.vram(NBYTES, device=TorchVram("cpu", runtime), writable=False)
            engine.write(here, None, frozen, None)


@pytest.mark.parametrize("memory", [0, -1, True, 2**62])
def test_what_is_no_size(runtime: Runtime, memory: Any) -> None:
    with Engine() as engine, pytest.raises(BadInput, match="no size"):
        engine.vram(memory, device=TorchVram("cpu", runtime))


def test_a_tensor_that_cannot_be_used(runtime: Runtime) -> None:
    with Engine() as engine:
        for wrong in (torch.zeros(4, 4).t(), [1, 2]):
            with pytest.raises(BadInput):
                engine.vram(wrong, device=TorchVram("cpu", runtime))


def test_without_a_gpu_or_torch_one_line_says_so() -> None:
    if not torch.cuda.is_available():
        with Engine() as engine, pytest.raises(MissingExtra, match="needs a GPU"):
            engine.vram(NBYTES)
    code = (
        "from moonpool.core.errors import MissingExtra\n"
        "from moonpool.transfer import Engine\n"
        "with Engine() as engine:\n"
        "    try: engine.vram(100)\n"
        "    except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "import torch first" in done.stdout


def test_its_type_is_public() -> None:
    assert VramSegment.__module__ == "moonpool.transfer.vram_segment"
