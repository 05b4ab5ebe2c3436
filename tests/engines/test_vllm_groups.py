"""A model with two KV groups, full attention and a sliding window, each with blocks of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.test_vllm_failures import SETTINGS, failed, flip
from tests.engines.test_vllm_pool import objects, prompt, tokens
from tests.engines.vllm_rig import EngineProcess, Engines, eventually, running_pool
from tests.faults.pool_rig import Rig

WINDOW = 128


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random and small; every second layer looks back over a window only."""
    import torch
    from transformers import Gemma2Config, Gemma2ForCausalLM

    folder = tmp_path_factory.mktemp("models") / "gemma"
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=320,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        sliding_window=WINDOW,
        query_pre_attn_scalar=64,
        initializer_range=0.12,
        attn_logit_softcapping=None,
        dtype="float32",
    )
    Gemma2ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pool() -> Iterator[Rig]:
    with running_pool() as rig:
        yield rig


@pytest.mark.filterwarnings("ignore")  # transformers', imported in this process
def test_both_groups_come_back(gemma: Path, pool: Rig, engines: Engines) -> None:
    engine = engines.start(
        "gemma", model=gemma, master=pool.address, skip_tokenizer_init=True, extra=SETTINGS
    )
    prompts = [prompt(700 + i, 300 + 111 * i) for i in range(4)]
    computed = engine.generate(*prompts)
    reference = tokens(computed)
    assert len({answer["logprobs"][0] for answer in computed}) == 4, "the model says one thing"
    blocks = sum(len(each) // 32 for each in prompts)
    eventually(lambda: objects(pool) >= 2 * blocks, "blocks of both groups")

    engine.call("reset")
    for each, expected in zip(prompts, reference, strict=True):
        (loaded,) = engine.generate(each)
        assert loaded["tokens"] == expected and loaded["cached"] == (len(each) - 1) // 32 * 32
        (local,) = engine.generate(each)
        assert local["cached"] == loaded["cached"] and local["logprobs"] == loaded["logprobs"]
    assert not failed(engine)
    corrupted(engine, pool, prompts, reference)


def corrupted(
    engine: EngineProcess, pool: Rig, prompts: list[list[int]], reference: list[list[int]]
) -> None:
    """With several groups vLLM hears of requests that failed, not of blocks."""
    assert flip(pool, every=3) > 0
    engine.call("reset")
    assert tokens(engine.generate(*prompts)) == reference
    assert failed(engine)["load_failed_blocks/corrupt"] > 0
