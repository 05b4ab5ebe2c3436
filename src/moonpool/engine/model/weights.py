"""Weights from files, checked before the first token: nothing missing, nothing cut off.

A model is a Hugging Face directory (config.json, *.safetensors) or one GGUF file. Tensors are
copied out of the files, so that no file needs to stay, and come under Hugging Face's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from moonpool.core.errors import BadModel
from moonpool.engine.model.config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor


class Checkpoint(NamedTuple):
    """A model as its files have it."""

    config: ModelConfig
    weights: dict[str, Tensor]


def load(path: Path) -> Checkpoint:
    """The model at `path`. Raises BadModel with what is wrong and what to do."""
    if path.suffix == ".gguf":
        from moonpool.engine.model.gguf_file import read_gguf

        config, weights = read_gguf(path)
    else:
        from moonpool.engine.model.hf_directory import read_directory

        config, weights = read_directory(path)
    check(config, weights, path)
    return Checkpoint(config, weights)


def check(config: ModelConfig, weights: Mapping[str, Tensor], path: Path) -> None:
    """Every tensor that the configuration needs is there with its shape. Raises BadModel."""
    import torch

    wanted = config.shapes()
    missing = [name for name in wanted if name not in weights]
    if missing:
        raise BadModel(
            f"{path} has no {missing[0]}"
            + (f" and {len(missing) - 1} more tensors" if len(missing) > 1 else "")
            + "; the download is not whole, or the configuration belongs to another model"
        )
    for name, shape in wanted.items():
        tensor = weights[name]
        if tuple(tensor.shape) != shape:
            raise BadModel(
                f"{path}: {name} has shape {list(tensor.shape)}, the configuration says "
                f"{list(shape)}; the configuration belongs to another model"
            )
        if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise BadModel(
                f"{path}: {name} is {str(tensor.dtype).removeprefix('torch.')}; only float32, "
                "bfloat16 and float16 weights are known here (or a quantised GGUF file)"
            )
