"""Rows of any size, with and without index keys, in memory, in a file and on a device."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from moonpool.core.errors import SegmentDamaged
from moonpool.pool.pool import Pool
from moonpool.sparse import HotBuffer, PrefixStore, SparseLayout, SparsePool, SparseReader
from tests.faults.pool_rig import MIB
from tests.sparse.stamped import index_of, rows_of, write

TOKENS = 300
LAYOUTS = [
    SparseLayout(layers=2, entry_bytes=entry, index_bytes=index)
    for entry, index in ((656, 132), (1152, 132), (160, 36), (1, 0), (7, 3), (4096, 1))
]


@pytest.fixture(params=["memory", "file"])
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    place = "/dev/shm" if request.param == "memory" else None
    with tempfile.TemporaryDirectory(prefix="moonpool-sparse-", dir=place) as name:
        yield Path(name)


def check(reader: SparseReader, layout: SparseLayout) -> None:
    random = np.random.default_rng(layout.entry_bytes)
    hot = HotBuffer(layout, 64, second_rows=30)
    for layer in range(layout.layers):
        positions = random.integers(0, TOKENS, 60)
        wanted = rows_of(layout, 3, layer, positions)
        out = np.empty((60, layout.entry_bytes), np.uint8)
        reader.gather(layer, positions, out)
        assert np.array_equal(out, wanted)
        found = hot.resolve(reader, layer, positions)
        assert np.array_equal(hot.rows[layer][found.slots], wanted)
        whole = np.empty((TOKENS, layout.entry_bytes), np.uint8)
        reader.read_layer(layer, whole)
        assert np.array_equal(whole, rows_of(layout, 3, layer, range(TOKENS)))
    if layout.index_bytes:
        for layer, keys in reader.load_index():
            assert np.array_equal(keys, index_of(layout, 3, layer, TOKENS))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: str(one.entry_bytes))
def test_rows_of_any_size_in_files(folder: Path, layout: SparseLayout) -> None:
    with SparsePool.create([folder / "one", folder / "two"], layout, 512) as pool:
        write(pool, "p", 3, TOKENS)
        with SparsePool.open(pool.paths, layout, writable=False) as other:
            with other.reader("p") as reader:
                check(reader, layout)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: str(one.entry_bytes))
def test_rows_of_any_size_in_objects(layout: SparseLayout) -> None:
    with Pool.local("16MiB", headroom=8 * MIB) as pool:
        store = PrefixStore(pool, layout, 128)
        with store.writer("p", TOKENS) as writer:
            for layer in range(layout.layers):
                index = index_of(layout, 3, layer, TOKENS) if layout.index_bytes else None
                writer.put(layer, 0, rows_of(layout, 3, layer, range(TOKENS)), index)
            writer.seal()
        for transport in ("shm", "tcp", "full"):
            with store.reader("p", transport) as reader:
                check(reader, layout)


def test_a_device_is_taken_as_it_is_and_never_removed(tmp_path: Path) -> None:
    """One that keeps nothing, since there is no other here: what was formatted is not there."""
    device = tmp_path / "device"
    try:
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # as /dev/zero
        device.open("r+b", buffering=0).close()
    except OSError as error:
        pytest.skip(f"no device node can be made or opened here: {error}")
    with pytest.raises(SegmentDamaged, match="no sparse segment"):
        SparsePool.create(device, LAYOUTS[0], 256)
    assert stat.S_ISCHR(device.stat().st_mode)
