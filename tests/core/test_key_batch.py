"""KeyBatch against a plain list of keys, and columns that do not describe keys."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.core.errors import BadKey
from moonpool.core.key_batch import KEY_BYTES_MAX, KeyBatch, validate_key

KEYS = st.lists(st.binary(min_size=1, max_size=20), max_size=12)
BOUND = st.integers(-15, 15) | st.none()


def ends(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(values, np.uint32)


@given(KEYS)
def test_a_batch_is_a_sequence_of_its_keys(keys: list[bytes]) -> None:
    batch = KeyBatch.from_keys(keys)
    assert list(batch) == keys and len(batch) == len(keys)
    assert [batch[i] for i in range(len(keys))] == keys


@given(KEYS)
def test_columns_carry_a_batch(keys: list[bytes]) -> None:
    batch = KeyBatch.from_keys(keys)
    again = KeyBatch(batch.blob, batch.ends.astype("<u4").tobytes())
    assert again == batch and hash(again) == hash(batch)


@given(KEYS, BOUND, BOUND, st.sampled_from([None, 1, 2, -1]))
def test_slices_are_those_of_a_list(
    keys: list[bytes], start: int | None, stop: int | None, step: int | None
) -> None:
    where = slice(start, stop, step)
    assert KeyBatch.from_keys(keys)[where] == KeyBatch.from_keys(keys[where])


@given(st.lists(KEYS, max_size=4))
def test_concat_joins(lists: list[list[bytes]]) -> None:
    joined = KeyBatch.concat(KeyBatch.from_keys(keys) for keys in lists)
    assert list(joined) == [key for keys in lists for key in keys]


@given(st.binary(max_size=40), st.lists(st.integers(0, 50), max_size=8))
def test_no_columns_pass_that_are_not_keys(blob: bytes, values: list[int]) -> None:
    starts = [0, *values]
    sound = starts[-1] == len(blob) and all(
        1 <= b - a <= KEY_BYTES_MAX for a, b in zip(starts, starts[1:], strict=False)
    )
    if sound:
        assert b"".join(KeyBatch(blob, ends(*values))) == blob
    else:
        with pytest.raises(BadKey):
            KeyBatch(blob, ends(*values))


def test_ends_of_another_shape_are_refused() -> None:
    with pytest.raises(BadKey, match="no column of u32"):
        KeyBatch(b"a", b"\x01\x00\x00")
    with pytest.raises(BadKey, match="u32"):
        KeyBatch(b"a", np.array([1], np.int64))


def test_a_batch_does_not_follow_its_callers_array() -> None:
    column = ends(1, 2)
    batch = KeyBatch(b"ab", column)
    column[0] = 2
    assert list(batch) == [b"a", b"b"]
    with pytest.raises(ValueError, match="read-only"):
        batch.ends[0] = 2


def test_an_index_outside_is_an_error() -> None:
    batch = KeyBatch.from_keys([b"a"])
    assert batch[-1] == b"a"
    for index in (1, -2):
        with pytest.raises(IndexError):
            batch[index]


@pytest.mark.parametrize("key", [b"", b"x" * (KEY_BYTES_MAX + 1), "text", None])
def test_what_is_no_key(key: bytes) -> None:
    with pytest.raises(BadKey):
        validate_key(key)
    with pytest.raises(BadKey):
        KeyBatch.from_keys([b"good", key])


def test_the_longest_key_is_one() -> None:
    assert validate_key(b"x" * KEY_BYTES_MAX) == b"x" * KEY_BYTES_MAX
