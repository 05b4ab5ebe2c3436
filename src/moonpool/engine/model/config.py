"""The shape of a Llama: read from a Hugging Face config.json or from a GGUF file's metadata.

What the model cannot be computed without is refused here by name; it is never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from moonpool.core.errors import BadModel, did_you_mean

ARCHITECTURES: Final = ("LlamaForCausalLM",)
DTYPES: Final = ("float32", "bfloat16", "float16")


class RopeScaling(msgspec.Struct, frozen=True):
    """Llama 3's way to stretch the context: slow rotations are slowed by `factor`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides what the weights of one Llama mean. Sizes are numbers of elements."""

    vocabulary_size: int
    hidden_size: int
    inner_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    tied: bool = False
    """The output projection is the embedding table."""
    dtype: str = "bfloat16"
    """Element type the weights were saved in."""

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "hidden_size", "inner_size", "layers", "heads"):
            _positive(name, getattr(self, name))
        for name in ("kv_heads", "head_dim", "context_tokens"):
            _positive(name, getattr(self, name))
        if self.heads % self.kv_heads:
            raise BadModel(f"{self.heads} query heads do not split over {self.kv_heads} KV heads")
        if self.head_dim % 2:
            raise BadModel(f"head_dim = {self.head_dim} is odd: rotary embeddings turn pairs")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor such a model has, under Hugging Face's names."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm": (self.hidden_size,),
            "self_attn.q_proj": (queries, self.hidden_size),
            "self_attn.k_proj": (keys, self.hidden_size),
            "self_attn.v_proj": (keys, self.hidden_size),
            "self_attn.o_proj": (self.hidden_size, queries),
            "post_attention_layernorm": (self.hidden_size,),
            "mlp.gate_proj": (self.inner_size, self.hidden_size),
            "mlp.up_proj": (self.inner_size, self.hidden_size),
            "mlp.down_proj": (self.hidden_size, self.inner_size),
        }
        table = (self.vocabulary_size, self.hidden_size)
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": table}
        for number in range(self.layers):
            found |= {f"model.layers.{number}.{name}.weight": size for name, size in layer.items()}
        found["model.norm.weight"] = (self.hidden_size,)
        if not self.tied:
            found["lm_head.weight"] = table
        return found


def from_hugging_face(record: Mapping[str, Any], where: str) -> ModelConfig:
    """A config.json as it was parsed. Raises BadModel."""
    names = record.get("architectures") or ["(none)"]
    if names[0] not in ARCHITECTURES:
        raise BadModel(
            f"{where}: the architecture {names[0]} is not known here, only "
            f"{', '.join(ARCHITECTURES)}.{did_you_mean(names[0], ARCHITECTURES)}"
        )
    for name in ("attention_bias", "mlp_bias"):
        if record.get(name):
            raise BadModel(f"{where}: {name} is true; projections with a bias are not known here")
    if record.get("hidden_act", "silu") != "silu":
        raise BadModel(f"{where}: hidden_act is {record['hidden_act']!r}, only 'silu' is known")
    rope = record.get("rope_parameters") or record.get("rope_scaling") or {}
    heads = _integer(record, "num_attention_heads", where)
    hidden = _integer(record, "hidden_size", where)
    return ModelConfig(
        vocabulary_size=_integer(record, "vocab_size", where),
        hidden_size=hidden,
        inner_size=_integer(record, "intermediate_size", where),
        layers=_integer(record, "num_hidden_layers", where),
        heads=heads,
        kv_heads=record.get("num_key_value_heads") or heads,
        head_dim=record.get("head_dim") or hidden // heads,
        context_tokens=_integer(record, "max_position_embeddings", where),
        rope_theta=float(rope.get("rope_theta") or record.get("rope_theta") or 10_000.0),
        rope_scaling=_rope_scaling(rope, where),
        norm_eps=float(record.get("rms_norm_eps", 1e-6)),
        tied=bool(record.get("tie_word_embeddings", False)),
        dtype=_dtype(record.get("dtype") or record.get("torch_dtype") or "float32", where),
    )


def from_gguf(metadata: Mapping[str, Any], tensors: frozenset[str], where: str) -> ModelConfig:
    """The metadata of a GGUF file, and the names of its tensors. Raises BadModel."""
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise BadModel(f"{where}: the architecture {architecture!r} is not known here, only llama")
    if metadata.get("llama.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in tensors:
        raise BadModel(f"{where}: scaled rotary embeddings of GGUF files are not known here")

    def size(name: str) -> int:
        return _integer(metadata, f"llama.{name}", where)

    heads, hidden = size("attention.head_count"), size("embedding_length")
    return ModelConfig(
        vocabulary_size=len(metadata.get("tokenizer.ggml.tokens") or ()) or size("vocab_size"),
        hidden_size=hidden,
        inner_size=size("feed_forward_length"),
        layers=size("block_count"),
        heads=heads,
        kv_heads=metadata.get("llama.attention.head_count_kv") or heads,
        head_dim=metadata.get("llama.rope.dimension_count") or hidden // heads,
        context_tokens=size("context_length"),
        rope_theta=_float32(metadata.get("llama.rope.freq_base", 10_000.0)),
        norm_eps=_float32(metadata.get("llama.attention.layer_norm_rms_epsilon", 1e-5)),
        tied="output.weight" not in tensors,
        dtype="bfloat16",
    )


def _rope_scaling(rope: Mapping[str, Any], where: str) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise BadModel(f"{where}: rope_type {kind!r} is not known here, only 'llama3'")
    return RopeScaling(
        _number(rope, "factor", where),
        _number(rope, "low_freq_factor", where),
        _number(rope, "high_freq_factor", where),
        _integer(rope, "original_max_position_embeddings", where),
    )


def _dtype(name: str, where: str) -> str:
    name = name.removeprefix("torch.")
    if name not in DTYPES:
        raise BadModel(f"{where}: the dtype {name!r} is not known here, only {', '.join(DTYPES)}")
    return name


def _float32(value: float) -> float:
    """A number that went through float32, as a person had written it: 1e-05, not 9.9999997e-06."""
    return float(f"{value:.6g}")


def _integer(record: Mapping[str, Any], name: str, where: str) -> int:
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadModel(f"{where}: {name} is {value!r}, a whole number is needed")
    return value


def _number(record: Mapping[str, Any], name: str, where: str) -> float:
    value = record.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadModel(f"{where}: {name} is {value!r}, a number is needed")
    return float(value)


def _positive(name: str, value: int) -> None:
    if not isinstance(value, int) or value < 1:
        raise BadModel(f"a model's {name} is at least 1, not {value!r}")
