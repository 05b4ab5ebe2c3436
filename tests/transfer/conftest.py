"""Seams the transfer tests share: segments with known bytes, checked transfers, the reference."""

import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from moonpool.transfer.base import U64, OpState, Transfer
from moonpool.transfer.op import Op
from moonpool.transfer.segment import Segment


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    """Where the engines of a module put their sockets: short, since a socket's path is."""
    with tempfile.TemporaryDirectory(prefix="mp-") as path:
        yield path


def stamped(nbytes: int, seed: int = 1) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Bytes that no other seed or place has."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def segment(nbytes: int, seed: int = 1, name: str = "memory") -> Segment:
    return Segment(stamped(nbytes, seed), name=name)


def u64(values: Any) -> U64:
    return np.array(values, dtype=np.uint64)


def state_of(op: Op) -> OpState:
    """As op.state, but a checker does not take it for the same at the next look."""
    return op.state


def transfer(
    kind: str,
    local: Segment,
    remote: Any,
    blocks: list[tuple[int, int, int]],
    *,
    deadline_s: float | None = None,
    checksum: bool = True,
) -> Transfer:
    """A transfer of (local offset, remote offset, length) triples."""
    triples = np.array(blocks, dtype=np.uint64).reshape(-1, 3)
    near, far, lengths = (np.ascontiguousarray(triples[:, i]) for i in range(3))
    deadline_s = time.monotonic() + 5.0 if deadline_s is None else deadline_s
    return Transfer(
        kind, local, near, remote, far, lengths, int(lengths.sum()), deadline_s, checksum
    )


def expected(request: Transfer, remote_bytes: Any) -> tuple[Any, Any]:
    """What both memories must hold afterwards, by the plainest possible code."""
    near, far = request.local.array.copy(), np.array(remote_bytes, copy=True)
    dst, src = (near, far) if request.kind == "read" else (far, near)
    dst_offsets, src_offsets = (
        (request.local_offsets, request.remote_offsets)
        if request.kind == "read"
        else (request.remote_offsets, request.local_offsets)
    )
    for to, start, length in zip(
        dst_offsets.tolist(), src_offsets.tolist(), request.lengths.tolist(), strict=True
    ):
        dst[to : to + length] = src[start : start + length]
    return near, far
