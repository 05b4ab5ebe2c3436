"""Pools, near and far, and two engines that share one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moonpool.pool.pool import Pool
from tests.connectors.vllm.engine_shapes import linked
from tests.connectors.vllm.worker_rig import Engine
from tests.faults.pool_rig import MIB, Rig, running


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=1, memory=32 * MIB) as rig:
        yield rig


@pytest.fixture(params=["in this memory", "over TCP"])
def pool(request: pytest.FixtureRequest, rig: Rig) -> Iterator[Pool]:
    if request.param == "in this memory":
        with Pool.local("32MiB") as pool:
            yield pool
        return
    far = rig.connect(shared_memory=False)
    far.remove([item.key for item in far.list()])
    yield far


@pytest.fixture
def one(pool: Pool) -> Iterator[Engine]:
    engine = Engine(linked(pool), seed=1)
    yield engine
    engine.close()


@pytest.fixture
def two(pool: Pool) -> Iterator[Engine]:
    engine = Engine(linked(pool), seed=2)
    yield engine
    engine.close()
