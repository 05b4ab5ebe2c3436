"""Engines whose blocks cannot be stored are refused with what to do, before anything is stored."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from moonpool.connectors.vllm.config import ConnectorConfig
from moonpool.connectors.vllm.identity import check_block_sizes, engine_view
from moonpool.core.errors import BadConfig


def test_blocks_are_whole_numbers_of_hashes() -> None:
    check_block_sizes([32, 64], 32)
    with pytest.raises(BadConfig, match="48 tokens are no multiple of the 32 .* --block-size"):
        check_block_sizes([32, 48], 32)


class FullAttentionSpec(SimpleNamespace):
    """Named as vLLM names it: that is what is looked at."""


class MambaSpec(SimpleNamespace):
    """A state, no blocks of tokens."""


@pytest.mark.parametrize(
    ("parallel", "kinds", "said"),
    [
        ({"decode_context_parallel_size": 2}, [FullAttentionSpec], "decode_context_parallel_size"),
        ({}, [FullAttentionSpec, MambaSpec], "this model also has MambaSpec"),
        ({}, [FullAttentionSpec, FullAttentionSpec], "48 tokens are no multiple of the 32"),
    ],
)
def test_engines_that_cannot_be_served(
    parallel: dict[str, int], kinds: list[type[SimpleNamespace]], said: str
) -> None:
    groups = [
        SimpleNamespace(kv_cache_spec=kind(block_size=size), layer_names=[f"layer.{size}"])
        for kind, size in zip(kinds, (32, 48), strict=False)
    ]
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel), kv_transfer_config=SimpleNamespace()
    )
    caches = SimpleNamespace(kv_cache_groups=groups, hash_block_size=32)
    with pytest.raises(BadConfig, match=said):
        engine_view(config, caches, ConnectorConfig())
