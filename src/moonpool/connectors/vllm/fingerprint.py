"""What names the weights of a model, so that equal names with different weights never share.

Reads a little of each file; the same files give the same fingerprint on every machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

_SAMPLES = 16
_SAMPLE_BYTES = 4096
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
# Say nothing about the values computed, and differ between machines and releases.
_VOLATILE = {"_name_or_path", "_commit_hash", "transformers_version"}


def model_fingerprint(
    name: str, revision: str | None, configuration: Mapping[str, object], dtype: str
) -> str:
    """ "label@digest" of a model: its files when `name` is a folder or a file, else its hub name
    with the revision; and its configuration as the engine uses it (overrides included).

    The label is for people; the digest decides.
    """
    digest = hashlib.sha256(b"moonpool model 1\n")
    path = Path(name)
    if path.exists():
        _add_files(digest, [path] if path.is_file() else _weights(path))
    else:
        digest.update(f"hub {name}@{revision}\n".encode())
    kept = {key: value for key, value in configuration.items() if key not in _VOLATILE}
    digest.update(json.dumps(kept, sort_keys=True, default=str).encode())
    digest.update(f"\ndtype {dtype}\n".encode())
    label = name.rstrip("/").rsplit("/", 1)[-1]
    return f"{label}@{digest.hexdigest()[:32]}"


def adapter_fingerprint(name: str, path: str) -> str:
    """The same for a LoRA adapter: its name, and its files where they can be read."""
    digest = hashlib.sha256(b"moonpool adapter 1\n")
    folder = Path(path)
    if folder.is_dir():
        settings = [entry for entry in folder.iterdir() if entry.suffix == ".json"]
        _add_files(digest, sorted([*settings, *_weights(folder)]))
    else:
        digest.update(path.encode())
    return f"{name}@{digest.hexdigest()[:32]}"


def _weights(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.suffix in _WEIGHTS)


def _add_files(digest: hashlib._Hash, files: list[Path]) -> None:
    for file in files:
        size = file.stat().st_size
        digest.update(f"file {file.name} {size}\n".encode())
        with file.open("rb") as opened:
            for i in range(_SAMPLES):
                opened.seek(max(0, size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
                digest.update(opened.read(_SAMPLE_BYTES))
