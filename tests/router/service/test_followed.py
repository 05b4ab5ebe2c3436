"""A worker's events reach the index through the running router, and end with the worker."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import zmq.asyncio

from tests.router.publisher import Publisher, stored
from tests.router.rig import WAIT_S, TinyWorker, ask, completion, post_json, routed, until


@pytest.mark.parametrize("leave", ["unregister", "drain"])
async def test_a_worker_that_names_its_endpoint_is_followed(leave: str) -> None:
    tokens = np.arange(96, dtype=np.uint32)
    context = zmq.asyncio.Context()
    publisher = Publisher(context)
    await publisher.send(stored(0, 3, tokens))
    worker = TinyWorker("one")
    await worker.start()
    spec = (
        f"{worker.url},model=tiny,events=tcp://127.0.0.1:{publisher.port}"
        f",replay=tcp://127.0.0.1:{publisher.replay_port}"
    )
    try:
        async with routed(worker, workers=spec) as router:
            index = router.desk.brain.index
            await until(lambda: len(index) == 3)
            async with asyncio.timeout(WAIT_S):
                while len(index) < 5:  # until the subscription is there
                    await publisher.send(stored(3, 2, tokens))
                    await asyncio.sleep(0.05)
            [subscriber] = router.followed.subscribers(worker.id)
            assert subscriber.feed.counts.lost == 0
            await post_json(router, f"/{leave}", {"instance_id": worker.id})
            assert not router.followed.subscribers(worker.id)
            assert len(index) == 0
    finally:
        worker.kill()
        publisher.task.cancel()
        context.destroy(linger=0)


async def test_an_endpoint_that_no_socket_connects_to_is_named() -> None:
    worker = TinyWorker("one")
    await worker.start()
    async with routed(worker, workers=f"{worker.url},events=ipc:///{'x' * 300}") as router:
        assert not router.followed.subscribers(worker.id)
        [problem] = router.desk.brain.fleet.member(worker.id).problems.values()
        assert "ipc:///xxx" in problem
        assert (await ask(router, completion([1, 2, 3]))).status == 200
