"""Engines with LoRA adapters: an adapter's blocks are for that adapter, on every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.tiny import CONFIG
from tests.engines.test_vllm_pool import computed, prompt
from tests.engines.vllm_rig import MODEL_CHANGES, EngineProcess, Engines
from tests.faults.pool_rig import Rig

RANK = 8
LENGTH, WHOLE = 500, 480


def write_adapter(folder: Path, seed: int) -> Path:
    """PEFT's two files: random matrices beside the queries, keys and values of every layer, wide
    enough to change what the model says."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    hidden, head = MODEL_CHANGES["hidden_size"], MODEL_CHANGES["head_dim"]
    wide = {
        "q_proj": CONFIG["num_attention_heads"] * head,
        "k_proj": CONFIG["num_key_value_heads"] * head,
        "v_proj": CONFIG["num_key_value_heads"] * head,
    }
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(CONFIG["num_hidden_layers"]):
        for name, size in wide.items():
            base = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            shapes = {"lora_A": (RANK, hidden), "lora_B": (size, RANK)}
            for part, shape in shapes.items():
                tensor = torch.empty(shape).normal_(0, 0.3, generator=random)
                tensors[f"{base}.{part}.weight"] = tensor
    save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    told = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": list(wide),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return folder


@pytest.fixture
def adapters(tmp_path: Path) -> list[str]:
    return [str(write_adapter(tmp_path / name, seed)) for seed, name in enumerate(("one", "two"))]


def test_an_adapter_shares_its_blocks_with_itself_only(
    adapters: list[str], engines: Engines, rig: Rig
) -> None:
    """Two engines, two adapters and the bare model, one prompt."""
    options: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "max_lora_rank": RANK}
    names = ("lora a", "lora b")
    first, second = (engines.start(name, **options) for name in names)
    one, two = adapters
    known = prompt(800, LENGTH)
    (reference,) = computed(first, rig, known, adapter=one)
    answers = {one: reference["tokens"]}
    for other in (two, None):  # each is computed, though the pool has the prompt under `one`
        (answer,) = computed(second, rig, known, adapter=other)
        assert answer["cached"] == 0, other
        answers[other or ""] = answer["tokens"]
    assert len({tuple(answer) for answer in answers.values()}) == 3, "they all say the same"
    for engine, adapter in ((second, one), (first, two), (first, None)):
        loaded_again(engine, known, adapter, answers[adapter or ""])
    for name in names:
        engines.end(name)


def loaded_again(
    engine: EngineProcess, known: list[int], adapter: str | None, expected: list[int]
) -> None:
    """What the other engine has computed with this adapter comes from the pool, bit for bit."""
    before = engine.counters()["loaded_tokens"]
    (loaded,) = engine.generate(known, adapter=adapter)
    assert (loaded["cached"], loaded["tokens"]) == (WHOLE, expected)
    assert engine.counters()["loaded_tokens"] - before == WHOLE
    (local,) = engine.generate(known, adapter=adapter)
    assert local["cached"] == WHOLE and local["logprobs"] == loaded["logprobs"]
