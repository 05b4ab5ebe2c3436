"""Batches of keys on their way into messages."""

import numpy as np
import pytest

from moonpool._core import encode_keys, join_keys, pack_keys
from moonpool.pool import columns
from moonpool.pool.columns import check_ends, u32, unpack_keys


def test_keys_lie_back_to_back_with_their_ends() -> None:
    blob, ends = join_keys([b"a", b"", b"bcd"])
    assert (blob, np.frombuffer(ends, np.uint32).tolist()) == (b"abcd", [1, 1, 4])
    assert join_keys([]) == (b"", b"")


def test_packed_keys_come_out_as_they_went_in() -> None:
    keys = [b"x" * n for n in range(1, 200)]
    assert unpack_keys(columns.pack_keys(tuple(keys))) == keys


def test_what_is_not_bytes_is_refused() -> None:
    with pytest.raises(TypeError):
        join_keys([b"a", "b"])  # type: ignore[list-item]


@pytest.mark.parametrize("odd", [bytearray(b"b"), b"", "", b"x" * 1025, "\udc80", 5])
def test_plain_keys_are_told_from_others(odd: object) -> None:
    assert encode_keys(["tüxt", b"x" * 1024]) == ["tüxt".encode(), b"x" * 1024]
    assert encode_keys([b"a", odd]) is None
    assert pack_keys([b"a", odd]) is None


def test_text_is_packed_as_its_bytes_are() -> None:
    assert pack_keys(["tüxt", b"a"]) == join_keys(["tüxt".encode(), b"a"])


@pytest.mark.parametrize("ends", [[1, 3], [3, 2, 4], [4, 0, 4], []])
def test_ends_that_describe_no_batch_are_refused(ends: list[int]) -> None:
    with pytest.raises(ValueError, match="key"):
        check_ends(b"abcd", u32(np.array(ends, np.uint32).tobytes()))
