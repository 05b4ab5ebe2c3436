"""Packing and unpacking the columns of messages: numpy on this side, bytes on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from moonpool._core import join_keys
from moonpool.pool.messages import NO_SEGMENT as NO_SEGMENT
from moonpool.pool.messages import KeyColumn


def pack_keys(keys: Sequence[bytes]) -> KeyColumn:
    return KeyColumn(*join_keys(keys if type(keys) is list else list(keys)))


def unpack_keys(column: KeyColumn) -> list[bytes]:
    """Raises ValueError when the ends do not describe the blob."""
    ends = u32(column.ends)
    check_ends(column.blob, ends)
    blob = column.blob
    starts = [0, *ends.tolist()]
    return [blob[a:b] for a, b in zip(starts, starts[1:], strict=False)]


def check_ends(blob: bytes, ends: npt.NDArray[np.uint32]) -> None:
    if len(ends) == 0:
        if blob:
            raise ValueError(f"{len(blob)} bytes of keys without ends")
        return
    if ends[-1] != len(blob) or (ends[1:] < ends[:-1]).any():
        raise ValueError(f"key ends do not describe a blob of {len(blob)} bytes")


def u8(column: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(column, np.uint8)


def u16(column: bytes) -> npt.NDArray[np.uint16]:
    return np.frombuffer(column, np.uint16)


def u32(column: bytes) -> npt.NDArray[np.uint32]:
    return np.frombuffer(column, np.uint32)


def i32(column: bytes) -> npt.NDArray[np.int32]:
    return np.frombuffer(column, np.int32)


def u64(column: bytes) -> npt.NDArray[np.uint64]:
    return np.frombuffer(column, np.uint64)


def i64(column: bytes) -> npt.NDArray[np.int64]:
    return np.frombuffer(column, np.int64)


def replica_starts(counts: npt.NDArray[np.uint8]) -> list[int]:
    """Where each object's replicas begin in the flattened columns, plus the end."""
    return [0, *accumulate(counts.tolist())]
