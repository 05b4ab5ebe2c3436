"""SmolLM2-135M-Instruct for vLLM: a Hugging Face directory out of the GGUF file of its package."""

from __future__ import annotations

import json
from pathlib import Path

from moonpool.engine.gguf_tokenizer import read_tokenizer
from moonpool.engine.model.weights import load
from moonpool.engine.model_files import SMOLLM2, locate


def write_smollm2(folder: Path) -> Path:
    """Weights and configuration only; `encode` makes the tokens."""
    from safetensors.torch import save_file

    folder.mkdir()
    config, weights = load(locate(SMOLLM2))
    save_file(dict(weights), str(folder / "model.safetensors"), metadata={"format": "pt"})
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "vocab_size": config.vocabulary_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.inner_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_tokens,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied,
    }
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def encode(text: str) -> list[int]:
    return read_tokenizer(locate(SMOLLM2)).encode(text)


def decode(tokens: list[int]) -> str:
    return read_tokenizer(locate(SMOLLM2)).decode(tokens)
