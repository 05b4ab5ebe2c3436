"""Every reason of a miss, each from what causes it. `corrupt` and `unreachable` come from real
processes: tests/faults/test_pool_corrupt.py, test_pool_kills.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import moonpool
from moonpool.pool.client_state import ClientState
from moonpool.pool.protocol import CallMaster, Context, MasterLost
from moonpool.pool.protocol_get import fetch
from moonpool.pool.results import Miss, MissReason
from tests.faults.pool_rig import eventually

BLOCK = bytes(16 << 10)


@pytest.fixture
def pool() -> Iterator[moonpool.Pool]:
    with moonpool.Pool.local("64KiB", headroom="256KiB") as pool:
        yield pool


def reason(pool: moonpool.Pool, key: str) -> MissReason:
    (answer,) = pool.get_many([key])
    assert isinstance(answer, Miss)
    return answer.reason


def test_absent(pool: moonpool.Pool) -> None:
    assert reason(pool, "never") is MissReason.ABSENT
    pool.put("a", b"1")
    pool.remove("a")
    assert reason(pool, "a") is MissReason.ABSENT


def test_evicted_until_it_is_put_or_removed(pool: moonpool.Pool) -> None:
    pool.put("a", BLOCK)
    for number in range(4):
        pool.put(f"x{number}", BLOCK)
    assert reason(pool, "a") is MissReason.EVICTED
    assert reason(pool, "other") is MissReason.ABSENT
    pool.put("a", BLOCK)
    pool.remove("a")
    assert reason(pool, "a") is MissReason.ABSENT


def test_not_ready(pool: moonpool.Pool) -> None:
    with pool.write_session(["a"], [10]) as session:
        assert reason(pool, "a") is MissReason.IN_FLIGHT
        session.write_at(0, 0, bytes(10))
    assert pool.get("a") == bytes(10)


def test_expired(pool: moonpool.Pool) -> None:
    pool.put("a", b"1", ttl_s=0.001)
    eventually(lambda: not pool.exists("a"), "its time is over")  # asks the master each time
    assert reason(pool, "a") in (MissReason.EXPIRED, MissReason.ABSENT)


def test_refused() -> None:
    def no_port(endpoint: object) -> object:
        raise OSError(endpoint)

    context = Context(ClientState("h", no_port), lambda: 0.0, 1.0)  # type: ignore[arg-type]
    dialogue = fetch(context, [b"a"], None)
    assert isinstance(next(dialogue), CallMaster)
    with pytest.raises(StopIteration) as end:
        dialogue.send(MasterLost("another token", refused=True, code="refused"))
    assert end.value.value == [Miss(MissReason.REFUSED, "another token")]
