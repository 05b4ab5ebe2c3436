"""Small reads of one process by another on this host, waited for one by one, keep both on one CPU;
anything else lets the owner's I/O thread go where the kernel wants it. With one CPU: skipped.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from moonpool.transfer.engine import Engine
from moonpool.transfer.peer import Peer
from tests.transfer.conftest import stamped
from tests.transfer.owner import BLOCK, KV_BYTES, KV_SEED, Owner, wait_until

KV = stamped(KV_BYTES, KV_SEED).reshape(-1, BLOCK)
STEADY = 32  # questions until both ends are sure, and some
CPUS = os.sched_getaffinity(0)

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU only")


@pytest.fixture
def owner(folder: str) -> Iterator[Owner]:
    with Owner(folder) as owner:
        yield owner


@pytest.fixture
def engine(folder: str) -> Iterator[Engine]:
    with Engine(dir=folder, connect_timeout_ms=10_000) as engine:
        yield engine


def read(engine: Engine, peer: Peer, times: int) -> None:
    segment = engine.allocate(2 * BLOCK)
    near, far = segment.blocks(BLOCK), peer.segment("kv").blocks(BLOCK)
    memory = segment.array.reshape(-1, BLOCK)
    for i in range(times):
        ids = np.array([2 * i, 2 * i + 1]) % len(KV)
        op = engine.read(near, np.arange(2), far, ids, transport="tcp")
        op.wait()
        op.check()
        np.testing.assert_array_equal(memory, KV[ids])
        assert os.sched_getaffinity(0) == CPUS


def io_cpus(owner: Owner) -> set[int]:
    tasks = Path(f"/proc/{owner.pid}/task")
    (io,) = (
        int(one.name) for one in tasks.iterdir() if (one / "comm").read_text() == "moonpool-io\n"
    )
    return os.sched_getaffinity(io)


def until_held(owner: Owner, engine: Engine, peer: Peer) -> None:
    # On a busy machine a wait may begin too late to count, and both start over.
    def held() -> bool:
        read(engine, peer, STEADY + 8)
        return len(io_cpus(owner)) == 1

    wait_until(held)


def test_the_owner_comes_to_its_only_asker_and_is_let_go(
    owner: Owner, engine: Engine, folder: str
) -> None:
    peer = engine.connect(owner.address)
    until_held(owner, engine, peer)
    assert io_cpus(owner) < CPUS
    wait_until(lambda: io_cpus(owner) == CPUS)  # nothing more is asked
    until_held(owner, engine, peer)
    with Engine(dir=folder) as other:
        read(other, other.connect(owner.address), 1)
        assert io_cpus(owner) == CPUS
    until_held(owner, engine, peer)
    peer.close()
    read(engine, engine.connect(owner.address), 1)
    assert io_cpus(owner) == CPUS


def test_an_asker_that_wants_it_not_is_not_followed(owner: Owner, folder: str) -> None:
    with Engine(dir=folder, share_cpu=False) as engine:
        read(engine, engine.connect(owner.address), 20 * STEADY)
        assert io_cpus(owner) == CPUS
        assert engine.stats()["endpoint"]["waits_on_shared_cpu"] == 0


def test_an_owner_that_was_given_one_cpu_stays_there(owner: Owner, engine: Engine) -> None:
    home = {min(CPUS)}
    for task in Path(f"/proc/{owner.pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), home)
    peer = engine.connect(owner.address)
    os.sched_setaffinity(0, CPUS - home)
    try:
        far = peer.segment("kv").blocks(BLOCK)
        near = engine.allocate(BLOCK).blocks(BLOCK)
        for _ in range(20 * STEADY):
            op = engine.read(near, np.array([0]), far, np.array([1]), transport="tcp")
            op.wait()
            op.check()
    finally:
        os.sched_setaffinity(0, CPUS)
    assert io_cpus(owner) == home
