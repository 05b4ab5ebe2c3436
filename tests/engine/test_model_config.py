"""What a model's own description says of it, and what is refused."""

from typing import Any

import pytest

from moonpool.core.errors import BadModel
from moonpool.engine.model.config import ModelConfig, RopeScaling, from_gguf, from_hugging_face
from tests.engine.tiny import CONFIG

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.rope.freq_base": 100_000.0,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "tokenizer.ggml.tokens": ["a", "b"],
}


def read(**changes: Any) -> ModelConfig:
    return from_hugging_face({**CONFIG, **changes}, "config.json")


def test_a_config_json() -> None:
    config = read()
    assert (config.heads, config.kv_heads, config.head_dim, config.layers) == (4, 2, 32, 3)
    assert not config.tied and config.dtype == "bfloat16"


def test_what_older_files_leave_out() -> None:
    config = read(num_key_value_heads=None, head_dim=None, hidden_size=128)
    assert (config.kv_heads, config.head_dim) == (4, 32)


def test_newer_files_keep_rotation_in_a_record() -> None:
    config = read(rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert config.rope_theta == 5e5


def test_llama3_rotation() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    assert read(rope_scaling=scaling).rope_scaling == RopeScaling(8.0, 1.0, 4.0, 256)


def test_gguf_metadata() -> None:
    config = from_gguf(METADATA, frozenset({"token_embd.weight"}), "a.gguf")
    assert (config.vocabulary_size, config.heads, config.kv_heads, config.head_dim) == (2, 9, 3, 64)
    assert config.norm_eps == 1e-5 and config.tied
    assert not from_gguf(METADATA, frozenset({"output.weight"}), "a.gguf").tied


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not known"),
        ({"architectures": ["LlamaForCausalM"]}, "Did you mean 'LlamaForCausalLM'"),
        ({"architectures": None}, r"\(none\)"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "yarn"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor is None, a number is needed"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"num_hidden_layers": 0}, "layers is at least 1"),
        ({"num_key_value_heads": 3}, "do not split"),
        ({"head_dim": 33}, "odd"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadModel, match=says):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"general.architecture": "qwen2"}, "'qwen2'"),
        ({"llama.rope.scaling.type": "yarn"}, "scaled"),
        ({"llama.block_count": "many"}, "block_count"),
    ],
)
def test_what_is_refused_of_gguf(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadModel, match=says):
        from_gguf({**METADATA, **changes}, frozenset(), "a.gguf")
