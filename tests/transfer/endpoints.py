"""Fixtures' material: two connected endpoints, and arrays the native calls take."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moonpool import _core

Bytes = npt.NDArray[np.uint8]


class Pair(NamedTuple):
    server: _core.Endpoint
    client: _core.Endpoint
    port: int
    connection: _core.Connection


def u64(*values: int) -> npt.NDArray[np.uint64]:
    return np.array(values, dtype=np.uint64)


def random_bytes(size: int, seed: int = 1) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@contextmanager
def connected(**options: int) -> Iterator[Pair]:
    server = _core.Endpoint(0, b"token", (), **options)
    client = _core.Endpoint(0, b"token", (), **options)
    port = server.listen_tcp()
    try:
        yield Pair(server, client, port, client.connect(f"127.0.0.1:{port}"))
    finally:
        client.close()
        server.close()


def done(op: _core.Op) -> _core.Op:
    assert op.wait(20_000)
    return op
