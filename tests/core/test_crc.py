"""CRC-32C: known values, and that every implementation, split and copy agrees with them."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool import _core

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "crc32c.json").read_text())
PAYLOADS = st.binary(max_size=3000) | st.builds(
    lambda seed, size: np.random.default_rng(seed).bytes(size),
    st.integers(0, 2**32 - 1),
    st.integers(3000, 100_000),
)
IMPLEMENTATIONS = _core.crc32c_implementations()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: str(vector["name"]))
def test_golden(implementation: str, vector: dict[str, str]) -> None:
    data = bytes.fromhex(vector["data"])
    assert _core.crc32c_with(implementation, data) == int(vector["crc32c"], 16)


def test_the_fastest_is_in_use_and_portable_is_always_there() -> None:
    assert _core.crc32c_implementation() == IMPLEMENTATIONS[0]
    assert IMPLEMENTATIONS[-1] == "portable"


@given(PAYLOADS, st.integers(0, 2**32 - 1), st.integers(0, 63))
def test_implementations_agree(data: bytes, seed: int, shift: int) -> None:
    view = memoryview(bytes(shift) + data)[shift:]
    assert len({_core.crc32c_with(name, view, seed) for name in IMPLEMENTATIONS}) == 1


@given(PAYLOADS, st.data())
def test_a_split_continues_and_combines(data: bytes, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(data)))
    first, second = data[:cut], data[cut:]
    whole = _core.crc32c(data)
    assert _core.crc32c(second, _core.crc32c(first)) == whole
    assert _core.crc32c_combine(_core.crc32c(first), _core.crc32c(second), len(second)) == whole


@given(PAYLOADS, st.integers(0, 70), st.integers(0, 5))
def test_a_copy_equals_its_source(data: bytes, shift: int, room: int) -> None:
    out = bytearray(b"\xee" * (shift + len(data) + room))
    crc = _core.copy_crc32c(memoryview(out)[shift:], data, 5)
    assert crc == _core.crc32c(data, 5)
    assert out == b"\xee" * shift + data + b"\xee" * room


def test_a_large_copy_past_the_caches_equals_its_source() -> None:
    source = np.random.default_rng(11).integers(0, 256, (3 << 20) + 13, dtype=np.uint8)
    out = np.zeros_like(source)
    assert _core.copy_crc32c(out, source) == _core.crc32c_with("portable", source)
    assert np.array_equal(out, source)


def test_combining_with_nothing_changes_nothing() -> None:
    assert _core.crc32c_combine(0x1234, _core.crc32c(b""), 0) == 0x1234


def test_a_buffer_too_small_stays_as_it_was() -> None:
    out = bytearray(3)
    with pytest.raises(ValueError, match="4 bytes do not fit into a buffer of 3"):
        _core.copy_crc32c(out, b"abcd")
    assert out == bytes(3)


def test_overlapping_buffers_are_refused() -> None:
    memory = memoryview(bytearray(100))
    with pytest.raises(ValueError, match="overlap"):
        _core.copy_crc32c(memory[10:], memory[:20])


def test_a_read_only_destination_is_refused() -> None:
    with pytest.raises(BufferError):
        _core.copy_crc32c(bytes(4), b"abcd")


def test_strided_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        _core.crc32c(np.zeros((8, 8), np.uint8)[:, 1])
