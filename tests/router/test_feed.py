"""Sequence numbers of a publisher: gaps, replays, restarts; and the same over real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import numpy as np
import pytest
import zmq
import zmq.asyncio

from moonpool.router import Brain, RouteRequest, Worker
from moonpool.router.feed import Act, Feed, Step
from moonpool.router.subscriber import EventSubscriber
from tests.router.publisher import Publisher, stored


def numbers(steps: list[Step]) -> list[int | str]:
    return [s.sequence if s.act is Act.APPLY else s.act.value for s in steps]


def following(at: int = 3, *, replays: bool = True) -> Feed:
    feed = Feed(replays=replays)
    for sequence in range(at):
        assert numbers(feed.receive(sequence, b"")) == [sequence]
    return feed


def test_a_gap_is_asked_for_and_the_newer_ones_wait() -> None:
    feed = following(3)
    assert feed.receive(5, b"") == [Step(Act.REPLAY, 3)]
    assert feed.receive(6, b"") == []
    steps = feed.replayed([(3, b""), (4, b""), (5, b"")])
    assert numbers(steps) == [3, 4, 5, 6]
    assert numbers(feed.receive(7, b"")) == [7]
    assert feed.counts.lost == 0


def test_what_no_replay_brings_is_lost_and_the_rest_is_known_anew() -> None:
    feed = following(3)
    feed.receive(9, b"")
    assert numbers(feed.replayed([(6, b""), (7, b""), (8, b"")])) == ["forget", 6, 7, 8, 9]
    assert feed.counts.lost == 3


def test_an_answer_that_never_came() -> None:
    feed = following(3)
    feed.receive(9, b"")
    assert numbers(feed.replayed([])) == ["forget", 9]


def test_without_a_replay_socket_a_gap_forgets() -> None:
    feed = following(3, replays=False)
    assert numbers(feed.receive(5, b"")) == ["forget", 5]
    assert numbers(feed.receive(6, b"")) == [6]


def test_a_publisher_that_counts_from_zero_again_restarted() -> None:
    feed = following(3)
    assert numbers(feed.receive(0, b"")) == ["forget", 0]
    assert numbers(feed.receive(1, b"")) == [1]
    assert feed.counts.restarts == 1


def test_a_restart_whose_first_messages_were_missed() -> None:
    feed = following(5000)
    assert numbers(feed.receive(2, b"")) == ["forget", "replay"]
    assert numbers(feed.replayed([(0, b""), (1, b"")])) == [0, 1, 2]


def test_a_restart_while_a_replay_is_under_way() -> None:
    feed = following(3)
    feed.receive(5, b"")
    assert numbers(feed.receive(0, b"")) == ["forget", 0]
    assert not feed.waiting


def test_a_repeated_message_is_passed_over() -> None:
    feed = following(3)
    assert feed.receive(1, b"") == []
    assert feed.counts.repeated == 1


def test_a_new_subscription_asks_for_everything() -> None:
    feed = Feed()
    assert feed.start() == [Step(Act.REPLAY, 0)]
    assert feed.receive(41, b"") == []
    assert numbers(feed.replayed([(40, b""), (41, b"")])) == [40, 41]  # the ring began there
    assert Feed(replays=False).start() == []


def test_a_look_brings_what_did_not_come_by_itself() -> None:
    feed = Feed()
    feed.start()
    assert numbers(feed.replayed([(0, b"0")])) == [0]
    assert feed.look() == [Step(Act.REPLAY, 1)]
    assert feed.look() == [], "one question at a time"
    assert numbers(feed.replayed([(1, b"1"), (2, b"2")])) == [1, 2]
    assert feed.counts.unheard == 2
    assert feed.look() == [Step(Act.REPLAY, 3)]
    assert feed.replayed([]) == [] and feed.expected == 3
    assert numbers(feed.receive(3, b"3")) == [3]
    feed.look()
    assert numbers(feed.replayed([(4, b"4")])) == [4], "published at this moment"
    assert numbers(feed.receive(4, b"4")) == [] and feed.counts.unheard == 2


def test_a_look_that_brings_nothing_leaves_a_gap_to_be_found() -> None:
    feed = Feed()
    feed.receive(0, b"0")
    feed.look()
    feed.replayed([])
    assert feed.receive(2, b"2") == [Step(Act.REPLAY, 1)]


def test_messages_held_back_are_bounded() -> None:
    feed = Feed(held_max=4)
    feed.start()
    for sequence in range(10):
        feed.receive(sequence + 1, b"")
    assert numbers(feed.replayed([])) == [1, 2, 3, 4]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


async def test_over_real_sockets_nothing_is_missed() -> None:
    """Events from before the subscription, live ones, and one that the network lost."""
    tokens = np.arange(160, dtype=np.uint32)
    brain = Brain()
    brain.add_worker(Worker(id="w", model="m", block_size=16))
    context = zmq.asyncio.Context()
    publisher = Publisher(context)
    publisher.garbage = [[b"kv", b"\xff" * 16, b""], [b"kv", b"", b"\xc1"]]
    await publisher.send(stored(0, 3, tokens))
    subscriber = EventSubscriber(
        brain,
        "w",
        f"tcp://127.0.0.1:{publisher.port}",
        replay=f"tcp://127.0.0.1:{publisher.replay_port}",
    )

    def held() -> int:
        ask = RouteRequest(model="m", tokens=tokens)
        return brain.decide(ask, 0.0, book=False).predicted_hit_tokens

    try:
        subscriber.start()
        await until(lambda: held() == 48)
        assert (subscriber.malformed, subscriber.feed.expected) == (2, 1)
        publisher.garbage.clear()
        await asyncio.sleep(0.2)  # a SUB socket hears nothing until its subscription arrived
        await publisher.send(stored(3, 2, tokens))
        await until(lambda: held() == 80)
        await publisher.send(stored(5, 2, tokens), heard=False)
        await publisher.send(stored(7, 2, tokens))
        await until(lambda: held() == 144)
        assert subscriber.feed.counts.gaps == 1
        await publisher.pub.send_multipart([b"kv", struct.pack(">Q", publisher.next), b"\xc1"])
        publisher.next = 0
        await publisher.send({"type": "AllBlocksCleared"})
        await until(lambda: held() == 0)
        assert (subscriber.malformed, subscriber.feed.counts.restarts) == (3, 1)
    finally:
        await subscriber.close()
        publisher.task.cancel()
        context.destroy(linger=0)


class Flood:
    """The answer of a replay socket that never has to be waited for, nor ends."""

    def __init__(self) -> None:
        self.frames = 0

    def connect(self, _: str) -> None: ...
    def close(self, linger: int) -> None: ...
    def setsockopt(self, _: int, __: int) -> None: ...
    async def send_multipart(self, _: list[bytes]) -> None: ...

    async def recv_multipart(self) -> list[bytes]:
        self.frames += 1
        return [b"", b"kv", b"no number", b""]


async def test_an_answer_that_never_ends_does_not_keep_others_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("moonpool.router.subscriber.REPLAY_MESSAGES_MAX", 3200)
    subscriber = EventSubscriber(Brain(), "w", "tcp://127.0.0.1:1", replay="tcp://127.0.0.1:2")
    flood, turns = Flood(), 0

    class Context:
        def socket(self, _: int) -> Flood:
            return flood

    subscriber._context = Context()
    asking = asyncio.create_task(subscriber._ask(bytes(8)))
    while not asking.done():
        turns += 1
        await asyncio.sleep(0)
    assert await asking == ([], None) and subscriber.malformed == flood.frames == 3200
    assert turns >= 100


async def test_a_publisher_that_nobody_hears_is_asked_and_named() -> None:
    context = zmq.asyncio.Context()
    publisher = Publisher(context)
    brain = Brain()
    brain.add_worker(Worker(id="w", model="m", block_size=16))
    problems = brain.fleet.member("w").problems
    tokens = np.arange(160, dtype=np.uint32)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # as where vLLM dialled, too
        subscriber = EventSubscriber(
            brain,
            "w",
            f"tcp://127.0.0.1:{mute.getsockname()[1]}",
            replay=f"tcp://127.0.0.1:{publisher.replay_port}",
            digest_s=0.02,
        )
        try:
            subscriber.start()
            await publisher.send(stored(0, 3, tokens))
            await until(lambda: subscriber.feed.expected == 1)
            await publisher.send(stored(3, 2, tokens))
            await until(lambda: bool(problems))
            ask = RouteRequest(model="m", tokens=tokens)
            assert brain.decide(ask, 0.0, book=False).predicted_hit_tokens == 80
            assert list(problems) == ["unheard 0"] and "'tcp://*:PORT'" in problems["unheard 0"]
            number = struct.pack(">Q", publisher.next)
            live = (b"kv", number, publisher.ring[-1][1])
            subscriber._receive([zmq.Frame(frame) for frame in live])
            await until(lambda: not problems)
        finally:
            await subscriber.close()
            publisher.task.cancel()
            context.destroy(linger=0)
