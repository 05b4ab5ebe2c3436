"""Canonical keys: the golden format, the same everywhere, different whenever anything differs."""

import base64
import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moonpool.core.errors import BadInput, BadKey
from moonpool.core.keys import KeySpec

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "keys.json").read_text())
SPEC = KeySpec(model="org/model@1", dtype="bfloat16", layout="layer,token", block_size=4)
TEXT = st.text(max_size=3)
MAYBE = st.none() | TEXT
SPECS = st.builds(
    KeySpec,
    model=st.text(min_size=1, max_size=3),
    dtype=st.sampled_from(["bfloat16", "float16"]),
    layout=st.text(min_size=1, max_size=3),
    block_size=st.integers(1, 4),
    tp_size=st.just(4),
    tp_rank=st.integers(0, 3),
    pp_size=st.just(2),
    pp_rank=st.integers(0, 1),
    adapter=MAYBE,
    salt=MAYBE,
    tenant=MAYBE,
)


def prefix_by_hand(spec: KeySpec) -> bytes:
    """The prefix from the words of keys.py alone."""
    canonical = b"moonpool key specification 1\n"
    for name, value in msgspec.structs.asdict(spec).items():
        canonical += b"s" + struct.pack("<I", len(name)) + name.encode()
        if value is None:
            canonical += b"n"
        elif isinstance(value, int):
            canonical += b"i" + struct.pack("<q", value)
        else:
            canonical += b"s" + struct.pack("<I", len(value.encode())) + value.encode()
    digest = hashlib.sha256(canonical).digest()[:16]
    return b"/" + base64.urlsafe_b64encode(digest).rstrip(b"=") + b"/"


@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: str(vector["name"]))
def test_golden(vector: dict[str, Any]) -> None:
    keys = KeySpec(**vector["spec"]).keys(vector["tokens"])
    assert [key.decode() for key in keys] == vector["keys"]


@given(SPECS)
def test_the_prefix_follows_its_definition(spec: KeySpec) -> None:
    assert spec.prefix.startswith(b"mp1/") and spec.prefix.endswith(prefix_by_hand(spec))


@given(SPECS, st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_keys_are_prefix_and_chain(spec: KeySpec, tokens: list[int]) -> None:
    keys = spec.keys(tokens)
    assert len(keys) == len(tokens) // spec.block_size
    digest = b""
    for i, key in enumerate(keys):
        block = tokens[i * spec.block_size : (i + 1) * spec.block_size]
        digest = hashlib.sha256(digest + struct.pack(f"<{len(block)}I", *block)).digest()
        assert key == spec.prefix + base64.urlsafe_b64encode(digest).rstrip(b"=")
        assert spec.digest(key) == digest
        assert key.isascii() and key.decode().isprintable() and len(key) <= 87


@given(SPECS, SPECS)
def test_different_specifications_share_no_prefix(one: KeySpec, other: KeySpec) -> None:
    assume(one != other)
    assert not one.prefix.startswith(other.prefix) and not other.prefix.startswith(one.prefix)


def test_each_field_is_a_domain_of_its_own() -> None:
    """The same text as adapter, salt or tenant, None against "", and moved borders: all differ."""
    variants = [
        msgspec.structs.replace(SPEC, **changes)
        for changes in (
            {},
            {"adapter": "x"},
            {"salt": "x"},
            {"tenant": "x"},
            {"adapter": ""},
            {"salt": ""},
            {"adapter": "ab", "salt": "c"},
            {"adapter": "a", "salt": "bc"},
            {"salt": "0"},
            {"block_size": 8},
            {"tp_size": 2},
            {"tp_size": 2, "tp_rank": 1},
            {"pp_size": 2},
            {"dtype": "float16"},
        )
    ]
    assert len({spec.prefix for spec in variants}) == len(variants)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=24, max_size=30), st.integers(1, 5))
def test_a_grown_sequence_continues_from_its_last_key(tokens: list[int], blocks: int) -> None:
    keys = SPEC.keys(tokens)
    assert SPEC.keys(tokens[4 * blocks :], parent=keys[blocks - 1]) == keys[blocks:]


@pytest.mark.parametrize("seed", ["0", "4711", "random"])
def test_another_process_gives_the_same_keys(seed: str) -> None:
    program = (
        "from moonpool.core.keys import KeySpec\n"
        "spec = KeySpec(model='org/model@1', dtype='bfloat16', layout='layer,token',"
        " block_size=4)\n"
        "print(spec.keys(range(64)).blob.decode(), end='')"
    )
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    blob = subprocess.check_output([sys.executable, "-c", program], env=environment)
    assert blob == SPEC.keys(range(64)).blob


def test_the_salt_cannot_be_read_from_a_key() -> None:
    assert b"hunter2" not in msgspec.structs.replace(SPEC, salt="hunter2").prefix


def test_a_spec_survives_msgpack() -> None:
    packed = msgspec.msgpack.encode(SPEC)
    assert msgspec.msgpack.decode(packed, type=KeySpec).prefix == SPEC.prefix


@pytest.mark.parametrize(
    "changes",
    [
        {"model": ""},
        {"model": None},
        {"dtype": 7},
        {"layout": "x" * 4097},
        {"block_size": 0},
        {"block_size": True},
        {"tp_rank": 1},
        {"pp_rank": -1},
        {"salt": 5},
        {"adapter": "\ud800"},
        {"hash_version": 2},
    ],
    ids=str,
)
def test_nonsense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(changes))):
        msgspec.structs.replace(SPEC, **changes)


@pytest.mark.parametrize(
    "tokens",
    [[-1, 0, 0, 0], [2**32, 0, 0, 0], [1.5] * 4, [[1, 2], [3, 4]], ["a"] * 4, [2**70] * 4],
    ids=str,
)
def test_only_u32_tokens_have_keys(tokens: Any) -> None:
    with pytest.raises(BadInput, match="u32"):
        SPEC.keys(tokens)


def test_arrays_of_other_widths_give_the_same_keys() -> None:
    tokens = np.arange(8, dtype=np.uint32)
    assert SPEC.keys(tokens.astype(np.int64)) == SPEC.keys(tokens) == SPEC.keys(range(8))


def test_a_parent_of_another_specification_is_refused() -> None:
    (key,) = SPEC.keys(range(4))
    other = msgspec.structs.replace(SPEC, salt="x")
    for parent in (key[:-1], key[:-1] + b"*", key[:-1] + b"B", b"", other.keys(range(4))[0]):
        with pytest.raises(BadKey):
            SPEC.keys(range(4), parent=parent)
