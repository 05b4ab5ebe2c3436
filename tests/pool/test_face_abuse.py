"""What can never work is refused with a typed error before anything is sent, and harms nobody."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from moonpool import Pool
from moonpool.core.errors import BadInput, BadKey, BadSize, Closed, Unreachable
from moonpool.pool.inputs import BATCH_KEYS_MAX
from moonpool.pool.master_limits import BATCH_MAX
from moonpool.pool.results import PutStatus

Call = Callable[[Pool], Any]
OBJECTS = np.array([object()] * 8)
DATES = np.arange(8).astype("M8[s]")


@pytest.fixture(scope="module")
def shared() -> Iterator[Pool]:
    with Pool.local("4MiB") as pool:
        yield pool


@pytest.fixture
def pool(shared: Pool) -> Pool:
    shared.put("k", bytes(64), replace=True)
    return shared


KEYS: list[Any] = [None, 5, 1.5, [], object(), "", b"", b"x" * 1025, "\ud800", "é" * 513]


@pytest.mark.parametrize("key", KEYS)
def test_what_is_no_key(pool: Pool, key: Any) -> None:
    calls: list[Call] = [
        lambda p: p.put(key, b""),
        lambda p: p.get(key),
        lambda p: p.get_into(key, bytearray(8)),
        lambda p: p.view(key),
        lambda p: p.get_many([key]),
        lambda p: p.exists(["k", key]),
        lambda p: p.remove(["k", key]),
        lambda p: p.remove_prefix(key),
        lambda p: p.put("child", b"", parent=0 if key is None else key),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(BadKey):
            call(pool)
    assert pool.exists("k")


@pytest.mark.parametrize("keys", [None, 5, object(), "text", b"bytes"])
def test_what_is_no_batch(pool: Pool, keys: Any) -> None:
    calls: list[Call] = [
        lambda p: p.get_many(keys),
        lambda p: p.put_many(keys, []),
        lambda p: p.match_prefix(keys),
        lambda p: p.read_session(keys),
        lambda p: p.write_session(keys, [4]),
    ]
    for call in calls:
        with pytest.raises(BadKey):
            call(pool)


@pytest.mark.parametrize("prefix", [5, None, 1.5, "\ud800"])
def test_what_is_no_prefix(pool: Pool, prefix: Any) -> None:
    with pytest.raises(BadKey):
        list(pool.list(prefix))


def test_a_batch_has_a_limit_and_says_so(pool: Pool) -> None:
    keys = [b"k"] * (BATCH_KEYS_MAX + 1)
    assert BATCH_KEYS_MAX == BATCH_MAX
    for call in (pool.get_many, pool.exists, pool.remove, pool.match_prefix):
        with pytest.raises(BadSize, match="65537 keys"):
            call(keys)
    with pytest.raises(BadSize, match="65537 keys"):
        pool.put_many(keys, [b""] * len(keys))
    assert all(pool.exists(keys[:-1]))


@pytest.mark.parametrize(
    "value", [None, 5, "text", [1], np.zeros(8)[::2], OBJECTS, memoryview(b"abc")[::-1]]
)
def test_what_is_no_value(pool: Pool, value: Any) -> None:
    with pytest.raises(BadInput):
        pool.put("v", value)


def test_a_released_view_is_no_value(pool: Pool) -> None:
    view = memoryview(b"abc")
    view.release()
    with pytest.raises(BadInput, match="released"):
        pool.put("v", view)


def read_only() -> np.ndarray[Any, Any]:
    array = np.zeros(64, np.uint8)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    "buffer", [None, 5, bytes(64), read_only(), np.zeros(128, np.uint8)[::2], OBJECTS]
)
def test_what_is_no_buffer(pool: Pool, buffer: Any, cached: bool) -> None:
    pool.get("k")
    if not cached:
        pool._state.cache.clear()
    with pytest.raises(BadInput):
        pool.get_into("k", buffer)


def test_a_buffer_for_each_key(pool: Pool) -> None:
    for buffers in ([], [bytearray(64)] * 2, None):
        with pytest.raises(BadInput):
            pool.get_many_into(["k"], buffers)  # type: ignore[arg-type]


class Tensor:
    """Looks as a torch tensor does from outside."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def detach(self) -> "Tensor":
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._array


@pytest.mark.parametrize("cached", [False, True])
def test_tensors_and_dates_are_bytes_too(pool: Pool, cached: bool) -> None:
    pool.put("dates", DATES, replace=True)
    assert pool.get("dates") == DATES.tobytes()
    for target in (np.zeros(8, "M8[s]"), np.zeros(8)):
        if not cached:
            pool._state.cache.clear()
        assert pool.get_into("dates", Tensor(target)) == 64
        assert target.tobytes() == DATES.tobytes()


class Elsewhere(Tensor):
    """As a tensor on a GPU."""

    def view(self, _: object) -> "Elsewhere":
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


def test_a_tensor_that_is_elsewhere(pool: Pool) -> None:
    with pytest.raises(BadInput, match="cuda:0"):
        pool.put("v", Elsewhere(np.zeros(3)))


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf"), 1e300, "5"])
def test_what_is_no_lifetime(pool: Pool, ttl_s: Any) -> None:
    with pytest.raises(BadInput):
        pool.put("v", b"", ttl_s=ttl_s)


@pytest.mark.parametrize(
    "how",
    [
        {"replicas": 0},
        {"replicas": 9},
        {"replicas": "2"},
        {"replicas": 1.5},
        {"min_replicas": 2},
        {"min_replicas": "1"},
        {"pin": "medium"},
        {"pin": []},
        {"parents": 5},
        {"parents": "x"},
        {"parents": [None, None]},
    ],
)
def test_what_is_no_option(pool: Pool, how: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        pool.put_many(["v"], [b""], **how)


def test_more_replicas_than_nodes(pool: Pool) -> None:
    with pytest.raises(Unreachable, match="too few nodes: 1 node up, replicas=2"):
        pool.put("v", b"", replicas=2)
    assert pool.put("v", b"", replicas=2, min_replicas=1, replace=True).replicas == 1


def test_numbers_of_numpy_are_numbers(pool: Any) -> None:
    with pool.write_session(["n"], [np.int64(8)], layers=np.int32(2)) as writer:
        writer.write(np.uint8(0), [b"1234"])
        writer.write_at(np.int64(0), np.int64(4), b"5678")
    assert pool.get("n") == b"12345678"
    assert pool.put("r", b"", replicas=np.int64(1), min_replicas=np.int64(1), replace=True).ok


def test_a_chain_may_name_a_key_twice(pool: Pool) -> None:
    results = pool.put_many(["t", "u", "t"], [b"1", b"2", b"3"], parents="chain")
    assert [r.status for r in results] == [PutStatus.STORED, PutStatus.STORED, PutStatus.EXISTS]
    assert pool.get("t") == b"1"


def test_parents_come_before_children(pool: Pool) -> None:
    results = pool.put_many(["p1", "p2"], [b"", b""], parents=["p2", "p1"])
    assert [r.status for r in results] == [PutStatus.PARENT_MISSING] * 2


@pytest.mark.parametrize("sizes", [[-1], ["4"], [1.5], [2**64], [2**70], None, 5, [4, 4]])
def test_what_are_no_sizes(pool: Pool, sizes: Any) -> None:
    with pytest.raises(BadSize):
        pool.write_session(["s"], sizes)


@pytest.mark.parametrize("layers", [0, -1, 3, "x", 1.5])
def test_what_are_no_layers(pool: Pool, layers: Any) -> None:
    with pytest.raises(BadInput):
        pool.write_session(["s"], [4], layers=layers)


def test_pieces_outside_of_a_session(pool: Pool) -> None:
    pieces: Sequence[tuple[Any, Any]] = [(1, 0), (-1, 0), ("x", 0), (0, -1), (0, "x"), (0, 2**70)]
    with pool.write_session(["outside"], [8]) as writer:
        for index, offset in [*pieces, (0, 8)]:
            with pytest.raises(BadInput):
                writer.write_at(index, offset, b"x")
        writer.write(0, [b"12345678"])
    with pool.read_session(["outside"]) as reader:
        for index, offset in [*pieces, (0, 8)]:
            with pytest.raises(BadInput):
                reader.read_at(index, offset, bytearray(1))
        assert reader.read_at(0, 0, bytearray(8))
    with pytest.raises(Closed):
        reader.read_at(0, 0, bytearray(8))


def test_sessions_of_nothing(pool: Pool) -> None:
    with pool.write_session([], []) as writer:
        writer.write(0, [])
    assert writer.results == []
    with pool.read_session([]) as reader:
        assert reader.read(0, []) == []
