"""Blocks that this engine stored and the pool lost are told of, and no others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from moonpool.connectors.vllm.events import Removed, Stored, published
from moonpool.connectors.vllm.link import PoolLink
from moonpool.connectors.vllm.metadata import Namespace, SaveJob
from moonpool.connectors.vllm.pool_events import PoolEvents
from moonpool.pool.pool import Pool
from tests.connectors.vllm.engine_shapes import (
    BLOCK,
    LOG,
    SPACES,
    Request,
    keys_of,
    linked,
    run,
)


@dataclass
class Told(Request):
    """A request with its tokens."""

    lora_request: Any = None
    all_token_ids: list[int] = field(default_factory=lambda: list(range(4 * BLOCK)))


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool.local("4MiB") as pool:
        yield pool


def taken(events: PoolEvents, count: int) -> list[Stored | Removed]:
    found: list[Stored | Removed] = []
    patience = threading.Event()
    for _ in range(3000):
        found += events.take()
        if len(found) >= count:
            return found
        patience.wait(0.01)
    raise AssertionError(f"{found}, expected {count}")


def test_stored_and_removed(pool: Pool) -> None:
    events = PoolEvents(SPACES, BLOCK, linked(pool), as_numbers=True)
    request = Told("text", 4 * BLOCK)
    keys = keys_of(0, Namespace(), request.block_hashes)
    events.planned(SaveJob("r", Namespace(), [run("text", [7, 8], first=1)], [None]), request)
    pool.put_many([*keys, "another"], [b"x"] * 5)
    events.stored(request.block_hashes[1:3])
    numbers = [published(value, True) for value in request.block_hashes]
    assert taken(events, 1) == [
        Stored(
            (numbers[1], numbers[2]), numbers[0], tuple(range(BLOCK, 3 * BLOCK)), BLOCK, None, None
        )
    ]
    pool.remove(["another", keys[0], keys[2]])
    assert taken(events, 1) == [Removed((numbers[2],))]
    events.close()


def test_a_block_whose_time_is_over_is_told_as_removed(pool: Pool) -> None:
    events = PoolEvents(SPACES, BLOCK, linked(pool), as_numbers=True)
    request = Told("text", 4 * BLOCK)
    keys = keys_of(0, Namespace(), request.block_hashes)
    events.planned(SaveJob("r", Namespace(), [run("text", [7], first=1)], [None]), request)
    pool.put(keys[1], b"x", ttl_s=0.05)
    events.stored(request.block_hashes[1:2])
    taken(events, 1)
    assert taken(events, 1) == [Removed((published(request.block_hashes[1], True),))]
    events.close()


def test_what_is_on_its_way_is_not_lost(pool: Pool) -> None:
    """The follower has asked for every block before the first one was stored."""
    asked = threading.Event()

    class Asked(PoolEvents):
        def _compare(self, pool: Pool) -> None:
            super()._compare(pool)
            asked.set()

    ready = threading.Event()

    def late() -> Pool:
        assert ready.wait(30)
        return pool

    link = PoolLink(late, where="here", retry_s=0.01, retry_max_s=0.02, log=LOG)
    events = Asked(SPACES, BLOCK, link, as_numbers=True)
    try:
        request = Told("text", 4 * BLOCK)
        keys = keys_of(0, Namespace(), request.block_hashes)
        pool.put("another", b"x")  # so that there is a log that the follower missed
        events.planned(SaveJob("r", Namespace(), [run("text", [7, 8, 9, 10])], [None]), request)
        link.start()
        ready.set()
        assert asked.wait(30)
        pool.put_many(keys, [b"x"] * 4)
        events.stored(request.block_hashes)
        (stored,) = taken(events, 1)
        assert isinstance(stored, Stored) and len(stored.hashes) == 4
    finally:
        events.close()
        link.close()


def test_an_idle_engine_keeps_each_lost_block_once(pool: Pool) -> None:
    """Others store and lose its blocks, again and again, while it takes nothing."""
    events = PoolEvents(SPACES, BLOCK, linked(pool), as_numbers=True)
    request = Told("text", 4 * BLOCK)
    keys = keys_of(0, Namespace(), request.block_hashes)
    pool.put_many(keys, [b"x"] * 4)
    events.planned(SaveJob("r", Namespace(), [run("text", [7, 8, 9, 10])], [None]), request)
    events.stored(request.block_hashes)
    for _ in range(20):
        pool.remove(keys[0])
        pool.put(keys[0], b"x")
    pool.remove(keys[3])
    patience = threading.Event()
    for _ in range(3000):
        if request.block_hashes[3] in events._gone:
            break
        patience.wait(0.01)
    assert list(events._gone) == [request.block_hashes[0], request.block_hashes[3]]
    events.close()


def test_what_went_before_the_log_could_be_read(pool: Pool) -> None:
    """The follower starts late, or lost its place: it asks for every block."""
    reached = threading.Event()

    def late() -> Pool:
        assert reached.wait(30)
        return pool

    link = PoolLink(late, where="here", retry_s=0.01, retry_max_s=0.02, log=LOG)
    events = PoolEvents(SPACES, BLOCK, link, as_numbers=True)
    request = Told("text", 4 * BLOCK)
    keys = keys_of(0, Namespace(), request.block_hashes)
    pool.put_many(keys, [b"x"] * 4)
    events.planned(SaveJob("r", Namespace(), [run("text", [7, 8, 9, 10])], [None]), request)
    events.stored(request.block_hashes)
    pool.remove(keys[3])
    link.start()
    reached.set()
    numbers = [published(value, True) for value in request.block_hashes]
    stored, removed = taken(events, 2)
    assert len(stored.hashes) == 4 and removed == Removed((numbers[3],))
    events.close()
    link.close()
