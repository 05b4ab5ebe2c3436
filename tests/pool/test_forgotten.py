"""What users forget or ask for all at once: sessions never ended, pools never closed, more threads
than connections."""

import gc
import threading
import warnings
from collections.abc import Iterator

import pytest

from moonpool.pool.pool import Pool
from moonpool.pool.shell import LINKS_MAX
from tests.faults.pool_rig import MIB, Rig, await_usage, eventually, running, usage

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=1, memory=4 * MIB, reservation_ms=500) as rig:
        yield rig


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_forgotten_write_session_gives_its_memory_back(rig: Rig, shared_memory: bool) -> None:
    pool, key = rig.connect(shared_memory=shared_memory, touch_flush_ms=50), f"k{shared_memory}"
    session = pool.write_session([key], [1 * MIB])
    session.write_at(0, 0, b"begun")
    eventually(lambda: usage(pool)["writing"] + usage(pool)["retired"] == 1, "the claim")
    del session
    gc.collect()
    await_usage(pool, writing=0, retired=0)
    assert pool.get(key) is None
    assert pool.put(key, b"anew").ok


def test_a_forgotten_pool_leaves_no_thread(rig: Rig) -> None:
    before = threading.active_count()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # its sockets were not closed
        pools = [Pool.local("1MiB") for _ in range(5)]
        pools.clear()
        gc.collect()
    eventually(lambda: threading.active_count() <= before, "the threads are gone")


def test_more_threads_than_connections(rig: Rig) -> None:
    """Whoever waits for a connection gets the next that is given back."""
    pool = rig.connect(timeout_s=60.0)
    together = threading.Barrier(LINKS_MAX * 2)
    answers: list[bool] = []

    def ask() -> None:
        together.wait()
        for i in range(20):
            answers.append(pool.exists(f"k{i}"))

    threads = [threading.Thread(target=ask) for _ in range(LINKS_MAX * 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == LINKS_MAX * 2 * 20
