"""What the engine's cache does is told over ZeroMQ, as vLLM tells it."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from moonpool.cache.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheDigest,
    EventBatch,
    RangesCleared,
)
from moonpool.core.errors import BadConfig, MissingExtra
from moonpool.engine import Engine
from tests.engine.steps import BLOCK, config_of, greedy, prompt_of

WAIT_MS = 20_000
DECODER = msgspec.msgpack.Decoder(EventBatch)


class Follower:
    """A subscriber written apart from the router's."""

    def __init__(self, engine: Engine) -> None:
        events, replay = engine.events
        self._context: Any = zmq.Context()
        self.sub = self._context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.SUBSCRIBE, b"")
        self.sub.connect(events)
        self.asker = self._context.socket(zmq.DEALER)
        self.asker.connect(replay)
        for one in (self.sub, self.asker):
            one.setsockopt(zmq.RCVTIMEO, WAIT_MS)

    def replay(self, first: int) -> list[tuple[int, EventBatch]]:
        self.asker.send_multipart([b"", first.to_bytes(8, "big")])
        found = []
        while (frames := self.asker.recv_multipart())[-2] != b"\xff" * 8:
            assert frames[:2] == [b"", b""]
            found.append((int.from_bytes(frames[2], "big"), DECODER.decode(frames[3])))
        assert frames == [b"", b"", b"\xff" * 8, b""]
        return found

    def live(self) -> tuple[int, EventBatch]:
        topic, number, payload = self.sub.recv_multipart()
        assert topic == b"" and len(number) == 8
        return int.from_bytes(number, "big"), DECODER.decode(payload)

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def engine(tiny: Path) -> Iterator[Engine]:
    with Engine.load(tiny, config_of(16, events=True)) as made:
        yield made


@pytest.fixture
def follower(engine: Engine) -> Iterator[Follower]:
    made = Follower(engine)
    yield made
    made.close()


async def ask(engine: Engine, length: int, seed: int) -> int:
    """Tokens found in the engine's own pages."""
    steps = [step async for step in engine.generate(greedy(prompt_of(length, seed), 4))]
    return steps[-1].reuse.local_tokens


def held_after(batches: list[tuple[int, EventBatch]]) -> set[int]:
    held: set[int] = set()
    for _, batch in batches:
        for event in batch.events:
            match event:
                case AllBlocksCleared():
                    held = set()
                case BlockStored():
                    assert len(event.token_ids) == BLOCK * len(event.block_hashes)
                    assert event.parent_block_hash is None or event.parent_block_hash in held
                    held |= set(event.block_hashes)
                case BlockRemoved():
                    assert set(event.block_hashes) <= held, "gone, and never there"
                    held -= set(event.block_hashes)
    return held


async def settled(engine: Engine, follower: Follower) -> list[tuple[int, EventBatch]]:
    """All that is kept, once it says what the cache holds: the last step is told of first."""
    async with asyncio.timeout(WAIT_MS / 1000):
        while len(held_after(kept := follower.replay(0))) != engine.figures()["cached_pages"]:
            await asyncio.sleep(0.01)
    return kept


async def test_stored_and_evicted_blocks_are_told(engine: Engine, follower: Follower) -> None:
    assert [batch.events for _, batch in follower.replay(0)] == [[AllBlocksCleared()]]
    for seed in range(3):  # the third prompt takes the first one's pages
        assert await ask(engine, 110, seed) == 0
    seen = await settled(engine, follower)
    assert [number for number, _ in seen] == list(range(len(seen)))
    assert BlockRemoved in [type(event) for _, batch in seen for event in batch.events]


async def test_live_messages_are_those_that_are_kept(engine: Engine, follower: Follower) -> None:
    for seed in range(20):  # the subscription takes a moment to arrive
        await ask(engine, 40, seed)
        if follower.sub.poll(50):
            break
    number, batch = follower.live()
    assert (number, batch) in follower.replay(0) and batch.data_parallel_rank == 0
    assert follower.replay(number)[0] == (number, batch)
    assert follower.replay(10_000) == []


async def test_what_is_kept_is_bounded_and_always_whole(tiny: Path) -> None:
    with Engine.load(tiny, config_of(16, events=True, events_kept=8)) as engine:
        follower = Follower(engine)
        for seed in range(20):
            await ask(engine, 60 + seed % 3 * 16, seed)
            kept = await settled(engine, follower)
            numbers = [number for number, _ in kept]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert len(kept) <= 8 and kept[0][1].events[0] == AllBlocksCleared()
        assert numbers[0] > 8, "it never had to begin anew"
        follower.close()


async def test_a_repeated_prompt_says_nothing(engine: Engine) -> None:
    await ask(engine, 70, 1)
    before = engine.figures()["event_messages"]
    assert await ask(engine, 70, 1) == 64
    assert engine.figures()["event_messages"] == before


def test_strangers_frames_change_nothing(engine: Engine, follower: Follower) -> None:
    for frames in ([b""], [b"", b"1"], [b"", b"", b"", b""], [b"x" * 9], [b"", b"\0" * 9]):
        follower.asker.send_multipart(frames)
    assert len(follower.replay(0)) == 1


def test_ports_are_free_again_and_a_taken_one_is_named(tiny: Path) -> None:
    with Engine.load(tiny, config_of(events=True)) as engine:
        port = int(engine.events[0].rpartition(":")[2])
        with pytest.raises(BadConfig, match=f"cannot listen on 127.0.0.1:{port}"):
            Engine.load(tiny, config_of(events=True, events_port=port))
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_off_by_default(tiny: Path) -> None:
    with Engine.load(tiny, config_of()) as engine:
        assert engine.events == ("", "")
        assert engine.figures()["event_messages"] == 0


def test_other_machines_read_no_prompts_unless_that_is_wanted() -> None:
    with pytest.raises(BadConfig, match="events_open"):
        config_of(events=True, events_host="0.0.0.0")
    assert config_of(events=True, events_host="0.0.0.0", events_open=True).events


def test_without_zeromq_the_extra_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(MissingExtra, match=r"publishing KV events.*moonpool\[engine\]"):
        Engine.load(tiny, config_of(events=True))


async def test_an_account_is_told_once_and_ranges_are_kept(
    engine: Engine, follower: Follower
) -> None:
    await ask(engine, 110, 0)
    held = held_after(await settled(engine, follower))
    account: object = None
    for _ in range(100):  # the subscription takes a moment to arrive, and what was stored may too
        follower.asker.send_multipart([b"", b"digest"])
        assert follower.asker.recv_multipart() == [b"", b"", b"\xff" * 8, b"accounts"]
        while follower.sub.poll(50) and not isinstance(account, CacheDigest):
            account = follower.live()[1].events[-1]
        if isinstance(account, CacheDigest):
            break
    assert isinstance(account, CacheDigest)
    assert sum(memoryview(account.counts).cast("Q")) == len(held)
    every = b"\xff" * 32
    follower.asker.send_multipart([b"", b"ranges" + every])
    assert follower.asker.recv_multipart()[-1] == b"accounts"
    cleared = RangesCleared(medium="GPU", ranges=every)
    told: list[object] = []
    async with asyncio.timeout(WAIT_MS / 1000):
        while cleared not in told:
            told = [event for _, batch in follower.replay(0) for event in batch.events]
            await asyncio.sleep(0.01)
    again = [e for e in told[told.index(cleared) :] if isinstance(e, BlockStored)]
    assert {name for event in again for name in event.block_hashes} == held
    assert not any(isinstance(event, CacheDigest) for event in told), "it costs who reads it"
    follower.asker.send_multipart([b"", b"nonsense"])  # answered by nobody, and harmless
    assert follower.replay(10_000) == []
