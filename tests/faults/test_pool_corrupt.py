"""A stored byte is flipped behind everybody's back: a miss with its reason, never wrong bytes."""

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from moonpool.pool.pool import Pool
from moonpool.pool.results import Hit, Miss, MissReason, PutStatus
from tests.faults.pool_rig import MIB, Rig, await_usage, running, seed, stamp

pytestmark = pytest.mark.faults

SIZE = 300_001


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=2, memory=16 * MIB) as rig:
        yield rig


def flip(rig: Rig, key: str, at: int) -> None:
    """The view is read-only on purpose; the mapping under it is not."""
    view = rig.connect().view(key)
    with view as data:
        assert data is not None and view.zero_copy
        address = np.frombuffer(data, np.uint8).ctypes.data + at
        ctypes.c_uint8.from_address(address).value ^= 1


def assert_corrupt(answer: Hit | Miss) -> None:
    assert isinstance(answer, Miss), "wrong bytes were returned"
    assert answer.reason is MissReason.CORRUPT


def read(pool: Pool, key: str) -> Hit | Miss:
    return pool.get_many([key])[0]


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("warm", [True, False])
def test_flipped_bytes_are_a_miss_and_the_key_can_be_put_again(
    rig: Rig, shared_memory: bool, warm: bool
) -> None:
    draw = seed()
    pool, key = rig.connect(shared_memory=shared_memory), f"c/{shared_memory}/{warm}"
    pool.put(key, stamp(key, SIZE))
    if warm:
        assert pool.get(key) == stamp(key, SIZE)
    flip(rig, key, draw.randrange(SIZE))
    assert_corrupt(read(pool, key))
    assert not pool.exists(key), "the replica is given up"
    assert rig.connect().get(key) is None
    assert pool.put(key, stamp(key, SIZE)).status is PutStatus.STORED
    assert pool.get(key) == stamp(key, SIZE)
    assert rig.connect(shared_memory=False).get(key) == stamp(key, SIZE)


def test_get_and_get_into_find_it_too(rig: Rig) -> None:
    pool = rig.connect()
    for key in ("get", "into"):
        pool.put(key, stamp(key, SIZE))
        assert pool.get(key) == stamp(key, SIZE)
        flip(rig, key, SIZE - 1)
    assert pool.get("get") is None
    assert pool.get_into("into", bytearray(SIZE)) is None


def test_a_view_finds_it_when_asked(rig: Rig) -> None:
    pool = rig.connect()
    pool.put("v", stamp("v", SIZE))
    flip(rig, "v", 0)
    with pool.view("v", verify=True) as data:
        assert data is None
    with pool.view("v") as data:
        assert data is None, "known to be wrong by now"


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_range_finds_it_when_asked(rig: Rig, shared_memory: bool) -> None:
    """Wherever in the object it is: the sum is the whole object's."""
    pool, key = rig.connect(shared_memory=shared_memory), f"range/{shared_memory}"
    pool.put(key, stamp(key, SIZE))
    assert pool.get_range(key, 9, 50, verify=True) == stamp(key, SIZE)[9:59]
    flip(rig, key, SIZE - 1)
    assert pool.get_range(key, 9, 50, verify=True) is None
    assert pool.get_range(key, 9, 50) is None, "known to be wrong by now"


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_second_replica_serves_the_read(rig: Rig, shared_memory: bool) -> None:
    pool, key = rig.connect(shared_memory=shared_memory), f"two/{shared_memory}"
    assert pool.put(key, stamp(key, SIZE), replicas=2).replicas == 2
    assert pool.get(key) == stamp(key, SIZE)
    flip(rig, key, 77)
    for reader in (pool, rig.connect(shared_memory=shared_memory), rig.connect()):
        assert reader.get(key) == stamp(key, SIZE)
    pool.remove(key)
    assert pool.get(key) is None


def test_memory_of_corrupt_replicas_returns(rig: Rig) -> None:
    pool = rig.connect()
    pool.remove([item.key for item in pool.list()])
    await_usage(pool, sealed=0, retired=0, pins=0)
