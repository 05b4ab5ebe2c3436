"""What a GGUF file says about itself: its metadata, and where its tensors lie.

Read here and not by the `gguf` package: that one makes a NumPy array of every word of the
vocabulary, which takes seconds, and an engine needs it at each start.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

from moonpool.core.errors import BadModel

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)  # 1 had other lengths; big-endian files show as none of these
_STRING, _ARRAY = 8, 9
_NUMBERS: Final[dict[int, struct.Struct]] = {
    number: struct.Struct("<" + letter)
    for number, letter in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
_LENGTH: Final = struct.Struct("<Q")
_KIND: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<4sIQQ")


_ALIGNMENT: Final = 32  # of the tensors, unless the file names another
_DIMENSIONS_MAX: Final = 8


class TensorPlace(NamedTuple):
    """One tensor: `shape` as NumPy has it, `kind` in GGML's numbers, where its bytes begin."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class Head(NamedTuple):
    """All before the tensors' bytes; arrays are lists."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorPlace]


def read_metadata(path: Path) -> dict[str, Any]:
    """Every entry by name. Raises BadModel for what is no whole GGUF file."""
    return read_head(path).metadata


def read_head(path: Path) -> Head:
    """Raises BadModel for what is no whole GGUF file. The tensors' own sizes are not looked at."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).head()
    except OSError as error:
        raise BadModel(f"{path} cannot be read: {error.strerror}") from None
    except (struct.error, ValueError, RecursionError) as error:
        raise BadModel(
            f"{path} cannot be read: {error}; it is cut off or no GGUF file, download it again"
        ) from None


class _Reader:
    """A position in the file. Raises struct.error past its end, ValueError for nonsense."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def head(self) -> Head:
        magic, version, tensors, count = _HEAD.unpack_from(self._data)
        self._at = _HEAD.size
        if magic != _MAGIC or version not in _VERSIONS:
            raise ValueError(f"it begins with {magic!r}, version {version}")
        metadata = {self._string(): self._value(self._number(_KIND)) for _ in range(count)}
        places = {self._string(): self._place() for _ in range(tensors)}
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"an alignment of {alignment!r}")
        start = -(-self._at // alignment) * alignment
        return Head(metadata, {n: p._replace(offset=start + p.offset) for n, p in places.items()})

    def _place(self) -> TensorPlace:
        """Its offset still counted from where the tensors begin."""
        dimensions = self._number(_KIND)
        if dimensions > _DIMENSIONS_MAX:
            raise ValueError(f"a tensor of {dimensions} dimensions")
        shape = tuple(self._number(_LENGTH) for _ in range(dimensions))
        return TensorPlace(shape[::-1], self._number(_KIND), self._number(_LENGTH))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(self._number(_KIND), self._number(_LENGTH))
        return self._number(_form(kind))

    def _array(self, kind: int, count: int) -> list[Any]:
        if count > len(self._data):  # an item has at least one byte
            raise ValueError(f"an array of {count} items")
        if kind in (_STRING, _ARRAY):
            return [self._value(kind) for _ in range(count)]
        form = struct.Struct(f"<{count}{_form(kind).format[1:]}")
        values = list(form.unpack_from(self._data, self._at))
        self._at += form.size
        return values

    def _number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return value

    def _string(self) -> str:
        length = self._number(_LENGTH)
        end = self._at + length
        if end > len(self._data):
            raise ValueError(f"a text of {length} bytes")
        text = self._data[self._at : end].decode("utf-8")
        self._at = end
        return text


def _form(kind: int) -> struct.Struct:
    if kind not in _NUMBERS:
        raise ValueError(f"a value of kind {kind}")
    return _NUMBERS[kind]
