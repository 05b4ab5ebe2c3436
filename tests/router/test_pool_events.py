"""The router's index follows a real pool: its blocks known by the names an engine gave them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
import zmq
import zmq.asyncio

from moonpool.core.keys import KeySpec
from moonpool.core.router_section import RouterConfig
from moonpool.pool.aio import AsyncPool
from moonpool.pool.aio import connect as aio_connect
from moonpool.pool.kv_events import KvEvent, Translator
from moonpool.pool.kv_publisher import KvPublisher, KvSettings
from moonpool.router.base import RouteRequest, Worker
from moonpool.router.brain import Brain
from moonpool.router.service.server import RouterServer
from moonpool.router.subscriber import PoolSubscriber
from tests.faults.pool_rig import MIB, running

BLOCK = 16
SPEC = KeySpec(model="m", dtype="bf16", layout="l", block_size=BLOCK)
TOKENS = np.arange(40 * BLOCK, dtype=np.uint32) + 7
KEYS = list(SPEC.keys(TOKENS))
WAIT_S = 30.0


def brain_that_knows_the_names() -> Brain:
    brain = Brain()
    teach(brain)
    return brain


def teach(brain: Brain) -> None:
    """An engine tells what these blocks hold."""
    brain.add_worker(Worker(id="engine", block_size=BLOCK))
    brain.add_worker(Worker(id="idle", block_size=BLOCK))
    hashes = [SPEC.digest(key) for key in KEYS]
    told = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None,
        "token_ids": TOKENS.tolist(),
        "block_size": BLOCK,
        "medium": "GPU",
    }
    brain.apply_message("engine", msgspec.msgpack.encode([1.0, [told], 0]))


def blocks_of_pool(brain: Brain, tokens: Any = TOKENS) -> int:
    """What the pool can bring to a worker that has nothing."""
    decision = brain.decide(RouteRequest(tokens=tokens), 1.0, book=False)
    (idle,) = [score for score in decision.scores if score.worker == "idle"]
    assert idle.hit_tokens == 0
    return idle.pool_tokens // BLOCK


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def publishing(
    pool: AsyncPool, form: Literal["map", "array"] = "map", kept_max: int = 4096
) -> AsyncIterator[KvPublisher]:
    publisher = KvPublisher(pool, KvSettings(form=form, block_size=BLOCK, kept_max=kept_max))
    publisher.start()
    running = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        publisher.close()


@contextlib.asynccontextmanager
async def following(brain: Brain, publisher: KvPublisher) -> AsyncIterator[PoolSubscriber]:
    subscriber = PoolSubscriber(brain, publisher.events, replay=publisher.replay)
    subscriber.start()
    try:
        yield subscriber
    finally:
        await subscriber.close()


async def put_chain(pool: AsyncPool, first: int, count: int) -> None:
    keys = KEYS[first : first + count]
    parents = [KEYS[i - 1] if i else None for i in range(first, first + count)]
    results = await pool.put_many(keys, [b"x" * 64] * count, parents=parents)
    assert all(result.ok for result in results)


@pytest.mark.parametrize("form", ["map", "array"])
async def test_puts_removals_and_what_was_there_before(form: Literal["map", "array"]) -> None:
    with running(nodes=2, memory=16 * MIB) as rig:
        pool = await aio_connect(rig.address, token="")
        await put_chain(pool, 0, 8)
        brain = brain_that_knows_the_names()
        async with publishing(pool, form) as publisher, following(brain, publisher):
            await until(lambda: blocks_of_pool(brain) == 8, "what was there before")
            await put_chain(pool, 8, 12)
            await until(lambda: blocks_of_pool(brain) == 20, "puts")
            await pool.remove(KEYS[5:20])
            await until(lambda: blocks_of_pool(brain) == 5, "removals")
        await pool.close()


@contextlib.asynccontextmanager
async def lossy(publisher: KvPublisher, lost: set[int]) -> AsyncIterator[str]:
    """Where the same is published, but for the messages of these numbers."""
    context = zmq.asyncio.Context()
    source, sink = context.socket(zmq.SUB), context.socket(zmq.PUB)
    source.connect(publisher.events)
    source.setsockopt(zmq.SUBSCRIBE, b"")
    port = sink.bind_to_random_port("tcp://127.0.0.1")

    async def relay() -> None:
        while True:
            frames = await source.recv_multipart()
            if int.from_bytes(frames[1], "big") not in lost:
                await sink.send_multipart(frames)

    relaying = asyncio.create_task(relay())
    try:
        yield f"tcp://127.0.0.1:{port}"
    finally:
        relaying.cancel()
        await asyncio.gather(relaying, return_exceptions=True)
        context.destroy(linger=0)


async def test_a_follower_that_missed_messages_asks_for_them() -> None:
    with running(nodes=1, memory=16 * MIB) as rig:
        pool = await aio_connect(rig.address, token="")
        brain = brain_that_knows_the_names()
        async with publishing(pool) as publisher:
            await until(lambda: publisher.messages == 1, "the first account")
            async with lossy(publisher, {3, 4}) as endpoint:
                follower = PoolSubscriber(brain, endpoint, replay=publisher.replay)
                follower.start()
                for i in range(30):  # until its subscription has reached the relay, and on
                    before = publisher.messages
                    await put_chain(pool, i, 1)
                    await until(lambda b=before: publisher.messages > b, "a message")  # type: ignore[misc]
                await until(lambda: blocks_of_pool(brain) == 30, "all of it")
                await follower.close()
                assert follower.feed.counts.lost == 0
        await pool.close()


async def test_too_many_messages_begin_a_new_account() -> None:
    with running(nodes=1, memory=16 * MIB) as rig:
        pool = await aio_connect(rig.address, token="")
        brain = brain_that_knows_the_names()
        async with publishing(pool, kept_max=3) as publisher:
            await until(lambda: publisher.accounts == 1, "the first account")
            for i in range(10):
                before = publisher.messages
                await put_chain(pool, i, 1)
                await until(lambda b=before: publisher.messages > b, "a message")  # type: ignore[misc]
            assert publisher.accounts > 1
            async with following(brain, publisher):
                await until(lambda: blocks_of_pool(brain) == 10, "all of it")
        await pool.close()


async def test_another_master_and_a_lost_node_re_base() -> None:
    with running(nodes=1, memory=16 * MIB) as rig:
        pool = await aio_connect(rig.address, token="")
        await put_chain(pool, 0, 8)
        brain = brain_that_knows_the_names()
        async with publishing(pool) as publisher, following(brain, publisher):
            await until(lambda: blocks_of_pool(brain) == 8, "puts")
            rig.kill(rig.master)
            await asyncio.to_thread(rig.restart)
            await put_chain(pool, 8, 4)
            await until(lambda: publisher.accounts >= 2, "a new term re-bases")
            await until(lambda: blocks_of_pool(brain) == 12, "all again")
            accounts = publisher.accounts
            rig.kill(rig.nodes[0])
            await until(lambda: publisher.accounts > accounts, "a lost node re-bases")
            await until(lambda: blocks_of_pool(brain) == 0, "nothing of it is readable")
            await asyncio.to_thread(rig.restart)
            await until(lambda: blocks_of_pool(brain) == 12, "it is back")
        await pool.close()


async def test_a_router_follows_the_pool_it_is_told_of() -> None:
    with running(nodes=1, memory=16 * MIB) as rig:
        pool = await aio_connect(rig.address, token="")
        await put_chain(pool, 0, 8)
        async with publishing(pool) as publisher:
            config = RouterConfig(
                port=0, pool_events=publisher.events, pool_replay=publisher.replay
            )
            router = RouterServer(config)
            teach(router.desk.brain)
            await router.start()
            await until(lambda: blocks_of_pool(router.desk.brain) == 8, "the pool's blocks")
            await router.close()
        await pool.close()


async def test_whatever_ends_the_following_it_is_begun_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running(nodes=1, memory=16 * MIB) as rig:
        pool = await aio_connect(rig.address, token="")
        await put_chain(pool, 0, 4)
        translate = Translator.snapshot
        failures = iter([True])

        def once(self: Translator, keys: list[bytes]) -> list[KvEvent]:
            if next(failures, False):
                raise ValueError("not of our tree")
            return translate(self, keys)

        monkeypatch.setattr(Translator, "snapshot", once)
        brain = brain_that_knows_the_names()
        async with publishing(pool) as publisher, following(brain, publisher):
            await until(lambda: blocks_of_pool(brain) == 4, "an account after the failure")
            assert publisher.accounts == 1
        await pool.close()
