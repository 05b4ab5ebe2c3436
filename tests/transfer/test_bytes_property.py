"""Any block list over any transport: exactly the reference bytes, and nothing else touched."""

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.core.clock import ManualClock
from moonpool.transfer.base import Transfer, Transport
from moonpool.transfer.copying import CopyRunner
from moonpool.transfer.local import LocalTransport
from moonpool.transfer.sim import SimTransport
from moonpool.transfer.sim_link import SimLink
from tests.transfer.conftest import expected, segment, transfer


@st.composite
def block_lists(draw: st.DrawFn, nbytes: int = 5000) -> list[tuple[int, int, int]]:
    """(destination, source, length): destinations apart from each other, sources anywhere."""
    cuts = sorted(draw(st.lists(st.integers(0, nbytes), max_size=24)))
    blocks = []
    for start, end in zip(cuts[::2], cuts[1::2], strict=False):
        source = draw(st.integers(0, nbytes - (end - start)))
        blocks.append((start, source, end - start))
    return draw(st.permutations(blocks))


def transports() -> dict[str, Any]:
    link = SimLink(reorder=0.5, jitter_s=0.01, chunk_bytes=300)
    return {
        "inline": LocalTransport,
        "worker": lambda: LocalTransport(CopyRunner(inline_bytes=0)),
        "sim": lambda: SimTransport(ManualClock(time.monotonic()), 5, link),
    }


@pytest.mark.parametrize("name", sorted(transports()))
@pytest.mark.parametrize("kind", ["read", "write"])
@settings(max_examples=60)
@given(blocks=block_lists(), checksum=st.booleans())
def test_exactly_the_reference_bytes(
    name: str, kind: str, blocks: list[tuple[int, int, int]], checksum: bool
) -> None:
    near, far = segment(5000, 1), segment(5000, 2)
    if kind == "write":
        blocks = [(source, to, length) for to, source, length in blocks]
    check(transports()[name](), transfer(kind, near, far, blocks, checksum=checksum))


def check(transport: Transport, request: Transfer) -> None:
    want_near, want_far = expected(request, request.remote.array)  # type: ignore[union-attr]
    op = transport.submit(request)
    assert op.wait()
    assert op.check().nbytes == request.nbytes
    assert np.array_equal(request.local.array, want_near)
    assert np.array_equal(request.remote.array, want_far)  # type: ignore[union-attr]
    transport.close()
