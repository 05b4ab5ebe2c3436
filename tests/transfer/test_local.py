"""The local transport and the copy machinery below it."""

import asyncio
import threading

import numpy as np
import pytest

from moonpool import _core
from moonpool.core.errors import Cancelled, Closed, DeadlineExceeded, TooManyOps
from moonpool.transfer.base import BlockStatus, OpResult, OpState
from moonpool.transfer.copying import CopyOp, CopyRunner
from moonpool.transfer.local import LocalTransport
from moonpool.transfer.op import Op
from tests.transfer.conftest import expected, segment, transfer, u64

MIB = 1 << 20


@pytest.mark.parametrize("kind", ["read", "write"])
@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
def test_blocks_arrive(kind: str, inline_bytes: int) -> None:
    near, far = segment(1000, 1), segment(1000, 2)
    request = transfer(kind, near, far, [(0, 500, 100), (100, 0, 0), (900, 50, 100)])
    want_near, want_far = expected(request, far.array)
    transport = LocalTransport(CopyRunner(inline_bytes))
    op = transport.submit(request)
    assert op.wait()
    result = op.check()
    assert result.state is OpState.DONE and result.nbytes == 200
    assert result.status.tolist() == [BlockStatus.OK] * 3
    assert np.array_equal(near.array, want_near) and np.array_equal(far.array, want_far)
    dst, offsets = (
        (near, request.local_offsets) if kind == "read" else (far, request.remote_offsets)
    )
    crcs = [
        _core.crc32c(dst.array[o : o + n])
        for o, n in zip(offsets.tolist(), [100, 0, 100], strict=True)
    ]
    assert result.crc is not None and result.crc.tolist() == crcs
    transport.close()


def test_without_checksum_there_is_no_crc() -> None:
    request = transfer("read", segment(10), segment(10, 2), [(0, 0, 10)], checksum=False)
    assert LocalTransport().submit(request).result.crc is None


def test_no_blocks_are_done_at_once() -> None:
    op = LocalTransport().submit(transfer("read", segment(10), segment(10), []))
    assert op.result.ok and op.result.nbytes == 0


def test_a_block_over_itself_moves_as_if_through_a_copy() -> None:
    memory = segment(100)
    request = transfer("read", memory, memory, [(10, 0, 50)])
    want = memory.array.copy()
    want[10:60] = memory.array[:50]
    op = LocalTransport().submit(request)
    assert np.array_equal(memory.array, want)
    assert op.result.crc is not None and op.result.crc[0] == _core.crc32c(want[10:60])


def test_a_passed_deadline_touches_nothing() -> None:
    near, far = segment(100, 1), segment(100, 2)
    before = near.array.copy()
    op = LocalTransport().submit(transfer("read", near, far, [(0, 0, 100)], deadline_s=0.0))
    assert op.state is OpState.EXPIRED and np.array_equal(near.array, before)
    assert op.result.status.tolist() == [BlockStatus.EXPIRED]
    with pytest.raises(DeadlineExceeded):
        op.check()


class Busy:
    """A local transport whose one worker is held until release()."""

    def __init__(self, queue_ops_max: int = 16) -> None:
        self._runner = CopyRunner(inline_bytes=0, queue_ops_max=queue_ops_max)
        self.transport = LocalTransport(self._runner)
        self._gate, begun = threading.Event(), threading.Event()
        memory = segment(10)
        op = CopyOp(transfer("read", memory, memory, [(0, 0, 1)]), "local", memory.buffer)

        def hold(_: Op) -> None:
            begun.set()
            self._gate.wait(10)

        op.add_done_callback(hold)
        self._runner.start(op)
        assert begun.wait(10)

    def release(self) -> None:
        self._gate.set()


def test_cancel_of_a_waiting_copy_touches_nothing() -> None:
    busy, near = Busy(), segment(100, 1)
    before = near.array.copy()
    op = busy.transport.submit(transfer("read", near, segment(100, 2), [(0, 0, 100)]))
    assert op.state == "QUEUED" and op.cancel()
    assert op.done() and op.result.state == "CANCELLED"
    busy.release()
    busy.transport.close()
    assert np.array_equal(near.array, before) and not op.cancel()
    with pytest.raises(Cancelled):
        op.check()


def test_cancel_of_a_running_copy_ends_it() -> None:
    near, far = segment(64 * MIB, 1), segment(64 * MIB, 2)
    transport = LocalTransport(CopyRunner(inline_bytes=0))
    op = transport.submit(transfer("read", near, far, [(0, 0, 64 * MIB)]))
    op.cancel()
    assert op.wait()
    after = near.array.copy()
    assert op.state in (OpState.CANCELLED, OpState.DONE)
    transport.close()
    assert np.array_equal(near.array, after)


def test_a_full_queue_fails_the_op() -> None:
    busy = Busy(queue_ops_max=1)
    request = transfer("read", segment(10), segment(10), [(0, 0, 10)])
    assert busy.transport.submit(request).state is OpState.QUEUED
    refused = busy.transport.submit(request)
    busy.release()
    assert refused.state is OpState.FAILED and isinstance(refused.error, TooManyOps)
    assert "queue_ops_max is 1" in str(refused.error)
    busy.transport.close()


def test_copies_that_wait_go_by_priority_then_deadline_then_age() -> None:
    busy, order = Busy(), list[str]()
    request = transfer("read", segment(10), segment(10), [(0, 0, 10)])
    ops = []
    for name, priority, sooner_s in (("a", 0, 0), ("b", 0, 1), ("c", 1, 0), ("d", 0, 0)):
        due_s = request.deadline_s - sooner_s
        op = busy.transport.submit(request._replace(priority=priority, deadline_s=due_s))
        op.add_done_callback(lambda _, who=name: order.append(who))  # type: ignore[misc]
        ops.append(op)
    busy.release()
    assert all(op.wait() for op in ops) and order == ["c", "b", "a", "d"]
    busy.transport.close()


def test_closing_ends_what_waits_and_what_comes() -> None:
    busy = Busy()
    request = transfer("read", segment(10), segment(10), [(0, 0, 10)])
    waiting = busy.transport.submit(request)
    threading.Timer(0.05, busy.release).start()
    busy.transport.close()
    assert waiting.done()
    with pytest.raises(Closed):
        busy.transport.submit(request).check()


def test_awaiting_a_worker_copy() -> None:
    async def main() -> None:
        transport = LocalTransport(CopyRunner(inline_bytes=0))
        near, far = segment(MIB, 1), segment(MIB, 2)
        result = await transport.submit(transfer("read", near, far, [(0, 0, MIB)]))
        assert result.ok and np.array_equal(near.array, far.array)
        transport.close()

    asyncio.run(main())


def test_a_callback_that_fails_harms_nobody_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    busy = Busy()
    seen: list[Op] = []
    op = busy.transport.submit(transfer("read", segment(9), segment(9), [(0, 0, 9)]))

    def fail(_: Op) -> None:
        raise ZeroDivisionError("a listener's own")

    op.add_done_callback(fail)
    op.add_done_callback(seen.append)
    busy.release()
    busy.transport.close()
    assert op.done() and seen == [op]
    assert "a listener's own" in capsys.readouterr().err


def test_a_cancelled_waiter_cancels_the_op() -> None:
    async def main() -> None:
        busy = Busy()
        op = busy.transport.submit(transfer("read", segment(9), segment(9), [(0, 0, 9)]))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_finish(op), 0.01)
        assert op.state is OpState.CANCELLED
        busy.release()
        busy.transport.close()

    asyncio.run(main())


async def _finish(op: Op) -> OpResult:
    return await op


def test_a_block_outside_is_refused_before_anything_moves() -> None:
    dst, src = bytearray(10), bytes(range(10))
    with pytest.raises(IndexError):
        _core.BlockCopy(dst, u64([0, 8]), src, u64([0, 0]), u64([5, 3]), True)
    with pytest.raises(IndexError):
        _core.BlockCopy(dst, u64([2**64 - 1]), src, u64([0]), u64([2]), True)
    assert dst == bytearray(10)


def test_a_read_only_destination_is_refused() -> None:
    with pytest.raises(BufferError):
        _core.BlockCopy(bytes(10), u64([0]), bytes(10), u64([0]), u64([1]), True)
