"""Every reason of a miss, each from what causes it. `corrupt` and `unreachable` come from real
processes: tests/faults/test_pool_corrupt.py, test_pool_replicas.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import moonpool
from moonpool.core.clock import ManualClock, SystemClock
from moonpool.core.sections import ClientConfig, NodeConfig
from moonpool.pool.client_state import ClientState
from moonpool.pool.local import LocalShell
from moonpool.pool.protocol import CallMaster, Context, MasterLost
from moonpool.pool.protocol_get import fetch
from moonpool.pool.results import Miss, MissReason

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


def test_expired_until_it_is_swept() -> None:
    clock = ManualClock(start_s=1000.0, wall_ms=SystemClock().wall_ms())
    config = NodeConfig(memory=1 << 16, headroom=1 << 18)
    with moonpool.Pool(LocalShell(config, clock), ClientConfig()) as pool:
        pool.put("a", b"1", ttl_s=60)
        clock.jump_wall(3_600_000)
        assert reason(pool, "a") is MissReason.EXPIRED
        clock.advance(2.0)
        pool.stat()  # the embedded pool lives when it is called
        assert reason(pool, "a") is MissReason.ABSENT


def test_refused() -> None:
    def no_port(endpoint: object) -> object:
        raise OSError(endpoint)

    context = Context(ClientState("h", no_port), lambda: 0.0, 1.0)  # type: ignore[arg-type]
    dialogue = fetch(context, [b"a"], None)
    assert isinstance(next(dialogue), CallMaster)
    with pytest.raises(StopIteration) as end:
        dialogue.send(MasterLost("another token", refused=True, code="refused"))
    assert end.value.value == [Miss(MissReason.REFUSED, "another token")]
