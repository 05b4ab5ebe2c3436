"""A Hugging Face directory: config.json, and weights in one or several safetensors files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moonpool.core.errors import BadModel, missing_extra
from moonpool.engine.model.config import ModelConfig, from_hugging_face

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "model.safetensors.index.json"


def read_directory(folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Raises BadModel."""
    if not (folder / "config.json").is_file():
        raise BadModel(
            f"{folder} has no config.json; give a Hugging Face directory (config.json, "
            "tokenizer.json, *.safetensors) or a .gguf file"
        )
    config = from_hugging_face(_json(folder / "config.json"), str(folder / "config.json"))
    weights: dict[str, Tensor] = {}
    for file in _files(folder):
        weights |= _tensors(file)
    return config, weights


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        named = sorted(set(_json(folder / INDEX).get("weight_map", {}).values()))
        files = [folder / str(name) for name in named]
    else:
        files = sorted(folder.glob("*.safetensors"))
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        absent = ", ".join(missing) or "*.safetensors"
        raise BadModel(
            f"{folder} has no weights: {absent} is missing; download the model again, whole "
            "(pickled .bin files are not read)"
        )
    return files


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise missing_extra("reading weights", "engine") from None
    try:
        with safe_open(str(file), framework="pt") as opened:
            return {name: opened.get_tensor(name).clone() for name in opened.keys()}
    except (SafetensorError, OSError) as error:
        raise BadModel(
            f"{file} cannot be read: {error}; it is cut off or no safetensors file, download it "
            "again"
        ) from None


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadModel(f"{file} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise BadModel(f"{file} holds no JSON object")
    return value
