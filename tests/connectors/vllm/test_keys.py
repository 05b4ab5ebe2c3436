"""Keys of an engine's blocks: alike for two engines that may share, never otherwise."""

import hashlib
from pathlib import Path

import msgspec
import pytest

from moonpool.connectors.vllm.fingerprint import adapter_fingerprint, model_fingerprint
from moonpool.connectors.vllm.keys import (
    CacheIdentity,
    GroupIdentity,
    KeySpaces,
    Shard,
    block_digests,
)
from moonpool.connectors.vllm.metadata import Namespace

GROUP = GroupIdentity(block_size=32, layout="vllm-0.32;cpu;LBHNC", dtype="bfloat16/auto")
IDENTITY = CacheIdentity(model="m@1", hashing="sha256", groups=(GROUP, GROUP), tp_size=2)
DIGEST = hashlib.sha256(b"a block").digest()


def key(identity: CacheIdentity = IDENTITY, **changes: object) -> bytes:
    choice = {"group": 0, "shard": Shard(), "namespace": Namespace(), **changes}
    (found,) = KeySpaces(identity).keys(digests=[DIGEST], **choice)  # type: ignore[arg-type]
    return found


def with_group(**changes: object) -> CacheIdentity:
    group = msgspec.structs.replace(GROUP, **changes)
    return msgspec.structs.replace(IDENTITY, groups=(group, GROUP))


def test_the_same_engine_elsewhere_makes_the_same_keys() -> None:
    assert key() == key(msgspec.json.decode(msgspec.json.encode(IDENTITY), type=CacheIdentity))


@pytest.mark.parametrize(
    "other",
    [
        {"identity": msgspec.structs.replace(IDENTITY, model="m@2")},
        {"identity": msgspec.structs.replace(IDENTITY, hashing="xxhash")},
        {"identity": msgspec.structs.replace(IDENTITY, tp_size=1)},
        {"identity": msgspec.structs.replace(IDENTITY, pp_size=2)},
        {"identity": msgspec.structs.replace(IDENTITY, tenant="t")},
        {"identity": with_group(dtype="float16/auto")},
        {"identity": with_group(layout="vllm-0.32;cpu;LBNHC")},
        {"identity": with_group(block_size=64)},
        {"group": 1},
        {"shard": Shard(tp_rank=1)},
        {"namespace": Namespace(adapter="x")},
        {"namespace": Namespace(salt="x")},
    ],
    ids=str,
)
def test_each_difference_makes_other_keys(other: dict[str, object]) -> None:
    changes = {name: value for name, value in other.items() if name != "identity"}
    identity = other.get("identity", IDENTITY)
    assert isinstance(identity, CacheIdentity)
    assert key(identity, **changes) != key()


def test_an_adapter_is_no_salt() -> None:
    assert key(namespace=Namespace(adapter="x")) != key(namespace=Namespace(salt="x"))


def test_shards_are_all_ranks() -> None:
    identity = msgspec.structs.replace(IDENTITY, pp_size=2)
    assert len(set(KeySpaces(identity).shards())) == 4


def test_digests_are_those_of_whole_blocks() -> None:
    hashes = [bytes([i]) * 32 for i in range(7)]
    assert block_digests(hashes, 1) == hashes
    assert block_digests(hashes, 2) == [hashes[1], hashes[3], hashes[5]]
    assert block_digests(hashes, 2, start=1) == [hashes[3], hashes[5]]
    assert block_digests(hashes, 1, start=7) == []


def test_short_hashes_are_stretched() -> None:
    (digest,) = block_digests([b"16 bytes of hash"], 1)
    assert digest == hashlib.sha256(b"16 bytes of hash").digest()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 4000)
    return tmp_path


CONFIGURATION = {"hidden_size": 64, "rope_theta": 1e4, "transformers_version": "5.1"}


def test_a_models_fingerprint_is_of_its_files(model: Path) -> None:
    first = model_fingerprint(str(model), None, CONFIGURATION, "bfloat16")
    newer = {**CONFIGURATION, "transformers_version": "5.2"}
    assert model_fingerprint(str(model) + "/", None, newer, "bfloat16") == first
    assert first.startswith(f"{model.name}@")


def test_other_weights_under_the_same_name(model: Path) -> None:
    first = model_fingerprint(str(model), None, CONFIGURATION, "bfloat16")
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    assert model_fingerprint(str(model), None, CONFIGURATION, "bfloat16") != first


@pytest.mark.parametrize("other", [({"rope_theta": 1e6}, "bfloat16"), ({}, "float16")])
def test_another_configuration(model: Path, other: tuple[dict[str, object], str]) -> None:
    first = model_fingerprint(str(model), None, CONFIGURATION, "bfloat16")
    assert model_fingerprint(str(model), None, {**CONFIGURATION, **other[0]}, other[1]) != first


def test_a_model_of_a_hub_is_its_revision() -> None:
    one, other = (model_fingerprint("org/m", r, {}, "bfloat16") for r in ("abc", "def"))
    assert one != other and one.startswith("m@")


def test_adapters_of_one_name(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "adapter_model.safetensors").write_bytes(folder.encode() * 9000)
    one, other = (adapter_fingerprint("x", str(tmp_path / folder)) for folder in "ab")
    assert one != other
    assert adapter_fingerprint("x", "nowhere") != adapter_fingerprint("y", "nowhere")
