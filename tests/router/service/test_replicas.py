"""Two routers before the same workers, as two servers of one test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import numpy as np

from moonpool.router.base import RouteRequest, Worker
from moonpool.router.brain import Brain
from moonpool.router.config import BrainConfig
from moonpool.router.service.desk import Desk
from moonpool.router.service.replicas import Replicas
from moonpool.router.service.server import RouterServer
from tests.router.rig import (
    Got,
    TinyWorker,
    ask,
    completion,
    get,
    post_json,
    routed,
    send_json,
    until,
)

PROMPT = list(range(1, 65))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def pair(
    *workers: TinyWorker, more: str = ""
) -> AsyncIterator[tuple[RouterServer, RouterServer]]:
    """Two that know of each other; `more` is told of each worker beside its address."""
    ports = [free_port(), free_port()]
    for worker in workers:
        await worker.start()
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    specs = " ".join(f"{worker.url}{more}" for worker in workers)
    async with (
        routed(*workers, workers=specs, port=ports[0], peers=urls[1]) as one,
        routed(*workers, workers=specs, port=ports[1], peers=urls[0]) as two,
    ):
        await until(lambda: all(f.epoch for r in (one, two) for f in r.replicas.peers.values()))
        yield one, two


def load(router: RouterServer) -> float:
    return float(router.desk.brain.load.requests.sum())


async def test_a_booking_of_one_counts_at_the_other_until_it_is_over() -> None:
    go_on = asyncio.Event()

    async def wait(worker: TinyWorker, got: Got, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        send_json(writer, 200, {})

    async with pair(TinyWorker("a", wait), TinyWorker("b", wait)) as (one, two):
        asked = [asyncio.ensure_future(ask(one, completion([n] * 64))) for n in range(4)]
        await until(lambda: load(two) == 4)
        spread = two.desk.brain.load.requests
        assert sorted(spread[spread > 0].tolist()) == [2, 2], "on the same workers"
        go_on.set()
        await asyncio.gather(*asked)
        await until(lambda: load(two) == 0)


async def test_both_know_where_a_prefix_went() -> None:
    """Without events, too: the hashes of a booking travel with it."""
    async with pair(TinyWorker("a"), TinyWorker("b")) as (one, two):
        by = (await ask(one, completion(PROMPT))).json["by"]
        await until(lambda: len(two.desk.brain.index) >= 4 and load(two) == 0)
        assert (await ask(two, completion([*PROMPT, 1, 2]))).json["by"] == by


async def test_both_choose_alike_on_a_miss() -> None:
    async with pair(*(TinyWorker(f"w{n}") for n in range(4))) as (one, two):
        for number in range(12):
            asked = {"token_ids": [number] * 64}
            chosen = {
                (await post_json(router, "/explain", asked)).json["instance_id"]
                for router in (one, two)
            }
            assert len(chosen) == 1


async def test_a_peer_that_is_gone_leaves_no_load_behind() -> None:
    async with pair(TinyWorker("a")) as (one, two):
        await post_json(one, "/reserve", {"token_ids": PROMPT})
        await until(lambda: load(two) == 1)
        await one.close()
        await until(lambda: load(two) == 0)


def test_what_ends_unreported_ends_in_the_log() -> None:
    """The prefill half of a request, a lease that ends, a worker that is gone."""
    now = 0.0
    brain = Brain(BrainConfig(lease_s=100, remote_prefill_tokens=0))
    desk = Desk(brain, clock=lambda: now)
    log = (replicas := Replicas(desk, ["http://peer:1"], {})).log
    brain.add_worker(Worker(id="p", role="prefill"))
    brain.add_worker(Worker(id="d", role="decode"))
    brain.add_worker(Worker(id="x"))

    def book(*workers: str) -> str:
        tokens = np.arange(64, dtype=np.uint32)
        request = RouteRequest(tokens=tokens, allowed=frozenset(workers))
        return desk.route(request).booking_id

    split = book("p", "d")
    assert log.living == [split, f"{split}/prefill"]
    desk.first_token(split)
    replicas.sweep(now := 10.0)
    assert log.living == [split]
    gone = book("x")
    assert log.living == [split, gone]
    brain.remove_worker("x")
    replicas.sweep(now := 20.0)
    assert log.living == [split]
    brain.tick(now := 200.0)
    replicas.sweep(now)
    assert log.living == []


async def test_nonsense_is_answered_whole() -> None:
    async with pair(TinyWorker("a")) as (one, _):
        for query in ("", "?after=-1", "?after=x&epoch=y", "?after=" + "9" * 5000):
            assert (await get(one, f"/replica/bookings{query}")).status == 200
