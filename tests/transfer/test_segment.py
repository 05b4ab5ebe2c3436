"""Segments: any contiguous memory, never a copy."""

import mmap
from typing import Any

import numpy as np
import pytest

from moonpool.core.errors import BadInput, Closed
from moonpool.transfer.segment import Segment


@pytest.mark.parametrize(
    "memory",
    [
        bytearray(24),
        memoryview(bytearray(24)),
        mmap.mmap(-1, 24),
        np.zeros((2, 3), dtype=np.float32),
        np.zeros(3, dtype="datetime64[ns]"),
    ],
    ids=lambda memory: type(memory).__name__,
)
def test_any_contiguous_memory_is_taken_without_a_copy(memory: Any) -> None:
    segment = Segment(memory, name="m")
    segment.array[5] = 77
    assert segment.nbytes == 24
    assert (memory.tobytes() if isinstance(memory, np.ndarray) else bytes(memory))[5] == 77


def test_read_only_memory_needs_to_say_so() -> None:
    with pytest.raises(BadInput, match="writable=False"):
        Segment(b"abc", name="m")
    assert bytes(Segment(b"abc", name="m", writable=False).buffer) == b"abc"


@pytest.mark.parametrize(
    "memory",
    [np.zeros((4, 4))[:, 1], "text", 7, None, np.array([object()])],
    ids=lambda memory: type(memory).__name__,
)
def test_what_is_no_memory_is_refused(memory: Any) -> None:
    with pytest.raises(BadInput):
        Segment(memory, name="m")


def test_empty_memory_is_a_segment_of_no_bytes() -> None:
    assert Segment(bytearray(), name="m").nbytes == 0


@pytest.mark.parametrize("name", ["", "n" * 256, 7, None])
def test_bad_names_are_refused(name: Any) -> None:
    with pytest.raises(BadInput):
        Segment(bytearray(1), name=name)


def test_leaving_the_block_closes_once() -> None:
    closed: list[Segment] = []
    with Segment(bytearray(8), name="m", on_close=closed.append) as segment:
        segment.require_open()
    segment.close()
    assert closed == [segment]
    with pytest.raises(Closed):
        segment.require_open()
