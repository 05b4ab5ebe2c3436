"""The kernel gives the bytes of the CPU path. It runs in Triton's interpreter, on the CPU; on a
machine with a CUDA device `TRITON_INTERPRET=0` sends the same tests there."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moonpool.core.errors import (
    BadInput,
    BadSize,
    Closed,
    MissingExtra,
    PrefixGone,
    RegisterRefused,
)
from moonpool.pool.pool import Pool
from moonpool.sparse import PrefixStore, SparseLayout, SparsePool, SparseReader, TableSource
from moonpool.sparse.gpu import GpuRows, why_no_gpu
from moonpool.sparse.gpu.registered import Range, RegisteredMemory, page_ranges
from moonpool.sparse.gpu.rows import interprets, moved_unit, unit_ranges
from moonpool.sparse.source import Guards, Units
from tests.faults.pool_rig import MIB, running
from tests.sparse.stamped import SMALL, rows_of, write

TRITON = importlib.util.find_spec("triton") is not None
if TRITON:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported

needs_triton = pytest.mark.skipif(
    not TRITON, reason="triton is not installed; `make test-triton` fetches it (0.9 GB)"
)
needs_gpu = pytest.mark.skipif(
    not TRITON or interprets() or bool(why_no_gpu()), reason=f"no GPU here: {why_no_gpu()}"
)


def device() -> str:
    return "cpu" if interprets() else "cuda"


def guarded(rows: Any, words: Any, unit_tokens: int = 64) -> SparseReader:
    """Rows u8[1, tokens, entry_bytes] in memory of this process, a word for each unit."""
    layers, tokens, entry_bytes = rows.shape
    layout = SparseLayout(layers, entry_bytes, index_bytes=0)
    count = -(-tokens // unit_tokens)
    zeros = np.zeros(count, np.uint64)
    starts = np.arange(count, dtype=np.uint64) * np.uint64(unit_tokens * entry_bytes)
    strides = np.full(count, tokens * entry_bytes, np.uint64)
    units = Units(unit_tokens, [rows], np.zeros(count, np.uint32), starts, strides, zeros, zeros)
    at = np.arange(count, dtype=np.uint64) * np.uint64(8)
    guards = Guards(words.view(np.uint8), at, words.copy())
    return SparseReader(TableSource("local", layout, tokens, units, guards))


@contextmanager
def prefix(folder: Path, entry_bytes: int, tokens: int = 300) -> Iterator[SparseReader]:
    layout = SparseLayout(layers=3, entry_bytes=entry_bytes, index_bytes=0)
    with SparsePool.create(folder / "rows", layout, 1024) as pool:
        write(pool, "p", 5, tokens)
        with pool.reader("p") as reader:
            yield reader


@needs_triton
@pytest.mark.parametrize("entry_bytes", [656, 1152, 100, 7])
def test_a_gather_is_bitwise_the_cpus(tmp_path: Path, entry_bytes: int) -> None:
    import torch

    random = np.random.default_rng(entry_bytes)
    with prefix(tmp_path, entry_bytes) as reader, GpuRows(reader, device()) as rows:
        for layer in range(3):
            for count in (1, 5, 64, 301):
                positions = random.integers(0, 300, count)  # unsorted, with repeats
                out = torch.full((count, entry_bytes), 0xEE, dtype=torch.uint8, device=device())
                rows.gather(layer, positions, out)
                cpu = np.empty((count, entry_bytes), np.uint8)
                reader.gather(layer, positions, cpu)
                assert np.array_equal(out.cpu().numpy(), cpu)
                assert np.array_equal(cpu, rows_of(reader.layout, 5, layer, positions))


@needs_triton
def test_rows_go_to_the_slots_named_and_nowhere_else(tmp_path: Path) -> None:
    import torch

    random = np.random.default_rng(3)
    with prefix(tmp_path, 656) as reader, GpuRows(reader, device()) as rows:
        out = torch.full((50, 656), 0xEE, dtype=torch.uint8, device=device())
        positions, slots = random.integers(0, 300, 20), random.permutation(50)[:20]
        rows.gather(1, positions, out, slots)
        got = out.cpu().numpy()
        assert np.array_equal(got[slots], rows_of(reader.layout, 5, 1, positions))
        assert (np.delete(got, slots, axis=0) == 0xEE).all()


@needs_triton
def test_objects_of_a_pool_are_read_under_views() -> None:
    import torch

    with running(nodes=1, memory=32 * MIB) as rig:
        pool: Pool = rig.connect()
        store = PrefixStore(pool, SMALL, 128)
        with store.writer("p", 500) as writer:
            for layer in range(SMALL.layers):
                writer.put(layer, 0, rows_of(SMALL, 9, layer, range(500)))
            writer.seal()
        with store.reader("p", "shm") as reader, GpuRows(reader, device()) as rows:
            out = torch.empty((500, 656), dtype=torch.uint8, device=device())
            rows.gather(2, np.arange(499, -1, -1), out)
            wanted = rows_of(SMALL, 9, 2, np.arange(499, -1, -1))
            assert np.array_equal(out.cpu().numpy(), wanted)
        with store.reader("p", "tcp") as reader, pytest.raises(BadInput, match="mapped rows only"):
            GpuRows(reader, device())


@needs_triton
def test_a_page_with_another_owner_is_told() -> None:
    import torch

    words = np.array([7, 8], np.uint64)
    reader = guarded(np.ones((1, 128, 16), np.uint8), words)
    with GpuRows(reader, device()) as rows:
        out = torch.empty((2, 16), dtype=torch.uint8, device=device())
        rows.gather(0, [0, 100], out)
        words[1] += 1
        with pytest.raises(PrefixGone, match="unit 1"):
            rows.gather(0, [0, 100], out)


@needs_triton
def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    import torch

    with prefix(tmp_path, 656) as reader:
        rows = GpuRows(reader, device())
        out = torch.full((2, 656), 0xEE, dtype=torch.uint8, device=device())
        with pytest.raises(BadInput, match="outside a prefix of 300"):
            rows.gather(0, [1, 300], out)
        with pytest.raises(BadInput, match="layers are 0 to 2"):
            rows.gather(3, [1, 2], out)
        with pytest.raises(BadSize, match="do not fit"):
            rows.gather(0, [1, 2, 3], out)
        with pytest.raises(BadInput, match="1 slots do not fit 2"):
            rows.gather(0, [1, 2], out, [0])
        with pytest.raises(BadInput, match="outside"):
            rows.gather(0, [1, 2], out, [0, 2])
        with pytest.raises(BadInput, match="contiguous u8"):
            rows.gather(0, [1, 2], out.float())
        assert (out == 0xEE).all()
        rows.gather(0, [], out[:0])
        rows.close()
        with pytest.raises(Closed):
            rows.gather(0, [1, 2], out)


@needs_gpu
def test_a_refused_mapping_goes_by_a_bounce_buffer(tmp_path: Path) -> None:
    import torch

    with prefix(tmp_path, 656) as reader, GpuRows(reader, device()) as rows:
        rows.mode = "bounce"
        out = torch.empty((9, 656), dtype=torch.uint8, device=device())
        rows.gather(2, range(9), out)
        assert np.array_equal(out.cpu().numpy(), rows_of(reader.layout, 5, 2, range(9)))


@pytest.mark.skipif(TRITON, reason="triton is installed")
def test_without_triton_one_line_names_what_is_missing(tmp_path: Path) -> None:
    with prefix(tmp_path, 656) as reader, pytest.raises(MissingExtra, match="torch and triton"):
        GpuRows(reader)


@needs_gpu
def test_a_refusal_is_not_left_to_the_next_launch() -> None:
    import torch

    memory = np.zeros(1 << 16, np.uint8)
    start = memory.ctypes.data
    some = [Range(start, start + memory.nbytes)]
    with closing(RegisteredMemory(some)):
        with pytest.raises(RegisterRefused):
            RegisteredMemory(some)
        assert int(torch.ones(4, device="cuda").sum()) == 4


def test_pages_are_registered_once_each() -> None:
    assert page_ranges([], 4096) == []
    near = [Range(4096, 8192), Range(8192, 8193), Range(100, 200), Range(40960, 40961)]
    assert page_ranges(near, 4096) == [Range(0, 12288), Range(40960, 45056)]
    assert page_ranges([Range(5, 5), Range(5000, 5001), Range(0, 20000)], 4096) == [Range(0, 20480)]


def test_ranges_hold_every_row_and_no_more(tmp_path: Path) -> None:
    memory = np.zeros((2, 100, 16), np.uint8)
    reader = guarded(memory, np.zeros(2, np.uint64))
    source = reader.source
    assert isinstance(source, TableSource)
    base = memory.ctypes.data
    assert unit_ranges(source) == [
        Range(base, base + 1600 + 64 * 16),
        Range(base + 64 * 16, base + 1600 + 1600),
    ]


def test_the_unit_that_moved_is_named() -> None:
    words = np.array([4, 5, 6], np.uint64)
    guards = Guards(words.view(np.uint8), np.array([16, 0], np.uint64), np.array([6, 4], np.uint64))
    assert moved_unit(guards) == -1
    words[1] = 9  # nobody's
    assert moved_unit(guards) == -1
    words[0] = 9
    assert moved_unit(guards) == 1
