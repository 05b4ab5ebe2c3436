"""Keys and batches of them: one blob and where each key ends. This room says what a key is.

A key is 1 to 1024 bytes of any value. Nothing here knows how a key came about; keys.py does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from moonpool.core.errors import BadKey

KEY_BYTES_MAX = 1024
BLOB_BYTES_MAX = 2**32 - 1
"""What u32 ends can describe."""

Ends = npt.NDArray[np.uint32]


def validate_key(key: bytes) -> bytes:
    """The key itself. Raises BadKey when it is not bytes, is empty or too long."""
    if not isinstance(key, bytes):
        raise BadKey(f"a key is bytes, not {type(key).__name__}; encode text first")
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise BadKey(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}: {key[:40]!r}")
    return key


class KeyBatch(Sequence[bytes]):
    """Immutable keys in order: `blob` holds them back to back, `ends` is u32[n], the end of each.

    A sequence of bytes for whoever wants one; two columns for the wire and the native table.
    """

    __slots__ = ("blob", "ends")

    blob: bytes
    ends: Ends

    def __init__(self, blob: bytes = b"", ends: Ends | bytes = b"") -> None:
        """From columns that another process may have written: `ends` as u32 array or its bytes.

        Raises BadKey unless the ends cut the whole blob into keys of 1 to 1024 bytes.
        """
        self.blob = blob
        self.ends = _checked_ends(blob, ends)

    @classmethod
    def from_keys(cls, keys: Iterable[bytes]) -> KeyBatch:
        """Raises BadKey for the first key that is none."""
        listed = [validate_key(key) for key in keys]
        lengths = np.fromiter(map(len, listed), np.uint64, len(listed))
        if (total := int(lengths.sum())) > BLOB_BYTES_MAX:
            raise BadKey(f"{total} bytes of keys in one batch; send them in several")
        return cls._trusted(b"".join(listed), lengths.cumsum().astype(np.uint32))

    @classmethod
    def concat(cls, batches: Iterable[KeyBatch]) -> KeyBatch:
        parts = list(batches)
        if (total := sum(len(part.blob) for part in parts)) > BLOB_BYTES_MAX:
            raise BadKey(f"{total} bytes of keys in one batch; send them in several")
        ends, offset = [np.empty(0, np.uint32)], 0
        for part in parts:
            ends.append(part.ends + np.uint32(offset))
            offset += len(part.blob)
        return cls._trusted(b"".join(part.blob for part in parts), np.concatenate(ends))

    @classmethod
    def _trusted(cls, blob: bytes, ends: Ends) -> KeyBatch:
        batch = cls.__new__(cls)
        batch.blob = blob
        ends.flags.writeable = False
        batch.ends = ends
        return batch

    def key(self, i: int) -> bytes:
        """The i-th key; negative counts from the end. Raises IndexError."""
        count = len(self)
        at = i + count if i < 0 else i
        if not 0 <= at < count:
            raise IndexError(f"key {i} of a batch of {count}")
        start = int(self.ends[at - 1]) if at else 0
        return self.blob[start : int(self.ends[at])]

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> KeyBatch: ...
    def __getitem__(self, index: int | slice) -> bytes | KeyBatch:
        if not isinstance(index, slice):
            return self.key(index)
        start, stop, step = index.indices(len(self))
        if step != 1:
            return KeyBatch.from_keys(self.key(i) for i in range(start, stop, step))
        if start >= stop:
            return KeyBatch()
        begin = int(self.ends[start - 1]) if start else 0
        ends = self.ends[start:stop] - np.uint32(begin)
        return self._trusted(self.blob[begin : begin + int(ends[-1])], ends)

    def __iter__(self) -> Iterator[bytes]:
        start = 0
        for end in self.ends.tolist():
            yield self.blob[start:end]
            start = end

    def __len__(self) -> int:
        return len(self.ends)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyBatch):
            return NotImplemented
        return self.blob == other.blob and np.array_equal(self.ends, other.ends)

    def __hash__(self) -> int:
        return hash((self.blob, self.ends.tobytes()))

    def __repr__(self) -> str:
        return f"KeyBatch({len(self)} keys, {len(self.blob)} bytes)"


def _checked_ends(blob: bytes, ends: Ends | bytes) -> Ends:
    if isinstance(ends, bytes):
        if len(ends) % 4:
            raise BadKey(f"{len(ends)} bytes of key ends are no column of u32")
        ends = np.frombuffer(ends, "<u4").astype(np.uint32, copy=False)
    if ends.dtype != np.uint32 or ends.ndim != 1:
        raise BadKey(f"key ends are u32[n], not {ends.dtype}{list(ends.shape)}")
    wide = ends.astype(np.int64)
    lengths = np.diff(wide, prepend=0)
    wrong = np.flatnonzero((lengths < 1) | (lengths > KEY_BYTES_MAX))
    if len(wrong):
        first = int(wrong[0])
        raise BadKey(f"key {first} of {len(ends)} would have {int(lengths[first])} bytes")
    covered = int(wide[-1]) if len(wide) else 0
    if covered != len(blob):
        raise BadKey(f"key ends cover {covered} bytes of a blob of {len(blob)}")
    if ends.flags.writeable:
        ends = ends.copy()
        ends.flags.writeable = False
    return ends
