"""A full pool and sizes at the edge: a bounded wait, a typed answer, nothing half-written."""

from collections.abc import Iterator

import numpy as np
import pytest

from moonpool.core.errors import BadInput, BadKey, BadSize, ObjectTooLarge, PoolFull
from moonpool.pool.pool import Pool
from moonpool.pool.results import MissReason, PutStatus
from tests.faults.pool_rig import (
    KIB,
    MIB,
    Rig,
    answered_within,
    await_usage,
    running,
    stamp,
    usage,
)

pytestmark = pytest.mark.faults

MEMORY = 16 * MIB


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=1, memory=MEMORY) as rig:
        yield rig


@pytest.fixture(params=[True, False], ids=["shm", "tcp"])
def pool(rig: Rig, request: pytest.FixtureRequest) -> Iterator[Pool]:
    """A client; the pool is empty before and after."""
    pool = rig.connect(shared_memory=request.param)
    empty(pool)
    yield pool
    pool.remove([item.key for item in pool.list()])
    empty(pool)


def empty(pool: Pool) -> None:
    await_usage(pool, sealed=0, retired=0, writing=0, pins=0)


def test_a_full_pool_says_so_after_a_bounded_wait(pool: Pool) -> None:
    count = MEMORY // MIB
    keys = [f"pinned/{i}" for i in range(count)]
    results = pool.put_many(keys, [stamp(key, MIB) for key in keys], pin="hard")
    assert {result.status for result in results} == {PutStatus.STORED}
    await_usage(pool, sealed=count)
    before = usage(pool)
    with pytest.raises(PoolFull):
        answered_within(2, lambda: pool.put("one too many", b"x" * MIB, timeout_s=2))
    assert not pool.exists("one too many")
    await_usage(pool, **before)
    assert pool.stat()["reservations"] == 0
    for key, answer in zip(keys, pool.get_many(keys), strict=True):
        assert answer.ok and answer.data == stamp(key, MIB)  # type: ignore[union-attr]
    pool.remove(keys[0])
    assert pool.put("one too many", stamp("x", MIB), timeout_s=10).status is PutStatus.STORED
    assert pool.get("one too many") == stamp("x", MIB)


def test_a_batch_that_does_not_fit_is_a_prefix_or_nothing(pool: Pool) -> None:
    """P9 on a full pool: what is stored of a chain has no hole."""
    sizes = [MIB] * 14 + [4 * MIB] + [KIB] * 9  # the small ones would fit behind the large one
    keys = [f"chain/{i}" for i in range(len(sizes))]
    values = [stamp(key, size) for key, size in zip(keys, sizes, strict=True)]
    results = pool.put_many(keys, values, parents="chain", pin="hard", timeout_s=2)
    stored = [result.ok for result in results]
    assert stored == sorted(stored, reverse=True), "a hole"
    assert pool.match_prefix(keys).count == sum(stored)
    assert pool.exists(keys) == stored
    for key, value in zip(keys[: sum(stored)], values, strict=False):
        assert pool.get(key) == value


def test_an_unpinned_pool_is_never_full(pool: Pool) -> None:
    for i in range(3 * MEMORY // MIB):
        assert pool.put(f"lru/{i}", stamp(f"lru/{i}", MIB)).ok
    last = f"lru/{3 * MEMORY // MIB - 1}"
    assert pool.get(last) == stamp(last, MIB)
    assert pool.get("lru/0") is None


def test_an_object_larger_than_the_pool_is_refused(pool: Pool) -> None:
    with pytest.raises(ObjectTooLarge):
        answered_within(5, lambda: pool.put("large", bytes(MEMORY + 1), timeout_s=5))
    assert pool.get("large") is None
    empty(pool)


@pytest.mark.parametrize("size", [2**32 - 1, 2**32, 2**32 + 1])
def test_sizes_beyond_32_bits_are_refused_without_touching_a_byte(pool: Pool, size: int) -> None:
    huge = np.empty(size, np.uint8)  # never touched: no memory lies behind it
    with pytest.raises(ObjectTooLarge):
        answered_within(5, lambda: pool.put("huge", huge, timeout_s=5))
    with pool.write_session(["huge"], [size], timeout_s=5) as session:
        assert session.results[0] is not None
        assert session.results[0].status is PutStatus.TOO_LARGE
    assert not pool.exists("huge")
    assert resident_bytes() < 1 << 31
    empty(pool)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_an_object_of_the_whole_capacity_fits(pool: Pool) -> None:
    value = stamp("whole", MEMORY)
    assert pool.put("whole", value).ok
    assert pool.get("whole") == value
    assert pool.put("next", b"value").ok, "it is evicted for another"
    assert pool.get("next") == b"value"


def test_a_zero_length_object_is_not_a_missing_one(pool: Pool) -> None:
    assert pool.put("zero", b"").ok
    assert pool.get("zero") == b""
    assert pool.exists("zero")
    assert pool.get_into("zero", bytearray(4)) == 0
    assert pool.get("no such key") is None
    with pool.view("zero") as data:
        assert data is not None and len(data) == 0
    assert pool.put("zero", b"other").status is PutStatus.EXISTS


@pytest.mark.parametrize("warm", [True, False])
def test_a_buffer_too_small_is_refused_and_not_written(pool: Pool, warm: bool) -> None:
    pool.put("k", stamp("k", 64 * KIB))
    if warm:
        assert pool.get("k") is not None
    buffer = bytearray(b"\xaa" * (64 * KIB - 1))
    with pytest.raises(BadSize):
        pool.get_into("k", buffer)
    assert buffer == b"\xaa" * (64 * KIB - 1)
    answer = pool.get_many_into(["k"], [buffer])[0]
    assert not answer.ok and answer.reason is MissReason.BUFFER_TOO_SMALL  # type: ignore[union-attr]
    assert buffer == b"\xaa" * (64 * KIB - 1)
    larger = bytearray(b"\xaa" * (64 * KIB + 9))
    assert pool.get_into("k", larger) == 64 * KIB
    assert larger == stamp("k", 64 * KIB) + b"\xaa" * 9


def test_bad_arguments_are_told_apart(pool: Pool) -> None:
    with pytest.raises(BadKey):
        pool.put("", b"value")
    with pytest.raises(BadKey):
        pool.get(b"k" * 1025)
    with pytest.raises(BadInput):
        pool.put("k", 17)
    with pytest.raises(BadInput):
        pool.get_into("k", b"read-only")
    with pytest.raises(BadInput):
        pool.put("k", np.zeros((4, 4), np.uint8)[:, :2])
    with pytest.raises(BadInput):
        pool.put("k", b"v", ttl_s=-1)
    assert not pool.exists("k")


def test_the_longest_key_works(pool: Pool) -> None:
    key = b"k" * 1024
    assert pool.put(key, b"value", parent=None).ok
    assert pool.get(key) == b"value"
    assert pool.put(b"child", b"v", parent=key).ok
    assert pool.match_prefix([key, b"child"]).count == 2
