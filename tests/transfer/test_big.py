"""Lengths and offsets beyond 2^32, without the memory that would take."""

import tempfile

import numpy as np
import pytest

from moonpool.core.errors import BadInput
from moonpool.transfer.engine import Engine
from tests.transfer.aliased import aliased
from tests.transfer.conftest import stamped

KIB, BIG = 1024, 2**32


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_offsets_beyond_four_gibibytes(transport: str) -> None:
    # Zero pages are shared until written: only the blocks that move take memory.
    size = BIG + 64 * KIB
    with (
        tempfile.TemporaryDirectory(prefix="mp-") as folder,
        Engine(dir=folder) as owner,
        Engine(dir=folder) as engine,
    ):
        theirs = owner.register(np.zeros(size, dtype=np.uint8), "big")
        theirs.array[BIG : BIG + KIB] = stamped(KIB, 3)
        far = engine.connect(owner.listen()).segment("big")
        near = engine.register(np.zeros(size, dtype=np.uint8))
        assert far.nbytes == size
        op = engine.read(near, (BIG + 5, KIB), far, (BIG, KIB), transport=transport)
        assert op.wait() and op.check().nbytes == KIB
        assert np.array_equal(near.array[BIG + 5 : BIG + 5 + KIB], stamped(KIB, 3))
        with pytest.raises(BadInput, match="outside"):
            engine.read(near, (0, size + 1), far, (0, size + 1))


def test_one_block_of_more_than_four_gibibytes() -> None:
    size = BIG + (16 << 20)
    with (
        aliased(size) as source,
        aliased(size) as target,
        tempfile.TemporaryDirectory(prefix="mp-") as folder,
        Engine(dir=folder) as owner,
        Engine(dir=folder) as engine,
    ):
        source[: 16 << 20] = stamped(16 << 20, 4)
        owner.register(source, "big", writable=False)
        far = engine.connect(owner.listen()).segment("big")
        near = engine.register(target)
        op = engine.read(near, None, far, None, transport="tcp", deadline=150, checksum=False)
        assert op.wait() and op.check().nbytes == size
        assert np.array_equal(target[BIG:], source[BIG:])
