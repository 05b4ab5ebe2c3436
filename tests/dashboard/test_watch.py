"""Rates between two looks, and when clients should stay away."""

import asyncio
from typing import Any, cast

from moonpool.core.admin_section import AdminConfig
from moonpool.core.errors import Unreachable
from moonpool.dashboard.watch import Look, Watch, rates, watching
from moonpool.pool.aio import AsyncPool


def figures(**changed: Any) -> dict[str, Any]:
    plain = dict.fromkeys(
        ("reads", "read_bytes", "requests", "evicted_objects", "next_event", "objects"), 0
    )
    segments = {"0": {"alive": True}}
    answers: dict[str, Any] = {"lookups": {}, "puts": {}}
    return {
        **plain,
        "term": 7,
        "recovering": False,
        "committed_bytes": 0,
        "segments": segments,
        "answers": answers,
        **changed,
    }


def test_rates_are_per_second() -> None:
    before = Look(10.0, figures(reads=5, read_bytes=100, requests=1))
    later = figures(
        reads=25,
        read_bytes=4100,
        requests=9,
        objects=3,
        answers={"lookups": {"found": 6, "absent": 3, "unreachable": 1}, "puts": {"committed": 8}},
    )
    now = rates(before, Look(12.0, later))
    assert (now.reads, now.read_bytes, now.puts, now.requests) == (10, 2000, 4, 4)
    assert now.hit_share == 20 / 24  # 20 reads told, 4 misses
    assert now.objects == 3


def test_nothing_asked_is_no_share() -> None:
    assert rates(Look(0.0, figures()), Look(1.0, figures())).hit_share is None


def test_another_master_counts_from_zero() -> None:
    now = rates(Look(0.0, figures(reads=500, requests=9)), Look(2.0, figures(reads=4, term=8)))
    assert now.reads == 2


class Master:
    """What a watch asks of a pool."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] | None = figures()

    async def stat(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        if self.answer is None:
            raise Unreachable("nobody answers")
        return self.answer


class Hand:
    """A clock moved by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def boottime_ns(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 0


async def test_when_clients_should_stay_away() -> None:
    master, clock = Master(), Hand()
    watch = Watch(cast(AsyncPool, master), AdminConfig(poll_ms=1000), clock)
    assert "not asked yet" in watch.unready
    await watch.look()
    assert watch.unready == ""
    master.answer = figures(recovering=True)
    await watch.look()
    assert "recovering" in watch.unready
    master.answer = figures(segments={"0": {"alive": False}})
    await watch.look()
    assert watch.unready == "no node is alive"
    master.answer = figures()
    await watch.look()
    master.answer = None
    await watch.look()
    assert watch.unready == ""  # one look that failed may be chance
    clock.now += 10
    await watch.look()
    assert watch.unready == "no answer for 10.0 s: nobody answers"


async def test_a_watch_that_stopped_looking_is_not_ready() -> None:
    clock = Hand()
    watch = Watch(cast(AsyncPool, Master()), AdminConfig(poll_ms=1000), clock)
    await watch.look()
    clock.now += 4
    assert watch.unready == "no answer for 4.0 s: the master was not asked"


async def test_it_looks_until_the_block_is_left() -> None:
    watch = Watch(cast(AsyncPool, Master()), AdminConfig(poll_ms=50), Hand())
    async with watching(watch):
        while len(watch.history()) < 2:
            await asyncio.sleep(0.01)
    seen = len(watch.history())
    await asyncio.sleep(0.2)
    assert len(watch.history()) == seen


async def test_history_is_bounded() -> None:
    clock = Hand()
    watch = Watch(cast(AsyncPool, Master()), AdminConfig(poll_ms=1000, history_s=10), clock)
    for _ in range(50):
        clock.now += 1
        await watch.look()
    assert len(watch.history()) == 9
