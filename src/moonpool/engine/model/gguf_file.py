"""A GGUF file: quantised tensors are expanded, and named and ordered as Hugging Face has them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from moonpool.core.errors import BadModel, missing_extra
from moonpool.engine.gguf_metadata import TensorPlace, read_head
from moonpool.engine.model.config import ModelConfig, from_gguf

if TYPE_CHECKING:
    from torch import Tensor

_OUTSIDE: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_INSIDE: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def read_gguf(file: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Weights in bfloat16, which is more than any quantised file holds. Raises BadModel."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise missing_extra("reading GGUF files", "engine") from None
    if not file.is_file():
        raise BadModel(f"there is no file {file}")
    head = read_head(file)
    config = from_gguf(head.metadata, frozenset(head.tensors), str(file))
    data = np.memmap(file, np.uint8, mode="r")
    weights: dict[str, Tensor] = {}
    for name, place in head.tensors.items():
        known = _hugging_face_name(name, file)
        weights[known] = _expanded(data, name, place, _turning_heads(known, config), file)
    return config, weights


def _hugging_face_name(name: str, file: Path) -> str:
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _INSIDE:
        return f"model.layers.{parts[1]}.{_INSIDE[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _OUTSIDE:
        return f"{_OUTSIDE[parts[0]]}.{parts[1]}"
    raise BadModel(f"{file}: a Llama has no tensor {name!r}")


def _turning_heads(name: str, config: ModelConfig) -> int:
    """Heads whose rotary pairs the file keeps side by side; 0 where nothing turns."""
    if name.endswith("self_attn.q_proj.weight"):
        return config.heads
    return config.kv_heads if name.endswith("self_attn.k_proj.weight") else 0


def _expanded(
    data: npt.NDArray[np.uint8], name: str, place: TensorPlace, heads: int, file: Path
) -> Tensor:
    import gguf
    import torch

    try:
        kind = gguf.GGMLQuantizationType(place.kind)
        shape = gguf.quant_shape_to_byte_shape(place.shape, kind)
    except ValueError as error:
        raise BadModel(f"{file}: {name} has an unknown type or shape: {error}") from None
    end = place.offset + math.prod(shape)
    if end > len(data):
        raise BadModel(
            f"{file} cannot be read: {name} ends at byte {end} of {len(data)}; it is cut off, "
            "download it again"
        )
    try:
        values = gguf.dequantize(data[place.offset : end].reshape(shape), kind)
    except (NotImplementedError, ValueError) as error:
        raise BadModel(
            f"{file}: {name} is {kind.name}, which cannot be expanded: {error}"
        ) from None
    whole = torch.from_numpy(np.array(values, np.float32))
    if heads:  # pairs (0, 1), (2, 3), ... to halves (0, n/2), (1, n/2 + 1), ...
        rows, columns = whole.shape
        pairs = whole.view(heads, rows // heads // 2, 2, columns)
        whole = pairs.transpose(1, 2).reshape(rows, columns)
    return whole.to(torch.bfloat16)
