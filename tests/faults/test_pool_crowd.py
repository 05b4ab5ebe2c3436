"""Many clients at once, batches that cannot be done in time: typed answers, nothing wrong."""

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from moonpool.pool.pool import Pool
from moonpool.pool.results import Hit, Miss, PutStatus
from tests.faults.pool_rig import MIB, Rig, answered_within, eventually, running, seed, stamp

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=2, memory=16 * MIB) as rig:
        yield rig


def test_everybody_puts_the_same_keys_and_one_of_them_stores_each(rig: Rig) -> None:
    draw = seed()
    keys = [f"same/{i}" for i in range(20)]
    clients = [rig.connect(shared_memory=i % 2 == 0) for i in range(6)]
    statuses: dict[str, list[PutStatus]] = {key: [] for key in keys}
    orders = [draw.sample(keys, len(keys)) for _ in clients]

    def work(pool: Pool, order: list[str]) -> None:
        for key in order:
            statuses[key].append(pool.put(key, stamp(key, 40_000), wait_s=20).status)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(clients, orders, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [PutStatus.EXISTS] * (len(clients) - 1) + [PutStatus.STORED]
    for key, said in statuses.items():
        assert sorted(said) == expected, key
        assert clients[1].get(key) == stamp(key, 40_000)


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_batch_too_large_for_its_deadline_is_hits_and_misses(
    rig: Rig, shared_memory: bool
) -> None:
    pool = rig.connect(shared_memory=shared_memory)
    keys = [f"batch/{i}" for i in range(4000)]
    pool.put_many(keys, [stamp(key, 600) for key in keys])
    cold = rig.connect(shared_memory=shared_memory)
    for timeout_s in (0.001, 0.01, 0.1):
        answers = answered_within(timeout_s, partial(cold.get_many, keys, timeout_s=timeout_s))
        for key, answer in zip(keys, answers, strict=True):
            assert isinstance(answer, Miss) or answer.data == stamp(key, 600)
    assert all(isinstance(answer, Hit) for answer in cold.get_many(keys))
    pool.remove_prefix("batch/")


def test_sessions_of_killed_clients_end(rig: Rig) -> None:
    pool = rig.connect()
    pool.put("seen", stamp("seen", 500))
    before = pool.stat()["sessions"]
    for _ in range(3):
        readers = [rig.role("views", "seen", 1) for _ in range(3)]
        for reader in readers:
            reader.expect("holds", "1")
        for reader in readers:
            reader.kill()
    eventually(lambda: pool.stat()["sessions"] == before, "no session of a dead client")


def test_asking_for_keys_does_not_keep_them(rig: Rig) -> None:
    pool = rig.connect()
    first = [f"old/{i}" for i in range(10)]
    pool.put_many(first, [stamp(key, MIB // 2) for key in first])
    for i in range(90):
        assert any(pool.exists(first)) or i > 30
        assert pool.put(f"new/{i}", stamp(f"new/{i}", MIB // 2)).ok
    assert not any(pool.exists(first))
    assert pool.stat()["evicted_objects"]
