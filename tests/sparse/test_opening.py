"""Files of a sparse pool: opened again, foreign, damaged, of another model; where pages lie."""

from pathlib import Path

import numpy as np
import pytest

from moonpool.core.errors import (
    BadInput,
    LayoutMismatch,
    SegmentDamaged,
)
from moonpool.sparse import SparseLayout, SparsePool
from moonpool.sparse.segment_format import HEADER_BYTES
from tests.sparse.stamped import SMALL, rows_of, small_pool, write


def test_another_opening_reads_the_same(tmp_path: Path) -> None:
    with small_pool(tmp_path, devices=2) as pool:
        write(pool, "a", 3, 100)
        with SparsePool.open(pool.paths, SMALL, writable=False) as other:
            with other.reader("a") as reader:
                out = np.empty((2, 656), np.uint8)
                reader.gather(1, [99, 0], out)
                assert np.array_equal(out, rows_of(SMALL, 3, 1, [99, 0]))
            with pytest.raises(BadInput, match="opened for reading"):
                other.writer("b", 10)


def test_pages_lie_where_the_interleaving_says(tmp_path: Path) -> None:
    def devices_of(name: str, interleave: str) -> list[list[int]]:
        (tmp_path / name).mkdir()
        with small_pool(tmp_path / name, devices=2, interleave=interleave) as pool:
            for number in range(2):
                write(pool, f"p{number}", number, 4 * 64)
            owners, pages = pool._tables.owners, pool.geometry.pages
            return [(np.flatnonzero(owners == n) // pages).tolist() for n in range(2)]

    assert devices_of("n", "none") == [[0] * 4, [0] * 4]
    assert devices_of("r", "request") == [[0] * 4, [1] * 4]
    assert devices_of("p", "page") == [[0, 0, 1, 1]] * 2


def test_a_full_device_does_not_make_the_pool_full(tmp_path: Path) -> None:
    with small_pool(tmp_path, 512, devices=2, interleave="none") as pool:
        write(pool, "a", 1, 512)
        with pool.reader("a") as reader:
            out = np.empty((512, 656), np.uint8)
            reader.read_layer(0, out)
            assert np.array_equal(out, rows_of(SMALL, 1, 0, range(512)))


def test_a_pool_of_another_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    SparsePool.create(path, SparseLayout(2, 656, model="one"), 64).close()
    SparsePool.open(path, SparseLayout(2, 656, model="one")).close()
    with pytest.raises(LayoutMismatch, match="another model"):
        SparsePool.open(path, SparseLayout(2, 656, model="two"))
    with pytest.raises(LayoutMismatch, match="entry_bytes 656, not 1152"):
        SparsePool.open(path, SparseLayout(2, 1152, model="one"))


def test_files_that_are_no_segment_are_refused(tmp_path: Path) -> None:
    with small_pool(tmp_path, devices=2) as pool:
        good, second = pool.paths
    with pytest.raises(SegmentDamaged, match="2 devices, 1 were named"):
        SparsePool.open(good)
    with pytest.raises(SegmentDamaged, match="not device 0"):
        SparsePool.open([second, good])
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"x" * (4 << 20))
    with pytest.raises(SegmentDamaged, match="no sparse segment"):
        SparsePool.open(foreign)
    with pytest.raises(SegmentDamaged, match="cannot be opened"):
        SparsePool.open(tmp_path / "absent")
    short = tmp_path / "short"
    short.write_bytes(good.read_bytes()[:-4096])
    with pytest.raises(SegmentDamaged, match="truncated"):
        SparsePool.open([short, second])
    tiny = tmp_path / "tiny"
    tiny.write_bytes(good.read_bytes()[:100])
    with pytest.raises(SegmentDamaged, match="no sparse segment"):
        SparsePool.open(tiny)
    for at in (8, 12, 300, HEADER_BYTES - 1):
        bent = bytearray(good.read_bytes())
        bent[at] ^= 1
        short.write_bytes(bent)
        with pytest.raises(SegmentDamaged):
            SparsePool.open([short, second])
    with pytest.raises(BadInput, match="exists already"):
        small_pool(tmp_path)
