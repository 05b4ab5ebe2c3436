"""The public face is one: embedded, blocking and asyncio pools answer alike."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from moonpool import Pool, aio
from moonpool._core import crc32c
from moonpool.core.errors import (
    BadInput,
    BadKey,
    BadSize,
    Closed,
    ObjectTooLarge,
    ParentMissing,
    PoolFull,
)
from moonpool.pool.results import MissReason, PutStatus, RemoveStatus
from tests.faults.pool_rig import MIB, Rig, running, stamp

MEMORY = 8 * MIB
VALUE = stamp("value", 5000)


class Blocking:
    """Calls the methods of an asyncio pool one after the other."""

    def __init__(self, address: str) -> None:
        self._runner = asyncio.Runner()
        self._pool = self._runner.run(self._connect(address))

    @staticmethod
    async def _connect(address: str) -> aio.AsyncPool:
        return await aio.connect(address)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._pool, name)

        def call(*args: Any, **options: Any) -> Any:
            async def run() -> Any:
                return await method(*args, **options)

            return self._runner.run(run())

        def gather(*args: Any, **options: Any) -> Any:
            async def run() -> Any:
                return [item async for item in method(*args, **options)]

            return iter(self._runner.run(run()))

        return gather if inspect.isasyncgenfunction(method) else call

    def end(self) -> None:
        self._runner.close()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=1, memory=MEMORY) as rig:
        yield rig


@pytest.fixture(params=["local", "blocking", "remote", "asyncio"])
def pool(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each kind of pool of one node, empty; typed Any, because the asyncio one is a twin."""
    if request.param == "local":
        with Pool.local(MEMORY, headroom=8 * MIB) as local:
            yield local
        return
    rig: Rig = request.getfixturevalue("rig")
    cleaner = rig.connect()
    cleaner.remove([item.key for item in cleaner.list()])
    if request.param == "asyncio":
        face = Blocking(rig.address)
        yield face
        face.close()
        face.end()
    else:
        yield rig.connect(shared_memory=request.param == "blocking")


def test_put_and_get(pool: Any) -> None:
    result = pool.put("k", VALUE)
    assert (result.status, result.replicas, result.ok) == (PutStatus.STORED, 1, True)
    assert pool.get("k") == VALUE
    assert pool.get(b"k") == VALUE
    assert pool.get("other") is None
    assert pool.put("k", b"another").status is PutStatus.EXISTS
    assert pool.get("k") == VALUE


def test_replace(pool: Any) -> None:
    pool.put("k", VALUE)
    assert pool.put("k", b"another", replace=True).status is PutStatus.STORED
    assert pool.get("k") == b"another"


def test_get_into(pool: Any) -> None:
    pool.put("k", VALUE)
    buffer = bytearray(len(VALUE) + 1)
    assert pool.get_into("k", buffer) == len(VALUE)
    assert buffer == VALUE + b"\0"
    assert pool.get_into("other", buffer) is None
    with pytest.raises(BadSize):
        pool.get_into("k", bytearray(10))


def test_batches_answer_per_key(pool: Any) -> None:
    keys = ["a", "b", "c"]
    results = pool.put_many(keys, [b"1", b"22", b""])
    assert [result.status for result in results] == [PutStatus.STORED] * 3
    answers = pool.get_many(["a", "x", "c", "b"])
    assert [answer.ok for answer in answers] == [True, False, True, True]
    assert [answer.data for answer in answers if answer.ok] == [b"1", b"", b"22"]
    assert answers[1].reason is MissReason.ABSENT
    buffers = [bytearray(2), bytearray(2)]
    into = pool.get_many_into(["b", "x"], buffers)
    assert (into[0].size, bytes(buffers[0]), into[1].ok) == (2, b"22", False)


def test_empty_batches(pool: Any) -> None:
    assert pool.put_many([], []) == []
    assert pool.get_many([]) == []
    assert pool.get_many_into([], []) == []


def test_exists_and_remove(pool: Any) -> None:
    pool.put_many(["a", "b"], [VALUE, VALUE])
    assert pool.exists(["a", "x", "b"]) == [True, False, True]
    assert pool.remove(["a", "x"]) == [RemoveStatus.REMOVED, RemoveStatus.ABSENT]
    assert pool.exists(["a", "b"]) == [False, True]
    assert pool.get("a") is None


def test_a_chain_and_its_prefix(pool: Any) -> None:
    keys = [f"chain/{i}" for i in range(6)]
    assert all(r.ok for r in pool.put_many(keys, [VALUE] * 6, parents="chain"))
    match = pool.match_prefix([*keys, "more"])
    assert (match.count, match.size) == (6, 6 * len(VALUE))
    assert pool.match_prefix(["more", *keys]).count == 0
    pool.remove([keys[3]])
    assert pool.match_prefix(keys).count == 3


def test_an_unknown_parent_is_refused(pool: Any) -> None:
    with pytest.raises(ParentMissing):
        pool.put("child", VALUE, parent="nobody")
    assert pool.get("child") is None
    pool.put("parent", VALUE)
    assert pool.put("child", VALUE, parent="parent").ok


def test_list_and_remove_prefix(pool: Any) -> None:
    pool.put_many(["p/1", "p/2", "q/1"], [b"1", b"22", b"333"])
    assert sorted((item.key, item.size) for item in pool.list("p/")) == [(b"p/1", 1), (b"p/2", 2)]
    assert pool.remove_prefix("p/") == 2
    assert [item.key for item in pool.list()] == [b"q/1"]


def test_events_tell_what_happened(pool: Any) -> None:
    position = pool.events(limit=1_000_000).position
    pool.put("k", VALUE)
    pool.remove(["k"])
    batch = pool.events(position)
    assert not batch.rebase
    assert len(batch.events) >= 2
    assert batch.position[1] > position[1]


def test_a_full_pool(pool: Any) -> None:
    keys = [f"k/{i}" for i in range(8)]
    assert all(r.ok for r in pool.put_many(keys, [bytes(MIB)] * 8, pin="hard"))
    with pytest.raises(PoolFull):
        pool.put("one more", bytes(MIB), timeout_s=1.5)
    assert pool.get("one more") is None
    pool.remove(keys[:1])
    assert pool.put("one more", bytes(MIB)).ok


def test_an_object_that_can_never_fit(pool: Any) -> None:
    with pytest.raises(ObjectTooLarge):
        pool.put("k", bytes(MEMORY + 1))


def test_bad_input(pool: Any) -> None:
    calls: list[tuple[Callable[[], object], type[Exception]]] = [
        (lambda: pool.put("", VALUE), BadKey),
        (lambda: pool.get("k" * 1025), BadKey),
        (lambda: pool.put("k", 5), BadInput),
        (lambda: pool.put("k", VALUE, replicas=0), BadInput),
        (lambda: pool.put("k", VALUE, pin="medium"), BadInput),
        (lambda: pool.put("k", VALUE, ttl_s=0), BadInput),
        (lambda: pool.put_many(["a"], []), BadSize),
        (lambda: pool.get_into("k", bytes(5)), BadInput),
    ]
    for call, error in calls:
        with pytest.raises(error):
            call()


def test_stat_counts(pool: Any) -> None:
    pool.put("k", VALUE)
    stat = pool.stat()
    assert (stat["objects"], stat["committed_bytes"]) == (1, len(VALUE))


@pytest.mark.parametrize("kind", ["local", "blocking"])
def test_a_closed_pool_says_so(kind: str, rig: Rig) -> None:
    pool = Pool.local(MEMORY) if kind == "local" else rig.connect()
    pool.put("k", VALUE, replace=True)
    pool.close()
    pool.close()
    for call in (lambda: pool.get("k"), lambda: pool.put("k", VALUE), lambda: pool.exists("k")):
        with pytest.raises(Closed):
            call()


def test_sessions(rig: Rig) -> None:
    for pool in (rig.connect(), rig.connect(shared_memory=False), Pool.local(MEMORY)):
        pool.remove("layers")
        with pool.write_session(["layers"], [4 * 1000], layers=4) as writer:
            for layer in range(4):
                writer.write(layer, [stamp(f"layer {layer}", 1000)])
            assert pool.get("layers") is None, "visible before its commit"
        assert pool.get("layers") == b"".join(stamp(f"layer {i}", 1000) for i in range(4))
        with pool.read_session(["layers"], layers=4) as reader:
            for layer in (2, 0):
                buffer = bytearray(1000)
                reader.read(layer, [buffer])
                assert buffer == stamp(f"layer {layer}", 1000)
        with pytest.raises(RuntimeError), pool.write_session(["failed"], [1000]) as writer:
            writer.write_at(0, 0, bytes(500))
            raise RuntimeError("the caller's own")
        assert pool.get("failed") is None
        assert pool.put("failed", b"now").ok
        pool.remove(["layers", "failed"])
        pool.close()


def test_views_of_many(pool: Any) -> None:
    """Only of what lies in this process's reach; the pool of the remote kind has none."""
    pool.put_many(["a", "b"], [VALUE, VALUE[1:]])
    remote = isinstance(pool, Pool) and not pool.view("a").zero_copy
    views = pool.view_many(["b", "absent", "a"])
    assert [view is not None for view in views] == [not remote, False, not remote]
    for view, value in zip(views[::2], (VALUE[1:], VALUE), strict=True):
        if view is not None:
            assert view.zero_copy and bytes(view.data) == value and view.crc == crc32c(value)
            view.close()
    assert pool.view_many([]) == []
    with pytest.raises(BadKey):
        pool.view_many([""])


def test_views_of_many_after_another_took_the_place(rig: Rig) -> None:
    """What is remembered of an object is no proof: its generation is."""
    reader, writer = rig.connect(), rig.connect()
    writer.put("k", VALUE)
    (view,) = reader.view_many(["k"])
    assert view is not None
    view.close()
    writer.remove("k")
    writer.put("k", VALUE[::-1])
    found = [reader.view_many(["k"])[0] for _ in range(2)]
    assert found[0] is None or bytes(found[0].data or b"") == VALUE[::-1]
    assert found[1] is not None and bytes(found[1].data or b"") == VALUE[::-1]
    for each in found:
        if each is not None:
            each.close()


def test_views_of_many_stay_within_the_budget(rig: Rig) -> None:
    pool = rig.connect(pinned_bytes_max=6000)
    pool.put_many(["a", "b"], [VALUE, VALUE])
    first, second = pool.view_many(["a", "b"])
    assert first is not None and second is None
    first.close()
    assert pool.view_many(["b"])[0] is not None
