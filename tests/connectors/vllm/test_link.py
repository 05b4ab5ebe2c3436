"""The way to the pool: never waited for, logged once, tried again later and later."""

from __future__ import annotations

import logging
import threading

import pytest

from moonpool.connectors.vllm.link import PoolLink
from moonpool.core.clock import ManualClock
from moonpool.core.errors import BadConfig, Unreachable
from moonpool.pool.pool import Pool

LOG = logging.getLogger("tests.link")


def make(open_pool: object, clock: ManualClock | None = None, **times: float) -> PoolLink:
    settings = {"retry_s": 0.01, "retry_max_s": 0.04, **times}
    return PoolLink(open_pool, where="h:1", log=LOG, clock=clock, **settings)  # type: ignore[arg-type]


def test_a_pool_that_comes_later_is_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOG.name)
    tries, there = [0], threading.Event()
    with Pool.local("1MiB") as pool:

        def open_pool() -> Pool:
            tries[0] += 1
            if tries[0] < 4:
                raise Unreachable("connection refused")
            there.set()
            return pool

        link = make(open_pool)
        link.start()
        assert there.wait(30)
        link._thread.join()
        assert link.pool() is pool
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 2, "one line for the outage, one for its end"
        assert "no pool at h:1 (connection refused)" in lines[0] and "answers again" in lines[1]
        link.close()


def test_a_pool_that_fails_is_left_alone_longer_each_time() -> None:
    with Pool.local("1MiB") as pool:
        clock = ManualClock()
        link = make(lambda: pool, clock, retry_s=1.0, retry_max_s=4.0)
        link.start(30.0)
        assert link.pool() is pool
        for wait_s in (1.0, 2.0, 4.0, 4.0):
            link.failed("no answer")
            clock.advance(wait_s - 0.01)
            assert link.pool() is None and link.away
            clock.advance(0.02)
            assert link.pool() is pool
        link.answered()
        link.failed("again")
        clock.advance(1.01)
        assert link.pool() is pool, "an answer ends the doubling"
        link.close()


def test_settings_that_cannot_work_are_not_tried_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    def open_pool() -> Pool:
        raise BadConfig("no such thing")

    link = make(open_pool)
    link.start(30.0)
    assert link.pool() is None and not link._thread.is_alive()
    assert "no such thing" in caplog.text
    link.close()
