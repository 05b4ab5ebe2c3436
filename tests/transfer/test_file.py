"""The file transport over both backends: bytes, status, direct I/O, deadlines, bad input, quiet."""

import asyncio
import errno
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moonpool import _core
from moonpool.core.errors import (
    BadConfig,
    BadInput,
    Cancelled,
    Closed,
    DeadlineExceeded,
    TransferError,
)
from moonpool.transfer import BlockStatus, Engine, FileSegment, OpState
from moonpool.transfer.file_segment import DIRECT_ALIGN
from tests.transfer.conftest import stamped, state_of

BLOCK = 4096
NBYTES = 64 * BLOCK
BACKENDS = ["io_uring", "threads"]


def require(backend: str) -> None:
    try:
        _core.FileIo(backend).close()
    except OSError as error:
        pytest.skip(f"no io_uring for us: {error}")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    require(request.param)
    return str(request.param)


@pytest.fixture
def engine(backend: str) -> Iterator[Engine]:
    with Engine(file_backend=backend) as engine:
        yield engine


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "blocks"
    path.write_bytes(stamped(NBYTES).tobytes())
    return path


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
def test_blocks_there_and_back(backend: str, path: Path, inline_bytes: int) -> None:
    ids = np.random.default_rng(3).permutation(64)
    with Engine(file_backend=backend, inline_bytes=inline_bytes) as engine:
        file, mine = engine.open_file(path), engine.allocate(NBYTES)
        here, there = mine.blocks(BLOCK), file.blocks(BLOCK)
        op = engine.read(here, np.arange(64), there, ids)
        assert op.wait()
        result = op.check()
        want = stamped(NBYTES).reshape(64, BLOCK)[ids]
        assert np.array_equal(mine.array.reshape(64, BLOCK), want)
        assert result.transport == "file" and result.nbytes == NBYTES
        assert result.crc is not None
        assert result.crc.tolist() == [_core.crc32c(block) for block in want]
        mine.array[:] = stamped(NBYTES, 9)
        op = engine.write(here, ids, there, np.arange(64), checksum=False)
        assert op.wait() and op.check().crc is None
        file.sync()
        assert file.closed is False
        counts = engine.stats()["ops"]["file"]
        assert counts == {"bytes": 2 * NBYTES, "DONE": 2}
    assert path.read_bytes() == stamped(NBYTES, 9).reshape(64, BLOCK)[ids].tobytes()
    assert file.closed


def test_ranges_of_any_length(engine: Engine, path: Path) -> None:
    file, mine = engine.open_file(path), engine.allocate(NBYTES)
    offsets, lengths = np.array([7, 50_000, 0]), np.array([40_000, 1, 0])
    op = engine.read(mine, (offsets + 3, lengths), file, (offsets, lengths))
    assert op.wait() and op.check().ok
    want = np.zeros(NBYTES, np.uint8)
    want[10:40_010], want[50_003] = stamped(NBYTES)[7:40_007], stamped(NBYTES)[50_000]
    assert np.array_equal(mine.array, want)


def test_awaited(engine: Engine, path: Path) -> None:
    file, mine = engine.open_file(path), engine.allocate(NBYTES)

    async def both() -> list[Any]:
        return await asyncio.gather(
            *(engine.read(mine.blocks(BLOCK), [n], file.blocks(BLOCK), [n]) for n in range(64))
        )

    assert all(result.ok for result in asyncio.run(both()))
    assert np.array_equal(mine.array, stamped(NBYTES))


def test_direct(engine: Engine, path: Path) -> None:
    try:
        file = engine.open_file(path, direct=True)
    except BadInput as error:
        pytest.skip(str(error))
    assert "direct" in repr(file)
    mine = engine.allocate(NBYTES)
    ids = np.arange(64)[::-1]
    op = engine.read(mine.blocks(BLOCK), ids, file.blocks(BLOCK), ids)
    assert op.wait() and op.check().ok
    assert np.array_equal(mine.array, stamped(NBYTES))
    mine.array[:] = stamped(NBYTES, 2)
    op = engine.write(mine.blocks(BLOCK), ids, file.blocks(BLOCK), ids)
    assert op.wait() and op.check().ok
    assert path.read_bytes() == stamped(NBYTES, 2).tobytes()
    odd = engine.register(np.zeros(NBYTES + 1, np.uint8)[1:])
    for memory, at, size in ((odd, 0, BLOCK), (mine, 512, BLOCK), (mine, 0, 100)):
        with pytest.raises(BadInput, match=f"block 0: .*{DIRECT_ALIGN}"):
            engine.read(memory, (0, size), file, (at, size))


@pytest.mark.parametrize("name", ["", "kv"])
def test_allocated_memory_is_aligned(name: str) -> None:
    with Engine() as engine:
        memory = engine.allocate(NBYTES + 5, name, shared=False)
        assert memory.array.ctypes.data % DIRECT_ALIGN == 0
        assert memory.nbytes == NBYTES + 5 and not memory.array.any()


def test_create_and_grow(engine: Engine, tmp_path: Path) -> None:
    file = engine.open_file(tmp_path / "new", NBYTES, create=True)
    assert file.nbytes == NBYTES == len(file) and file.name == "new"
    mine = engine.register(stamped(BLOCK))
    op = engine.write(mine, None, file, (5, BLOCK))
    assert op.wait() and op.check().ok
    longer = engine.open_file(tmp_path / "new", 2 * NBYTES, create=True, name="longer")
    assert longer.nbytes == 2 * NBYTES
    assert (tmp_path / "new").read_bytes()[5 : 5 + BLOCK] == stamped(BLOCK).tobytes()


def test_a_file_that_shrank_fails_the_blocks_it_lost(engine: Engine, path: Path) -> None:
    file, mine = engine.open_file(path), engine.allocate(NBYTES)
    os.truncate(path, 10 * BLOCK)
    op = engine.read(mine.blocks(BLOCK), [0, 1, 2], file.blocks(BLOCK), [9, 10, 0])
    assert op.wait() and op.state is OpState.FAILED
    assert op.result.status.tolist() == [BlockStatus.OK, BlockStatus.BOUNDS, BlockStatus.OK]
    assert op.result.nbytes == 2 * BLOCK
    with pytest.raises(TransferError, match=r"1 of 3 blocks failed.*block 1.*ends before"):
        op.check()


def test_deadline_and_cancel(engine: Engine, path: Path) -> None:
    file, mine = engine.open_file(path), engine.allocate(NBYTES)
    late = engine.read(mine, None, file, None, deadline=0)
    assert late.state is OpState.EXPIRED and isinstance(late.error, DeadlineExceeded)
    assert not mine.array.any()
    ops = [engine.read(mine, None, file, None) for _ in range(8)]
    for op in ops:
        op.cancel()
    for op in ops:
        assert op.wait()
        assert op.state in (OpState.DONE, OpState.CANCELLED)
        if op.state is OpState.CANCELLED:
            assert isinstance(op.error, Cancelled)


def test_memory_is_quiet_after_the_end(backend: str, tmp_path: Path) -> None:
    """Stamped buffers, D13: whatever way an op ends, nothing arrives afterwards."""
    nbytes = 32 << 20
    with Engine(file_backend=backend, inline_bytes=0, file_threads=3, file_depth=4) as engine:
        file = engine.open_file(tmp_path / "big", nbytes, create=True)
        mine = engine.allocate(nbytes)
        for turn in range(6):
            op = engine.read(mine, None, file, None, deadline=0.001 * turn, checksum=False)
            op.wait(0.002 * (turn % 3))
            op.cancel()
            assert op.wait() and state_of(op).terminal
            mine.array[:] = 7
            assert (mine.array == 7).all()


def test_closing_ends_ops_first(backend: str, path: Path) -> None:
    engine = Engine(file_backend=backend, inline_bytes=0)
    file, mine = engine.open_file(path), engine.allocate(NBYTES)
    ops = [engine.read(mine, None, file, None) for _ in range(20)]
    file.close()
    assert all(op.done() for op in ops)
    with pytest.raises(Closed):
        engine.read(mine, None, file, None)
    with pytest.raises(Closed):
        file.sync()
    file.close()
    again = engine.open_file(path)
    engine.close()
    assert again.closed
    with pytest.raises(Closed):
        engine.open_file(path)


def test_more_than_the_queue_holds(path: Path) -> None:
    with Engine(file_backend="threads", file_threads=1, queue_ops_max=1, inline_bytes=0) as engine:
        file, mine = engine.open_file(path), engine.allocate(64 * NBYTES)
        whole = (np.arange(64) * NBYTES, np.full(64, NBYTES))
        ops = [
            engine.read(mine, whole, file, (np.zeros(64, np.int64), whole[1])) for _ in range(50)
        ]
        assert all(op.wait() for op in ops)
        full = [op for op in ops if op.state is OpState.FAILED]
        assert full and "wait already" in str(full[0].error)
        assert full[0].result.status[0] == BlockStatus.BUSY
        assert any(op.state is OpState.DONE for op in ops)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"nbytes": NBYTES + 1}, "create=True"),
        ({"nbytes": -1}, "nbytes -1"),
        ({"nbytes": True}, "nbytes True"),
        ({"create": True}, "nbytes None"),
        ({"nbytes": 1, "create": True, "writable": False}, "writable"),
        ({"name": "x" * 300}, "name"),
    ],
)
def test_bad_files(engine: Engine, path: Path, how: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        engine.open_file(path, **how)


def test_what_is_no_file(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot open"):
        engine.open_file(tmp_path / "absent")
    with pytest.raises(BadInput, match="neither"):
        engine.open_file("/dev/zero")


def test_bad_ops(engine: Engine, path: Path) -> None:
    file, mine = engine.open_file(path, writable=False), engine.allocate(NBYTES)
    with pytest.raises(BadInput, match="read-only"):
        engine.write(mine, None, file, None)
    with pytest.raises(BadInput, match="outside"):
        engine.read(mine, (0, 1), file, (NBYTES, 1))
    with pytest.raises(BadInput, match="block id 64"):
        engine.read(mine.blocks(BLOCK), [0], file.blocks(BLOCK), [64])
    with pytest.raises(BadInput, match="is a file"):
        engine.read(file, None, mine, None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="overlap"):
        engine.read(mine.blocks(BLOCK), [1, 1], file.blocks(BLOCK), [2, 3])


def test_other_transports_do_not_reach_files(engine: Engine, path: Path) -> None:
    file, mine = engine.open_file(path), engine.allocate(NBYTES)
    for via in ("tcp", "local"):
        op = engine.read(mine, None, file, None, transport=via)
        assert op.state is OpState.FAILED and "the segment is a file" in str(op.error)
    op = engine.read(mine, None, mine, None, transport="file")
    assert op.state is OpState.FAILED and "the segment is memory" in str(op.error)
    first, *others = engine.explain(file)
    assert first.transport == "file" and first.usable and not any(one.usable for one in others)


def test_an_io_uring_that_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> Any:
        raise OSError(errno.EPERM, "io_uring_setup: Operation not permitted")

    monkeypatch.setattr(_core, "FileIo", forbidden)
    with Engine(file_backend="io_uring") as engine, pytest.raises(BadConfig, match="threads"):
        engine.open_file("/dev/null")


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(BadConfig, match="file_backend"):
        Engine(file_backend="aio")
    with pytest.raises(ValueError, match="aio"):
        _core.FileIo("aio")


def test_a_dropped_op_keeps_its_memory_until_it_has_ended(backend: str, path: Path) -> None:
    io = _core.FileIo(backend)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for _ in range(50):
            memory, zero = np.zeros(NBYTES, np.uint8), np.zeros(1, np.uint64)
            length = np.array([NBYTES], np.uint64)
            io.submit(descriptor, False, memory, zero, zero, length, 2**62, True, False)
            del memory
    finally:
        io.close()
        os.close(descriptor)


def test_segments_are_closed_by_with(tmp_path: Path) -> None:
    with Engine() as engine:
        with engine.open_file(tmp_path / "one", 1, create=True) as file:
            assert isinstance(file, FileSegment)
        assert file.closed and "closed" in repr(file)


def test_a_forked_child_that_closes_the_engine_ends_nothing_of_its_parent() -> None:
    script = """
import os, tempfile, threading
from moonpool.transfer.engine import Engine
with tempfile.TemporaryDirectory() as folder, Engine(dir=folder) as engine:
    memory = engine.allocate(16 << 20)
    file = engine.open_file(folder + "/file", 16 << 20, create=True)
    def told():
        over = threading.Event()
        engine.write(memory, None, file, None).add_done_callback(lambda _: over.set())
        return over.wait(20)
    assert told()
    pid = os.fork()
    if pid == 0:
        engine.close()
        os._exit(0 if engine.closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert told()
"""
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", script) == 0


def test_a_file_is_not_closed_under_a_thread_that_gives_an_op_to_it(tmp_path: Path) -> None:
    segment = FileSegment(tmp_path / "file", 8, create=True)
    with segment.in_use() as descriptor:
        closing = threading.Thread(target=segment.close)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive() and os.fstat(descriptor).st_size == 8
    closing.join()
    with pytest.raises(Closed), segment.in_use():
        pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
