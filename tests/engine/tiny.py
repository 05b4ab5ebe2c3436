"""A random little Llama with a byte-level tokenizer, made on the spot: what the engine's tests run.

Its weights are wide (0.12) and its embeddings untied on purpose: a narrow random model repeats one
token for ever whatever its cache holds, while here one wrong key changes the tokens that follow.

    python -m tests.engine.tiny FOLDER     # to look at, or to serve by hand
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SPECIAL = ("<|pad|>", "<|bos|>", "<|eos|>")
EOS = 2
VOCABULARY = 320  # 3 special tokens and 256 bytes, filled up to a multiple of 64

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": EOS,
}


def write_model(folder: Path, seed: int = 0, dtype: str = "bfloat16", **changes: Any) -> Path:
    """A whole Hugging Face directory: weights, config and tokenizer. `changes` are of CONFIG."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, "torch_dtype": dtype, **changes}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_weights(folder / "model.safetensors", config, seed)
    write_tokenizer(folder)
    return folder


def write_weights(path: Path, config: dict[str, Any], seed: int) -> None:
    """Random weights under the names that Hugging Face gives a Llama's."""
    import torch
    from safetensors.torch import save_file

    random = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, config["torch_dtype"])
    tensors = {
        name: (
            torch.ones(shape)
            if len(shape) == 1
            else torch.empty(shape).normal_(0, 0.12, generator=random)
        ).to(dtype)
        for name, shape in shapes(config).items()
    }
    save_file(tensors, str(path), metadata={"format": "pt"})


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of such a model."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden)
    }
    for number in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    found["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        found["lm_head.weight"] = (config["vocab_size"], hidden)
    return found


def write_tokenizer(folder: Path) -> None:
    """One token a byte: token counts of tests are easy to know, and any text can be encoded."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": SPECIAL[0],
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


if __name__ == "__main__":
    print(write_model(Path(sys.argv[1])))
