"""What a cached prefix looks like to sparse attention: rows, pages, index keys. Pure arithmetic.

    latent rows   [layer][page][page_tokens rows of entry_bytes]
    index keys    [layer][page][page_tokens * index_bytes]   (keys and scales as the caller likes)

A row is the cache entry of one token in one layer. Rows are not padded: 64 rows of any size fill
whole cache lines, so pages are line-aligned.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.core.errors import BadInput, BadSize

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]

FP8_ROW_BYTES: Final = 656  # 512 e4m3, 4 fp32 scales, 64 bf16 (DeepSeek-V3.2)
BF16_ROW_BYTES: Final = 1152  # 576 bf16
INDEX_KEY_BYTES: Final = 132  # 128 e4m3 and one fp32 scale
CACHE_LINE: Final = 64
TOKENS_MAX: Final = 1 << 31
_ROW_BYTES_MAX: Final = 1 << 20
_LAYERS_MAX: Final = 4096


class SparseLayout(msgspec.Struct, frozen=True):
    """Sizes of one model's rows. `model` is a name that both sides must share ("" fits "" only).

    `index_bytes` 0: the prefix has no index keys. Raises BadInput for what no segment can hold.
    """

    layers: int
    entry_bytes: int
    index_bytes: int = INDEX_KEY_BYTES
    page_tokens: int = 64
    model: str = ""

    def __post_init__(self) -> None:
        _within("layers", self.layers, 1, _LAYERS_MAX)
        _within("entry_bytes", self.entry_bytes, 1, _ROW_BYTES_MAX)
        _within("index_bytes", self.index_bytes, 0, _ROW_BYTES_MAX)
        _within("page_tokens", self.page_tokens, 1, 65536)

    @property
    def page_bytes(self) -> int:
        """Latent rows of one page in one layer."""
        return self.page_tokens * self.entry_bytes

    @property
    def index_page_bytes(self) -> int:
        return self.page_tokens * self.index_bytes

    @property
    def token_bytes(self) -> int:
        """Rows and keys of one token in all layers."""
        return self.layers * (self.entry_bytes + self.index_bytes)

    @property
    def model_id(self) -> bytes:
        """16 bytes that stand for the model's name in metadata."""
        return hashlib.sha256(self.model.encode()).digest()[:16]

    def pages(self, tokens: int) -> int:
        """Pages that hold so many tokens, the last one perhaps in part."""
        return -(-tokens // self.page_tokens)

    def differences(self, other: SparseLayout, model_id: bytes) -> str:
        """'entry_bytes 656, not 1152; ...' of memory that says `other` of model `model_id`, or ''
        when its rows are what this layout expects."""
        names = ("layers", "entry_bytes", "index_bytes", "page_tokens")
        parts = [
            f"{name} {getattr(other, name)}, not {getattr(self, name)}"
            for name in names
            if getattr(self, name) != getattr(other, name)
        ]
        if self.model_id != model_id:
            parts.append("another model's rows")
        return "; ".join(parts)


def local_bytes(layout: SparseLayout, rows: int, tokens: int) -> int:
    """What a request keeps in local memory: `rows` hot rows a layer, and all index keys."""
    return layout.layers * (rows * layout.entry_bytes + tokens * layout.index_bytes)


def full_bytes(layout: SparseLayout, tokens: int) -> int:
    """The same without on-demand reads: every row and every key."""
    return tokens * layout.token_bytes


def lines_of(rows: int, entry_bytes: int) -> int:
    """Cache lines that so many scattered rows touch."""
    return rows * -(-entry_bytes // CACHE_LINE)


def as_positions(positions: Any, tokens: int) -> U32:
    """Token positions as u32[n], contiguous; order and repeats are the caller's business. Raises
    BadInput for what is no integer column, or names a token outside 0..tokens-1."""
    column = np.asarray(positions)
    if column.ndim != 1 or (column.size and column.dtype.kind not in "iu"):
        raise BadInput(f"positions are one column of integers, not {column.dtype} {column.shape}")
    if column.size == 0:
        return np.zeros(0, np.uint32)
    if column.dtype.kind == "i" and int(column.min()) < 0:
        at = int(column.argmin())
        raise BadInput(f"position {int(column[at])} (entry {at}) is negative")
    if int(column.max()) >= tokens:
        at = int(column.argmax())
        raise BadInput(
            f"position {int(column[at])} (entry {at}) is outside a prefix of {tokens} tokens"
        )
    return np.ascontiguousarray(column, np.uint32)


def as_rows(buffer: Any, rows: int, row_bytes: int) -> U8:
    """A writable destination of exactly `rows` rows, as flat bytes of the caller's memory.

    Raises BadSize for another size, BadInput for memory that cannot be written in place.
    """
    if isinstance(buffer, np.ndarray):
        if not (buffer.flags.c_contiguous and buffer.flags.writeable):
            raise BadInput("the destination of rows must be contiguous and writable")
        flat: U8 = buffer.reshape(-1).view(np.uint8)
    else:
        try:
            flat = np.frombuffer(memoryview(buffer).cast("B"), np.uint8)
        except (BufferError, TypeError) as error:
            raise BadInput(f"the destination of rows is no buffer: {error}") from None
        if not flat.flags.writeable:
            raise BadInput("the destination of rows must be writable")
    if flat.nbytes != rows * row_bytes:
        raise BadSize(
            f"{rows} rows of {row_bytes} bytes are {rows * row_bytes} bytes, "
            f"the buffer has {flat.nbytes}"
        )
    return flat


def as_bytes(rows: Any, count: int, row_bytes: int, what: str) -> U8:
    """A readable source of exactly `count` rows, as flat bytes. Raises BadSize, BadInput."""
    if isinstance(rows, np.ndarray):
        flat: U8 = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
    else:
        try:
            flat = np.frombuffer(memoryview(rows).cast("B"), np.uint8)
        except (BufferError, TypeError) as error:
            raise BadInput(f"{what} are no buffer: {error}") from None
    if flat.nbytes != count * row_bytes:
        raise BadSize(
            f"{count} {what} of {row_bytes} bytes are {count * row_bytes} bytes, not {flat.nbytes}"
        )
    return flat


def _within(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadInput(f"{name} must be {low} to {high}, not {value!r}")
