"""Block ids and raw ranges become checked offset and length arrays."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.core.errors import BadInput
from moonpool.transfer.layout import resolve
from tests.transfer.conftest import segment


def test_ids_become_offsets() -> None:
    layout = segment(1000).blocks(100, stride=150, offset=20)
    blocks = layout.resolve(np.array([3, 0, 5], dtype=np.int32))
    assert blocks.offsets.tolist() == [470, 20, 770]
    assert blocks.lengths.tolist() == [100, 100, 100]
    assert blocks.offsets.dtype == blocks.lengths.dtype == np.uint64


def test_count_is_the_whole_blocks_that_fit() -> None:
    assert segment(1000).blocks(100, stride=150, offset=20).count == 6
    assert segment(920).blocks(100, stride=150, offset=20).count == 6
    assert segment(869).blocks(100, stride=150, offset=20).count == 5
    assert segment(100).blocks(100).count == 1


def test_default_is_dense() -> None:
    layout = segment(1000).blocks(64)
    assert (layout.stride, layout.offset, layout.count, layout.nbytes) == (64, 0, 15, 960)


def test_one_int_is_one_block() -> None:
    assert segment(64).blocks(16).resolve(2).offsets.tolist() == [32]


def test_no_ids_are_no_blocks() -> None:
    assert len(segment(64).blocks(16).resolve([]).offsets) == 0
    assert len(segment(64).blocks(16).resolve(np.zeros(0, dtype=np.int64)).lengths) == 0


@pytest.mark.parametrize(
    "ids",
    [
        [-1],
        [4],
        [2**63],
        np.array([0.0]),
        np.array([True]),
        np.array([[0, 1]]),
        np.zeros(0),
        ["0"],
        [None],
        [2**70],
        [[0], [1, 2]],
        None,
        "ids",
        np.array([np.uint64(2**64 - 1)]),
    ],
    ids=repr,
)
def test_bad_ids_are_refused(ids: Any) -> None:
    with pytest.raises(BadInput):
        segment(64).blocks(16).resolve(ids)


@pytest.mark.parametrize(
    "shape",
    [
        {"block_bytes": 0},
        {"block_bytes": -1},
        {"block_bytes": 65},
        {"block_bytes": 8, "stride": 7},
        {"block_bytes": 8, "offset": -1},
        {"block_bytes": 8, "offset": 57},
        {"block_bytes": 8.0},
        {"block_bytes": True},
        {"block_bytes": 8, "stride": 2**64},
        {"block_bytes": 8, "name": "n" * 256},
    ],
    ids=repr,
)
def test_bad_layouts_are_refused(shape: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        segment(64).blocks(**shape)


def test_raw_ranges_pass_through() -> None:
    blocks = resolve(segment(64), ([0, 64, 10], [64, 0, 54]))
    assert blocks.offsets.tolist() == [0, 64, 10]
    assert blocks.lengths.tolist() == [64, 0, 54]


def test_none_means_all() -> None:
    assert resolve(segment(64), None).lengths.tolist() == [64]
    assert resolve(segment(64).blocks(16), None).offsets.tolist() == [0, 16, 32, 48]


@pytest.mark.parametrize(
    "ranges",
    [
        ([0], [65]),
        ([65], [0]),
        ([1], [64]),
        ([2**64 - 1], [2]),
        ([2], [2**64 - 1]),
        ([-1], [1]),
        ([0], [-1]),
        ([0, 1], [1]),
        [[0], [1]],
        ([0],),
        3,
        ([0.5], [1]),
    ],
    ids=repr,
)
def test_bad_ranges_are_refused(ranges: Any) -> None:
    with pytest.raises(BadInput):
        resolve(segment(64), ranges)


def test_a_named_layout_is_published() -> None:
    memory = segment(64)
    assert memory.layouts == {"kv": memory.blocks(16, name="kv")}


@given(st.data())
def test_blocks_lie_inside_and_apart(data: st.DataObject) -> None:
    nbytes = data.draw(st.integers(1, 4096))
    block = data.draw(st.integers(1, nbytes))
    stride = data.draw(st.integers(block, 5000))
    offset = data.draw(st.integers(0, nbytes - block))
    layout = segment(nbytes).blocks(block, stride=stride, offset=offset)
    blocks = resolve(layout, None)
    ends = blocks.offsets + blocks.lengths
    assert ends.max() <= nbytes
    assert (blocks.offsets[1:] >= ends[:-1]).all()
    assert int(ends.max()) + stride > nbytes or layout.count * stride + offset + block > nbytes
