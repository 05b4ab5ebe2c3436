from typing import Any, cast

import numpy as np
import pytest

from moonpool.core.errors import BadInput, BadSize
from moonpool.sparse import BF16_ROW_BYTES, FP8_ROW_BYTES, SparseLayout, full_bytes, local_bytes
from moonpool.sparse.layout import as_positions, as_rows, lines_of


def test_bytes_of_the_published_model() -> None:
    """docs/sparse.md: 61 layers, 128K tokens: 5.24 GB FP8, 9.21 GB BF16, 1.06 GB of index keys."""
    fp8, bf16 = (SparseLayout(61, row) for row in (FP8_ROW_BYTES, BF16_ROW_BYTES))
    assert full_bytes(fp8, 131072) == 61 * 131072 * (656 + 132)
    assert round(61 * 131072 * 656 / 1e9, 2) == 5.24
    assert round(61 * 131072 * 1152 / 1e9, 2) == 9.21
    assert bf16.token_bytes == 61 * 1284
    assert fp8.page_bytes == 64 * 656
    assert fp8.page_bytes % 64 == 0  # pages are line-aligned without padding


def test_local_bytes_of_a_request() -> None:
    layout = SparseLayout(61, 656)
    assert local_bytes(layout, 4096, 131072) == 61 * (4096 * 656 + 131072 * 132)


def test_pages_and_lines() -> None:
    layout = SparseLayout(1, 656)
    assert [layout.pages(n) for n in (0, 1, 64, 65)] == [0, 1, 1, 2]
    assert lines_of(2048, 656) == 2048 * 11
    assert lines_of(1, 1152) == 18


@pytest.mark.parametrize(
    "fields",
    [
        {"layers": 0},
        {"entry_bytes": 0},
        {"entry_bytes": 1 << 21},
        {"index_bytes": -1},
        {"page_tokens": 0},
        {"layers": True},
    ],
)
def test_layouts_that_make_no_sense(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        SparseLayout(**cast(Any, {"layers": 1, "entry_bytes": 656, **fields}))


def test_what_differs_is_named() -> None:
    ours = SparseLayout(61, 656, model="a")
    assert ours.differences(ours, ours.model_id) == ""
    other = SparseLayout(61, 1152)
    assert ours.differences(other, ours.model_id) == "entry_bytes 1152, not 656"
    assert "another model" in ours.differences(ours, other.model_id)


@pytest.mark.parametrize(
    ("positions", "text"),
    [
        ([0, 100], "position 100 .entry 1. is outside a prefix of 100"),
        ([3, -1], "position -1 .entry 1. is negative"),
        ([1.5], "integers"),
        ([[1]], "one column"),
        (["a"], "integers"),
    ],
)
def test_bad_positions_are_named(positions: object, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        as_positions(positions, 100)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint16", "uint32"])
def test_positions_of_any_integer_type(dtype: str) -> None:
    column = as_positions(np.array([5, 3, 5], dtype)[::-1], 6)
    assert column.dtype == np.uint32
    assert column.tolist() == [5, 3, 5]
    assert len(as_positions([], 0)) == 0


def test_destinations_are_checked() -> None:
    assert as_rows(np.zeros((4, 8), np.uint8), 4, 8).nbytes == 32
    assert as_rows(bytearray(32), 4, 8).nbytes == 32
    with pytest.raises(BadSize, match="4 rows of 8 bytes are 32 bytes, the buffer has 31"):
        as_rows(bytearray(31), 4, 8)
    with pytest.raises(BadInput):
        as_rows(b"x" * 32, 4, 8)
    with pytest.raises(BadInput):
        as_rows(np.zeros((8, 8), np.uint8)[:, :4], 4, 8)
    with pytest.raises(BadInput):
        as_rows(None, 4, 8)
