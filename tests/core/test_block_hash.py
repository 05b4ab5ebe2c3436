"""SHA-256, HMAC and the two block chains: the standards' vectors, hashlib, and golden vectors."""

import hashlib
import hmac
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from moonpool import _core
from moonpool.router.hashing import HASH_VERSION

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "hash.json").read_text())
MASK = 2**64 - 1
LANES = (0x6A09E667F3BCC908, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1)
FACTORS = (0x510E527FADE682D1, 0x9B05688C2B3E6C1F, 0x1F83D9ABFB41BD6B, 0x5BE0CD19137E2179)

Tokens = npt.NDArray[np.uint32]
TOKENS = hnp.arrays(np.uint32, st.integers(0, 200), elements=st.integers(0, 2**32 - 1))
BLOCK_SIZES = st.integers(1, 40)


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def fold(a: int, b: int) -> int:
    return a * b & MASK ^ a * b >> 64


def content(block: list[int]) -> int:
    """The routing chain's hash of one block, as native/block_hash.hpp defines it."""
    lanes = [LANES[0] + len(block) & MASK, *LANES[1:]]
    tokens = [*block, *[0] * (-len(block) % 4)]
    for pair in range(len(tokens) // 4):
        first, second = (tokens[at] | tokens[at + 1] << 32 for at in (4 * pair, 4 * pair + 2))
        k = pair % 4
        lanes[k] = fold(first ^ FACTORS[k], second ^ lanes[k])
    return fold(lanes[0], lanes[1]) ^ fold(lanes[2], lanes[3])


def blocks_of(tokens: Tokens, block_size: int, partial: bool) -> list[Tokens]:
    blocks = [tokens[at : at + block_size] for at in range(0, len(tokens), block_size)]
    return [block for block in blocks if partial or len(block) == block_size]


@pytest.mark.parametrize("vector", GOLDEN["sha256"], ids=lambda vector: str(vector["name"]))
def test_sha256_vectors(vector: dict[str, str]) -> None:
    assert _core.sha256(vector["data"].encode()).hex() == vector["digest"]


def test_sha256_of_a_million_letters() -> None:
    digest = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"
    assert _core.sha256(b"a" * 1_000_000).hex() == digest


@pytest.mark.parametrize("vector", GOLDEN["hmac"], ids=lambda vector: str(vector["name"]))
def test_hmac_vectors(vector: dict[str, str]) -> None:
    key, data = bytes.fromhex(vector["key"]), bytes.fromhex(vector["data"])
    assert _core.hmac_sha256(key, data).hex() == vector["digest"]


@given(st.binary(max_size=1000), st.binary(max_size=200))
def test_hashes_are_hashlibs(data: bytes, key: bytes) -> None:
    assert _core.sha256(data) == hashlib.sha256(data).digest()
    assert _core.hmac_sha256(key, data) == hmac.digest(key, data, "sha256")


@given(TOKENS, BLOCK_SIZES, st.booleans(), st.sampled_from([b"", bytes(range(32))]))
def test_the_content_chain_is_hashlibs(
    tokens: Tokens, block_size: int, partial: bool, parent: bytes
) -> None:
    digests = _core.block_hashes_sha256(tokens, block_size, parent, partial)
    for digest, block in zip(digests, blocks_of(tokens, block_size, partial), strict=True):
        parent = hashlib.sha256(parent + block.astype("<u4").tobytes()).digest()
        assert digest.tobytes() == parent


@given(TOKENS, BLOCK_SIZES, st.booleans(), st.integers(0, MASK))
def test_the_routing_chain_is_its_definition(
    tokens: Tokens, block_size: int, partial: bool, seed: int
) -> None:
    values = _core.block_hashes_u64(tokens, block_size, seed, partial)
    for value, block in zip(values, blocks_of(tokens, block_size, partial), strict=True):
        seed = mix(seed ^ content(block.tolist()))
        assert int(value) == seed


@pytest.mark.parametrize("vector", GOLDEN["chains"], ids=lambda vector: str(vector["name"]))
def test_chain_vectors(vector: dict[str, object]) -> None:
    tokens = np.array(vector["tokens"], np.uint32)
    size, partial = vector["block_size"], vector["partial"]
    assert isinstance(size, int) and isinstance(partial, bool)
    digests = _core.block_hashes_sha256(tokens, size, partial=partial)
    assert [digest.tobytes().hex() for digest in digests] == vector["sha256"]
    values = _core.block_hashes_u64(tokens, size, partial=partial)
    assert [f"{int(value):016x}" for value in values] == vector["u64"]


def test_the_vectors_are_of_the_version_that_routers_tell() -> None:
    assert GOLDEN["routing_version"] == HASH_VERSION


@given(st.integers(0, 19), st.integers(1, 2**32 - 1))
def test_one_changed_word_changes_its_block_and_all_after_it(at: int, change: int) -> None:
    tokens = np.arange(20, dtype=np.uint32)
    changed = tokens.copy()
    changed[at] ^= change
    same = _core.block_hashes_u64(tokens, 4) == _core.block_hashes_u64(changed, 4)
    assert same.tolist() == [block < at // 4 for block in range(5)]


def test_small_blocks_do_not_collide() -> None:
    first, second = np.meshgrid(np.arange(256, dtype=np.uint32), np.arange(256, dtype=np.uint32))
    pairs = np.stack([first.ravel(), second.ravel()], axis=1)
    values = {int(_core.block_hashes_u64(pair, 2)[0]) for pair in pairs}
    assert len(values) == len(pairs)


def test_arrays_have_their_shapes() -> None:
    tokens = np.zeros(10, np.uint32)
    digests, values = _core.block_hashes_sha256(tokens, 4), _core.block_hashes_u64(tokens, 4)
    assert digests.shape == (2, 32) and digests.dtype == np.dtype(np.uint8)
    assert values.shape == (2,) and values.dtype == np.dtype(np.uint64)
    assert _core.block_hashes_sha256(tokens[:3], 4).shape == (0, 32)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(TypeError):
        _core.block_hashes_u64(np.zeros(4, np.int64), 2)


@pytest.mark.parametrize("size", [0, -1])
def test_a_block_has_at_least_one_token(size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        _core.block_hashes_sha256(np.zeros(4, np.uint32), size)


def test_a_parent_is_a_digest() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        _core.block_hashes_sha256(np.zeros(4, np.uint32), 2, b"short")
