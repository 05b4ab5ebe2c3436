"""Passive segments: a file mapped by several processes, bounds, what is no memory, flushes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moonpool import _core
from moonpool.core.errors import BadInput, Closed, SegmentDamaged, SegmentSpace, TransferError
from moonpool.transfer import CostClass, Engine, LineFlush, MappedSegment, OpState, map_segment
from moonpool.transfer.base import U8, U64
from moonpool.transfer.dax import medium_of
from moonpool.transfer.flush import FLUSHES
from tests.transfer.conftest import stamped, u64

NBYTES = 1 << 16
BLOCK = 4096

WRITER = """
import sys
from moonpool.transfer import Engine
from tests.transfer.conftest import stamped

with Engine() as engine:
    pool = engine.map(sys.argv[1], flush=sys.argv[2] or None)
    mine = engine.register(stamped(pool.nbytes, 5))
    op = engine.write(mine, None, pool, None)
    op.wait()
    print(op.check().state)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory"


@pytest.fixture
def pool(path: Path) -> MappedSegment:
    return map_segment(path, NBYTES, create=True)


@pytest.mark.parametrize("flush", ["", *FLUSHES])
def test_another_process_writes_what_this_one_reads(pool: MappedSegment, flush: str) -> None:
    command = [sys.executable, "-c", WRITER, str(pool.path), flush]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "DONE", done.stderr
    with Engine() as engine:
        again = engine.map(pool.path, flush=flush or None)
        mine = engine.allocate(NBYTES)
        ids = np.arange(16)[::-1]
        op = engine.read(mine.blocks(BLOCK), ids, again.blocks(BLOCK), ids)
        assert op.wait() and op.check().transport == "local"
    want = stamped(NBYTES, 5)
    assert np.array_equal(mine.array, want) and np.array_equal(pool.array, want)


def test_peers_reach_a_named_one(path: Path) -> None:
    with Engine() as owner, Engine() as engine:
        owner.map(path, NBYTES, create=True, name="pool").array[:] = stamped(NBYTES)
        peer = engine.connect(owner.listen())
        mine = engine.allocate(NBYTES)
        op = engine.read(mine, None, peer.segment("pool"), None, transport="tcp")
        assert op.wait() and op.check().ok
        assert np.array_equal(mine.array, stamped(NBYTES))
        owner.segments["pool"].close()
        assert "pool" not in owner.segments


def test_a_range_in_the_middle(pool: MappedSegment) -> None:
    pool.array[:] = stamped(NBYTES)
    part = map_segment(pool.path, BLOCK, offset=2 * BLOCK, writable=False, name="part")
    assert part.nbytes == BLOCK and part.name == "part" and not part.writable
    assert np.array_equal(part.array, stamped(NBYTES)[2 * BLOCK : 3 * BLOCK])
    rest = map_segment(pool.path, offset=3 * BLOCK)
    assert rest.nbytes == NBYTES - 3 * BLOCK
    with pytest.raises(ValueError, match="read-only"):
        part.array[0] = 1


def test_create_keeps_what_is_there(pool: MappedSegment) -> None:
    pool.array[:] = stamped(NBYTES)
    longer = map_segment(pool.path, 2 * NBYTES, create=True)
    assert np.array_equal(longer.array[:NBYTES], stamped(NBYTES))
    assert not longer.array[NBYTES:].any()
    assert len(map_segment(pool.path, BLOCK, create=True)) == BLOCK
    assert pool.path.stat().st_size == 2 * NBYTES


def test_a_sparse_file_gets_its_room_when_it_is_mapped(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(NBYTES)
    map_segment(path)
    assert path.stat().st_blocks * 512 >= NBYTES


def test_no_room_is_an_error_and_no_signal(path: Path) -> None:
    with pytest.raises((SegmentSpace, BadInput)):
        map_segment(path, 2**61, create=True)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"nbytes": NBYTES + 1}, "create=True"),
        ({"offset": NBYTES}, "nothing to map"),
        ({"offset": 17}, "multiples"),
        ({"offset": -1}, "offset -1"),
        ({"nbytes": True}, "nbytes True"),
        ({"nbytes": 0}, "nothing to map"),
        ({"create": True}, "how many"),
        ({"nbytes": BLOCK, "create": True, "writable": False}, "writable"),
        ({"flush": "line"}, "Did you mean 'lines'"),
    ],
)
def test_bad_ranges(pool: MappedSegment, how: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        map_segment(pool.path, **how)


def test_what_is_no_memory(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot open"):
        map_segment(tmp_path / "absent")
    with pytest.raises(BadInput, match="no dax device"):
        map_segment("/dev/zero", BLOCK)
    with pytest.raises(BadInput, match="cannot open|neither"):
        map_segment(tmp_path, BLOCK, writable=False)


def test_a_dax_device_tells_size_and_alignment(tmp_path: Path) -> None:
    descriptor = os.open("/dev/zero", os.O_RDWR)
    try:
        status = os.fstat(descriptor)
        device = tmp_path / f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        device.mkdir()
        (device / "size").write_text(f"{1 << 30}\n")
        medium = medium_of(descriptor, Path("/dev/dax0.0"), devices=tmp_path)
        assert medium == (1 << 30, 2 << 20, CostClass.CXL)
        (device / "align").write_text("4096\n")
        assert medium_of(descriptor, Path("/dev/dax0.0"), devices=tmp_path).align == 4096
    finally:
        os.close(descriptor)


def test_a_truncated_file_fails_ops(pool: MappedSegment) -> None:
    with Engine() as engine:
        mine = engine.allocate(NBYTES)
        os.truncate(pool.path, BLOCK)
        with pytest.raises(SegmentDamaged, match="truncated"):
            engine.read(mine, None, pool, None)
        pool.close()
        with pytest.raises(Closed):
            engine.read(mine, None, pool, None)


def test_cost_class_shows_in_explain(path: Path) -> None:
    with Engine() as engine:
        plain = engine.allocate(NBYTES)
        costs = []
        for cost_class in (CostClass.DRAM, CostClass.CXL, CostClass.FILE):
            mapped = engine.map(path, NBYTES, create=True, cost_class=cost_class)
            costs.append(engine.explain(mapped, blocks=64)[0].estimate_us)
        assert costs[0] == engine.explain(plain, blocks=64)[0].estimate_us
        assert costs == sorted(set(costs))
        assert engine.map(path).cost_class is CostClass.FILE


class Uncoherent:
    """A model of memory without coherent caches: this host sees `cache`, the others `memory`."""

    def __init__(self, memory: U8) -> None:
        self.memory = memory
        self.calls: list[tuple[str, list[int]]] = []

    def before_read(self, memory: U8, offsets: U64, lengths: U64) -> None:
        self._copy("fetch", memory, self.memory, offsets, lengths)

    def after_write(self, memory: U8, offsets: U64, lengths: U64) -> None:
        self._copy("push", self.memory, memory, offsets, lengths)

    def _copy(self, what: str, to: U8, source: U8, offsets: U64, lengths: U64) -> None:
        self.calls.append((what, offsets.tolist()))
        for start, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
            to[start : start + length] = source[start : start + length]


@pytest.fixture
def hosts(tmp_path: Path) -> list[MappedSegment]:
    """Two hosts' views of one memory; each is a file of its own, joined by the flushes only."""
    memory = np.zeros(NBYTES, np.uint8)
    return [
        map_segment(tmp_path / name, NBYTES, create=True, flush=Uncoherent(memory))
        for name in ("one", "two")
    ]


@pytest.mark.parametrize("inline_bytes", [0, 1 << 20])
def test_flushes_carry_bytes_between_hosts(hosts: list[MappedSegment], inline_bytes: int) -> None:
    writer, reader = hosts
    with Engine(inline_bytes=inline_bytes) as engine:
        mine = engine.register(stamped(NBYTES, 3))
        back = engine.allocate(NBYTES)
        out = engine.write(mine.blocks(BLOCK), [3, 1], writer.blocks(BLOCK), [2, 9])
        assert out.wait() and out.check().ok
        home = engine.read(back.blocks(BLOCK), [0, 1], reader.blocks(BLOCK), [9, 2])
        assert home.wait() and home.check().ok
    assert np.array_equal(back.array[:BLOCK], stamped(NBYTES, 3)[BLOCK : 2 * BLOCK])
    assert np.array_equal(back.array[BLOCK : 2 * BLOCK], stamped(NBYTES, 3)[3 * BLOCK : 4 * BLOCK])
    # Only the blocks that moved were touched, and each host at its own end.
    assert isinstance(writer.flush, Uncoherent) and isinstance(reader.flush, Uncoherent)
    assert writer.flush.calls == [("push", [2 * BLOCK, 9 * BLOCK])]
    assert reader.flush.calls == [("fetch", [9 * BLOCK, 2 * BLOCK])]


def test_loads_and_stores_by_hand_flush_by_hand(hosts: list[MappedSegment]) -> None:
    one, two = hosts
    one.array[100:200] = 7
    one.after_write(100, 100)
    assert not two.array.any()
    two.before_read(100, 100)
    assert (two.array[100:200] == 7).all()
    with pytest.raises(BadInput, match="outside"):
        one.after_write(NBYTES, 1)
    with pytest.raises(BadInput, match="outside"):
        one.before_read(-1, 1)


def test_a_hook_that_fails_ends_the_op(pool: MappedSegment) -> None:
    class Broken(LineFlush):
        def after_write(self, memory: U8, offsets: U64, lengths: U64) -> None:
            raise OSError(5, "no disk")

    with Engine() as engine:
        broken = engine.map(pool.path, flush=Broken())
        op = engine.write(engine.allocate(NBYTES), None, broken, None)
        assert op.wait() and op.state is OpState.FAILED
        assert isinstance(op.error, TransferError) and "no disk" in str(op.error)


def test_memory_with_flushes_moves_inside_the_process_only(pool: MappedSegment) -> None:
    with Engine() as owner, Engine() as engine:
        owner.allocate(NBYTES, "kv")
        kv = engine.connect(owner.listen()).segment("kv")
        mapped = engine.map(pool.path, flush="lines")
        with pytest.raises(BadInput, match="plain segment"):
            engine.read(mapped, None, kv, None)
        with pytest.raises(BadInput, match="without a name"):
            engine.map(pool.path, name="pool", flush="lines")


def test_lines_are_counted_whole() -> None:
    memory, line = np.zeros(4096 + 512, np.uint8), _core.cache_line_bytes()
    first = -memory.ctypes.data % line
    assert _core.write_back(memory, u64([first]), u64([2 * line])) == 2
    assert _core.invalidate(memory, u64([first + line - 1]), u64([2])) == 2
    with pytest.raises(IndexError, match="block 1"):
        _core.invalidate(memory, u64([0, 4096]), u64([0, 513]))
