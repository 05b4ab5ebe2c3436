"""How a sparse prefix lies in objects of the pool: units of tokens, and a manifest under its key.

    unit object   [layer]{ latent rows of its tokens | index keys of its pages }
    its key       KEY NUL shape / number . tokens
    manifest      msgpack: layout, tokens, unit_tokens; then the hint, u32[layers, n]

The units are one chain and the manifest is its last link, so it goes with any of them: who finds
the manifest had, at that moment, the whole prefix. A unit's key says how its bytes are laid out:
what a shorter prefix, another layout or other units left under the same key is never taken for a
part of this one. Pure.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

import msgspec
import numpy as np

from moonpool.core.errors import BadInput, SegmentDamaged
from moonpool.sparse.layout import TOKENS_MAX, U8, U32, SparseLayout

MAGIC: Final = b"MPSP"
VERSION: Final = 1
UNITS_MAX: Final = 1 << 16  # what one frame can name
SEPARATOR: Final = b"\0"
_HEAD: Final = struct.Struct("<4sII")  # magic, version, bytes of the description


class Manifest(msgspec.Struct, frozen=True):
    """What a reader must know of a stored prefix."""

    layout: SparseLayout
    tokens: int
    unit_tokens: int
    hint_tokens: int = 0

    def __post_init__(self) -> None:
        """A manifest may be anybody's: what it says is looked at before memory is taken for it."""
        if self.unit_tokens < 1 or self.unit_tokens % self.layout.page_tokens:
            raise BadInput(f"units of {self.unit_tokens} tokens are no whole pages")
        if not 1 <= self.tokens <= TOKENS_MAX or self.units > UNITS_MAX:
            raise BadInput(f"{self.tokens} tokens are no prefix in units of {self.unit_tokens}")
        if not 0 <= self.hint_tokens <= TOKENS_MAX:
            raise BadInput(f"a hint of {self.hint_tokens} positions a layer is none")

    @property
    def units(self) -> int:
        return -(-self.tokens // self.unit_tokens)

    def tokens_in(self, unit: int) -> int:
        return min(self.unit_tokens, self.tokens - unit * self.unit_tokens)

    def latent_bytes(self, unit: int) -> int:
        """Of one layer in one unit."""
        return self.tokens_in(unit) * self.layout.entry_bytes

    def layer_bytes(self, unit: int) -> int:
        """Rows and keys of one layer in one unit: what lies between two layers."""
        pages = self.layout.pages(self.tokens_in(unit))
        return self.latent_bytes(unit) + pages * self.layout.index_page_bytes

    def unit_bytes(self, unit: int) -> int:
        return self.layout.layers * self.layer_bytes(unit)

    def column(self, of: str) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """`latent_bytes` or `layer_bytes` of every unit, u64[units]."""
        return np.array([getattr(self, of)(unit) for unit in range(self.units)], np.uint64)


def units_begin(key: bytes) -> bytes:
    """How the keys of all units of this prefix begin, and no others: no prefix has a NUL in its
    key. Raises BadInput for one that has."""
    if SEPARATOR in key:
        raise BadInput(f"the key of a prefix has no NUL byte: {key!r}")
    return key + SEPARATOR


def unit_keys(key: bytes, manifest: Manifest) -> list[bytes]:
    """Of every unit, in order."""
    layout = manifest.layout
    numbers = (layout.layers, layout.entry_bytes, layout.index_bytes, layout.page_tokens)
    shape = struct.pack("<5Q16s", *numbers, manifest.unit_tokens, layout.model_id)
    begin = units_begin(key) + hashlib.sha256(shape).hexdigest()[:12].encode()
    return [b"%s/%d.%d" % (begin, unit, manifest.tokens_in(unit)) for unit in range(manifest.units)]


def encode_manifest(manifest: Manifest, hint: U32 | None) -> bytes:
    body = msgspec.msgpack.encode(manifest)
    tail = b"" if hint is None else np.ascontiguousarray(hint, np.uint32).tobytes()
    return _HEAD.pack(MAGIC, VERSION, len(body)) + body + tail


def decode_manifest(data: bytes, name: str) -> tuple[Manifest, list[U32]]:
    """The manifest and its hint by layer. Raises SegmentDamaged for other objects."""
    if len(data) < _HEAD.size or data[:4] != MAGIC:
        raise SegmentDamaged(f"the object {name} is no sparse prefix")
    _, version, length = _HEAD.unpack_from(data)
    if version != VERSION:
        raise SegmentDamaged(f"{name} is a sparse prefix of version {version}, not {VERSION}")
    try:
        body = data[_HEAD.size : _HEAD.size + length]
        manifest = msgspec.msgpack.decode(body, type=Manifest)
        hint = np.frombuffer(data[_HEAD.size + length :], np.uint32)
        hint = hint.reshape(manifest.layout.layers, manifest.hint_tokens)
    except (msgspec.MsgspecError, BadInput, ValueError) as error:
        raise SegmentDamaged(f"{name} is no sparse prefix: {error}") from None
    columns = [column[column < manifest.tokens] for column in hint]
    return manifest, columns if manifest.hint_tokens else []


def as_hint(hint: object, layers: int) -> U32:
    """u32[layers, n]. Raises BadInput."""
    column = np.asarray(hint)
    if column.ndim != 2 or column.shape[0] != layers or column.dtype.kind not in "iu":
        raise BadInput(f"a hint is integers [{layers}, n], not {column.dtype} {column.shape}")
    return np.ascontiguousarray(column, np.uint32)


def whole_units(memory: U8, manifest: Manifest) -> list[U8]:
    """Cuts local memory of the prefix's size into its units."""
    sizes = [manifest.unit_bytes(unit) for unit in range(manifest.units)]
    ends = np.cumsum([0, *sizes]).tolist()
    return [memory[a:b] for a, b in zip(ends, ends[1:], strict=False)]
