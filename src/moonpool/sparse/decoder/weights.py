"""The small decoder's weights: a file of named arrays, and the ones that come with the package."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.core.errors import BadModel
from moonpool.sparse.decoder.shape import DecoderShape
from moonpool.sparse.layout import SparseLayout

F32 = NDArray[np.float32]
PACKAGED: Final = "recall.npz"


class LayerWeights(NamedTuple):
    """Of one layer; shapes are those of DecoderShape.tensors."""

    norm: F32
    query: F32
    down: F32
    latent_norm: F32
    up_key: F32
    up_value: F32
    out: F32
    inner_norm: F32
    gate: F32
    up: F32
    back: F32
    index_query: F32
    index_key: F32
    index_weight: F32


class Weights(NamedTuple):
    shape: DecoderShape
    embeddings: F32
    shift: F32
    layers: tuple[LayerWeights, ...]
    norm: F32
    name: str
    """Names these values and no others; part of the layout of their prefixes."""

    @property
    def layout(self) -> SparseLayout:
        return self.shape.layout(self.name)


def assemble(shape: DecoderShape, arrays: Mapping[str, NDArray[Any]]) -> Weights:
    """Raises BadModel for what is missing or of another shape."""
    digest = hashlib.sha256(msgspec.json.encode(shape))
    found: dict[str, F32] = {}
    for name, wanted in shape.tensors().items():
        array = arrays.get(name)
        if array is None or array.shape != wanted:
            have = "nothing" if array is None else str(array.shape)
            raise BadModel(f"the decoder's {name} should be {wanted}, there is {have}")
        found[name] = np.ascontiguousarray(array, np.float32)
        digest.update(found[name].tobytes())
    layers = tuple(
        LayerWeights(*(found[f"layers.{number}.{name}"] for name in LayerWeights._fields))
        for number in range(shape.layers)
    )
    mark = digest.hexdigest()[:16]
    return Weights(
        shape, found["embeddings"], found["shift"], layers, found["norm"], f"small-decoder@{mark}"
    )


def save(path: Path, shape: DecoderShape, arrays: Mapping[str, NDArray[Any]]) -> None:
    """In float16, which is what decoding reads again."""
    described = np.frombuffer(msgspec.json.encode(shape), np.uint8)
    halves: dict[str, Any] = {name: a.astype(np.float16) for name, a in arrays.items()}
    np.savez_compressed(path, shape=described, **halves)


def load(path: Path) -> Weights:
    """Raises BadModel for what is no such file."""
    try:
        # Opened here: of what is no archive numpy would leave the file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        shape = msgspec.json.decode(arrays.pop("shape").tobytes(), type=DecoderShape)
    except Exception as error:  # of zip, of deflate, of numpy: what damage does has no common base
        raise BadModel(f"{path} has no weights of the small decoder: {error}") from None
    return assemble(shape, arrays)


def packaged() -> Weights:
    """Trained by `python -m moonpool.sparse.training`; see docs/sparse.md."""
    return load(Path(str(files("moonpool.sparse.decoder") / PACKAGED)))
