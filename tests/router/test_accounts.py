"""What a worker's cache lost or gained without a word is found out by its own account, and mended.

The publisher is the engine's, over a real cache; what that loses it loses behind its back.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import numpy as np
import pytest

from moonpool.cache import CacheManager, PageAllocator
from moonpool.core.clock import SystemClock
from moonpool.core.engine_section import EngineConfig
from moonpool.engine.events import EventPublisher
from moonpool.router import Brain, RouteRequest, Worker
from moonpool.router.accounts import DIGEST, REPAIRS_MAX, Accounts, packed
from moonpool.router.index import WALKS_MAX, Applied
from moonpool.router.subscriber import EventSubscriber
from tests.router.publisher import Publisher, stored

PAGE = 16
PAGES = 600
WAIT_S = 20.0

NOTHING = Applied(1, 0, 0, 0, 0, 0, 0, 0, 0, 16, 1, 0, 0, [])
RENEWED = NOTHING._replace(renewed_ranges=1, renewed=3)


def account(*differ: int) -> Applied:
    ranges = np.zeros(256, np.uint8)
    ranges[list(differ)] = 1
    return NOTHING._replace(accounts=[(1, 0, ranges)])


def ranges_of(question: bytes) -> list[int]:
    bits = int.from_bytes(question.removeprefix(b"ranges"), "little")
    return [number for number in range(256) if bits >> number & 1]


def test_only_what_differs_is_asked_for_and_then_looked_at_again() -> None:
    accounts = Accounts()
    assert accounts.due() == DIGEST
    assert accounts.heard(account()) == b""
    assert ranges_of(accounts.heard(account(0, 17, 255))) == [0, 17, 255]
    assert accounts.heard(account(0, 17, 255)) == b"", "another router asked; ours is on its way"
    assert accounts.heard(RENEWED) == DIGEST
    assert accounts.heard(account()) == b"" and not accounts.gave_up
    assert (accounts.compared, accounts.drifted) == (3, 1)


def test_repairs_that_do_not_help_end() -> None:
    accounts = Accounts()
    for _ in range(REPAIRS_MAX):
        assert ranges_of(accounts.heard(account(5))) == [5]
        assert accounts.heard(RENEWED) == DIGEST
    assert accounts.heard(account(5)) == b"" and accounts.gave_up
    assert accounts.due() == b""
    accounts.restarted()
    assert accounts.due() == DIGEST


def test_who_keeps_no_account_is_asked_once() -> None:
    accounts = Accounts()
    accounts.answered(b"")
    assert accounts.due() == b""


def test_so_many_walks_count_and_later_as_many_again() -> None:
    accounts = Accounts(every_s=60.0)
    assert accounts.walks_left(5.0) == WALKS_MAX
    accounts.walked(3)
    assert accounts.walks_left(64.9) == WALKS_MAX - 3
    accounts.walked(WALKS_MAX)
    assert (accounts.walks_left(64.9), accounts.passed_over) == (0, 3)
    assert accounts.walks_left(65.0) == WALKS_MAX


@dataclass
class Followed:
    """An engine's cache and publisher, and a router that follows it."""

    cache: CacheManager
    publisher: EventPublisher
    brain: Brain
    subscriber: EventSubscriber

    def compute(self, seed: int, told: bool = True) -> None:
        """A prompt of 200 tokens passes through the cache; perhaps nobody hears of it."""
        prompt = np.random.default_rng(seed).integers(0, 999, 200).astype(np.uint32)
        sequence = self.cache.sequence(prompt, len(prompt) + 1)
        assert self.cache.admit(sequence)
        self.cache.grow(sequence, len(prompt))
        self.cache.commit(sequence, len(prompt))
        self.cache.finish(sequence)
        self.publish() if told else self.cache.take_events()

    def publish(self) -> None:
        self.publisher.publish()

    def predicted(self, seed: int) -> int:
        tokens = np.random.default_rng(seed).integers(0, 999, 200).astype(np.uint32)
        ask = RouteRequest(model="m", tokens=tokens)
        return self.brain.decide(ask, 0.0, book=False).predicted_hit_tokens

    @property
    def known(self) -> int:
        return self.brain.index.held(self.brain.fleet.members["w"].places[0], 0)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    cache = CacheManager(PageAllocator(PAGES), PAGE, events_max=2 * PAGES)
    publisher = EventPublisher(cache, EngineConfig(events=True), SystemClock())
    brain = Brain()
    brain.add_worker(Worker(id="w", model="m", block_size=PAGE))
    subscriber = EventSubscriber(
        brain, "w", publisher.events, replay=publisher.replay, digest_s=0.02
    )
    made = Followed(cache, publisher, brain, subscriber)
    loop = asyncio.get_running_loop()

    def woken() -> None:
        loop.call_soon_threadsafe(made.publish)

    publisher.on_wish = woken
    subscriber.start()
    async with asyncio.timeout(WAIT_S):
        for seed in itertools.count(1000):  # the subscription takes a moment to arrive
            if subscriber.feed.counts.messages > 0:
                break
            made.compute(seed)
            await asyncio.sleep(0.005)
    yield made
    await subscriber.close()
    publisher.close()


def agrees(one: Followed) -> bool:
    return one.known == one.cache.tree.cached_pages


async def test_what_was_lost_or_gained_without_a_word_is_mended(followed: Followed) -> None:
    for seed in range(20):
        followed.compute(seed)
    await until(lambda: agrees(followed) and followed.subscriber.accounts.compared > 0)
    assert followed.subscriber.accounts.drifted == 0 and followed.predicted(0) == 192

    followed.cache.allocator.free(followed.cache.tree.evict(PAGES))
    followed.cache.take_events()  # everything went, and nobody heard of it
    for seed in range(5, 9):
        followed.compute(seed, told=False)
    assert followed.known > 200 and followed.predicted(0) == 192
    await until(lambda: agrees(followed))
    assert [followed.predicted(seed) > 0 for seed in range(9)] == [False] * 5 + [True] * 4

    compared = followed.subscriber.accounts.compared
    await until(lambda: followed.subscriber.accounts.compared > compared + 1)
    assert not followed.brain.fleet.members["w"].drifted
    assert not followed.brain.fleet.members["w"].problems


async def test_one_block_costs_one_range(followed: Followed) -> None:
    for seed in range(30):
        followed.compute(seed)
    await until(lambda: agrees(followed))
    known = followed.known
    followed.cache.allocator.free(followed.cache.tree.evict(1))
    followed.cache.take_events()
    await until(lambda: followed.known == known - 1)
    assert followed.brain.intake.renewed_blocks <= known // 20
    # Whoever replays the stream has the same at its end.
    assert followed.subscriber.feed.counts.lost == 0


async def test_a_publisher_of_another_kind_is_asked_once_and_followed() -> None:
    import zmq.asyncio

    context = zmq.asyncio.Context()
    publisher = Publisher(context)
    tokens = np.arange(64, dtype=np.uint32)
    await publisher.send(stored(0, 4, tokens))
    brain = Brain()
    brain.add_worker(Worker(id="w", model="m", block_size=16))
    endpoint = f"tcp://127.0.0.1:{publisher.port}"
    replay = f"tcp://127.0.0.1:{publisher.replay_port}"
    subscriber = EventSubscriber(brain, "w", endpoint, replay=replay, digest_s=0.02)
    subscriber.start()
    try:
        await until(lambda: len(brain.index) == 4 and not subscriber.accounts.offered)
        assert not brain.fleet.members["w"].problems
    finally:
        await subscriber.close()
        publisher.task.cancel()
        context.destroy(linger=0)


async def test_ranges_in_old_messages_are_no_flood_of_questions() -> None:
    import zmq.asyncio

    context = zmq.asyncio.Context()
    publisher = Publisher(context)
    cleared = {"type": "RangesCleared", "medium": "GPU", "ranges": b"\xff" * 32}
    for _ in range(1500):  # more than a context has sockets
        await publisher.send(cleared, heard=False)
    brain = Brain()
    brain.add_worker(Worker(id="w", model="m", block_size=16))
    subscriber = EventSubscriber(
        brain,
        "w",
        f"tcp://127.0.0.1:{publisher.port}",
        replay=f"tcp://127.0.0.1:{publisher.replay_port}",
    )
    subscriber.start()
    try:
        await until(lambda: not subscriber.accounts.offered and len(subscriber._tasks) == 1)
        assert publisher.asked == [bytes(8), DIGEST]
        assert subscriber.accounts.passed_over == 1500 - WALKS_MAX
    finally:
        await subscriber.close()
        publisher.task.cancel()
        context.destroy(linger=0)


def test_an_account_of_one_rank_takes_back_nothing_of_another() -> None:
    brain = Brain()
    brain.add_worker(Worker(id="w", ranks=2))
    first, second = (EventSubscriber(brain, "w", "tcp://127.0.0.1:1", rank=n) for n in range(2))
    for _ in range(REPAIRS_MAX):
        first.accounts.heard(account(5))
        first.accounts.heard(RENEWED)
    first._account(account(5))
    second._account(account())
    [problem] = brain.fleet.members["w"].problems.values()
    assert "rank 0" in problem and "3 repairs" in problem
    first._account(account())
    assert not brain.fleet.members["w"].problems


def test_marks_are_bits_from_the_lowest() -> None:
    marks = np.zeros(256, np.bool_)
    marks[[0, 9]] = True
    assert packed(marks) == (1 | 1 << 9).to_bytes(32, "little")
