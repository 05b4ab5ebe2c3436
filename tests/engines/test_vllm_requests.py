"""vLLM's own requests and hashes through our keys: what separates requests separates blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moonpool.connectors.vllm.identity import namespace_of
from moonpool.connectors.vllm.keys import KeySpaces, Shard, block_digests
from tests.connectors.vllm.engine_shapes import BLOCK, identity
from tests.engines.vllm_rig import EngineProcess, Engines

# vLLM, imported in this process, warns of its own dependencies.
pytestmark = pytest.mark.filterwarnings("ignore")

TOKENS = list(range(3, 3 + 3 * BLOCK))


def request(**options: Any) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    return Request(
        "r",
        TOKENS,
        SamplingParams(max_tokens=1),
        None,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
        **options,
    )


def keys(asked: Any) -> list[bytes]:
    digests = block_digests(asked.block_hashes, 1)
    assert len(digests) == 3
    return KeySpaces(identity()).keys(0, Shard(), namespace_of(asked), digests)


def adapter(folder: Path, content: bytes) -> Any:
    from vllm.lora.request import LoRARequest

    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(content * 9000)
    return LoRARequest("x", 1, str(folder))


def image(identifier: str) -> Any:
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    return MultiModalFeatureSpec(None, "image", identifier, PlaceholderRange(40, 20))


def test_equal_requests_have_equal_keys() -> None:
    assert keys(request()) == keys(request())


def test_salt_and_adapter_are_in_every_key(tmp_path: Path) -> None:
    lora = adapter(tmp_path / "one", b"1")
    options: list[dict[str, Any]] = [{}, {"cache_salt": "x"}, {"lora_request": lora}]
    found = [keys(request(**option)) for option in options]
    for block in range(3):
        assert len({each[block] for each in found}) == 3


def test_other_files_under_an_adapters_name_and_path(tmp_path: Path) -> None:
    """vLLM's hash has the path only."""
    from moonpool.connectors.vllm import identity as module

    first = keys(request(lora_request=adapter(tmp_path / "one", b"1")))
    module._adapter.cache_clear()  # another process, another day
    second = keys(request(lora_request=adapter(tmp_path / "one", b"2")))
    assert not set(first) & set(second)


def test_an_image_separates_from_where_it_stands_on() -> None:
    one, other = (keys(request(mm_features=[image(name)])) for name in ("cat", "dog"))
    assert one[0] == other[0] == keys(request())[0], "before the image nothing differs"
    assert one[1] != other[1] and one[2] != other[2]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "typo": (
        {"extra": {"mater": "h:1"}},
        "unknown setting in kv_connector_extra_config: 'mater'",
    ),
    "odd": ({"block_size": 48}, "No common block size for 48"),
}


@pytest.fixture(scope="module")
def refused(engines: Engines) -> dict[str, EngineProcess]:
    return {name: engines.start(name, **options) for name, (options, _) in REFUSED.items()}


@pytest.mark.parametrize("name", REFUSED)
def test_an_engine_that_cannot_work_does_not_start(
    name: str, refused: dict[str, EngineProcess]
) -> None:
    """Ours says which setting; a block size the backend cannot have is refused by vLLM itself."""
    with pytest.raises(AssertionError):
        refused[name].ready()
    assert REFUSED[name][1] in refused[name].log()
