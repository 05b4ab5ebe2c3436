"""When a silent read is begun on another copy: learnt times, credit, and who is tried first."""

from __future__ import annotations

from typing import cast

import pytest

from moonpool.pool.hedging import (
    CREDIT_A_READ,
    CREDIT_MAX,
    FIRST_S,
    LATE_S,
    NEVER_MS,
    SLOW_S,
    Hedging,
)
from moonpool.pool.ports import Port


class NamedPort:
    def __init__(self, name: bytes, kind: str = "tcp", local: bool = False) -> None:
        self.incarnation, self.kind, self.local = name, kind, local


def port(name: bytes = b"a", kind: str = "tcp", local: bool = False) -> Port:
    return cast(Port, NamedPort(name, kind, local))


def waits(hedging: Hedging, which: Port, nbytes: int = 4096) -> float:
    after_s = hedging.after_s(which, nbytes)
    assert after_s is not None
    return after_s


def test_the_time_to_wait_for_follows_what_reads_took() -> None:
    hedging, a = Hedging(), port()
    assert waits(hedging, a) >= FIRST_S
    for _ in range(200):
        hedging.answered(a, 4096, 0.020)
    assert 0.020 < waits(hedging, a) < 0.026
    for _ in range(200):
        hedging.answered(a, 4096, 0.200)
    assert 0.200 < waits(hedging, a) < 0.250, "what is slow for all is waited for"


def test_sizes_and_segments_are_learnt_apart() -> None:
    hedging, a, b = Hedging(), port(b"a"), port(b"b")
    for _ in range(50):
        hedging.answered(a, 4096, 0.010)
        hedging.answered(a, 64 << 20, 0.500)
        hedging.answered(b, 4096, 0.100)
    assert waits(hedging, a) < 0.05 < waits(hedging, b) < 0.3 < waits(hedging, a, 64 << 20)


def test_no_read_is_begun_twice_sooner_than_threads_may_be_late() -> None:
    hedging, a = Hedging(), port()
    for _ in range(50):
        hedging.answered(a, 4096, 0.0001)
    assert waits(hedging, a) >= LATE_S


def test_a_fixed_time_or_none() -> None:
    assert Hedging(70).after_s(port(), 1 << 30) == 0.07
    assert Hedging(NEVER_MS).after_s(port(), 4096) is None


@pytest.mark.parametrize("which", [port(local=True, kind="shm"), port(kind="disk")])
def test_mapped_memory_and_tiers_are_not_waited_for_beside_others(which: Port) -> None:
    assert Hedging(70).after_s(which, 4096) is None


def test_reads_made_twice_are_a_bounded_share() -> None:
    hedging, a = Hedging(), port()
    assert sum(hedging.allow() for _ in range(1000)) == CREDIT_MAX
    for _ in range(round(10 / CREDIT_A_READ)):
        hedging.answered(a, 4096, 0.001)
    assert sum(hedging.allow() for _ in range(1000)) in (9, 10)


def test_who_lost_is_tried_last_for_a_moment() -> None:
    hedging, a, b = Hedging(), port(b"a"), port(b"b")
    hedging.lost(a, 5.0)
    assert hedging.slow(a, 5.0 + SLOW_S / 2) and not hedging.slow(b, 5.0 + SLOW_S / 2)
    assert not hedging.slow(a, 5.0 + SLOW_S)
    hedging.lost(a, 9.0)
    hedging.answered(a, 4096, 0.001)
    assert not hedging.slow(a, 9.0)
