"""Whatever becomes of the pool or of its blocks, the answer comes, and is the same."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import moonpool
from moonpool.core.errors import Refused
from moonpool.core.sections import MasterConfig
from moonpool.engine import Engine
from moonpool.engine.pooling.loading import Load
from moonpool.engine.request import Reuse
from moonpool.pool.cluster import Cluster
from tests.engine.sides import Side, looked_up, node_of, same
from tests.engine.steps import Answers, config_of, core_of, greedy, prompt_of


@pytest.mark.parametrize("instead", [None, b"short"], ids=["removed", "another size"])
def test_blocks_that_went_away_are_computed(
    sides: Callable[..., Side], pool: moonpool.Pool, instead: bytes | None
) -> None:
    want = sides().ask(prompt_of(100))
    writer, reader = sides(pool), sides(pool)
    writer.ask(prompt_of(100))
    writer.settle()
    number = looked_up(reader, prompt_of(100))
    key = sorted(found.key for found in pool.list())[3]
    pool.remove(key)
    if instead is not None:
        pool.put(key, instead)
    reader.answers.run()
    assert reader.answers.tokens[number] == want[0]
    assert reader.answers.last[number].reuse == Reuse()
    assert reader.figure("pool_loads_failed") == 1


def scribble(pool: moonpool.Pool) -> None:
    """Turns a bit of some block where it lies."""
    content = pool.get(sorted(found.key for found in pool.list())[3])
    assert content is not None
    with mmap.mmap(pool._shell._agent.fd(), 0) as memory:  # type: ignore[attr-defined]
        memory[memory.find(content) + 41] ^= 0x40


def test_bytes_that_were_changed_are_computed(
    sides: Callable[..., Side], pool: moonpool.Pool
) -> None:
    """Somebody scribbles in the pool's memory: the layers pass, their sum does not."""
    want = sides().ask(prompt_of(100))
    writer, reader = sides(pool), sides(pool)
    writer.ask(prompt_of(100))
    writer.settle()
    scribble(pool)
    tokens, logits, reuse = reader.ask(prompt_of(100))
    counted = logits[-len(want[1]) :]  # a pass that began before the sum was known is thrown away
    assert tokens == want[0] and same(counted, want[1]) and reuse == Reuse()
    assert reader.figure("pool_loads_failed") == 1


def test_what_rests_on_changed_bytes_is_not_stored(
    sides: Callable[..., Side], pool: moonpool.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk is computed behind a load whose proof takes long, and fails."""
    prove = Load._prove

    def late(load: Load, pool: moonpool.Pool) -> None:
        time.sleep(0.2)
        prove(load, pool)

    want = sides().ask(prompt_of(200))
    writer, reader, last = sides(pool), sides(pool), sides(pool)
    writer.ask(prompt_of(100))
    writer.settle()
    scribble(pool)
    with monkeypatch.context() as patched:
        patched.setattr(Load, "_prove", late)
        assert reader.ask(prompt_of(200))[2] == Reuse()
    reader.settle()
    assert reader.figure("pool_loads_failed") == 1
    got = last.ask(prompt_of(200))
    assert got[2] == Reuse(pool_tokens=192) and got[0] == want[0] and same(got[1], want[1])


def test_a_full_pool_stores_what_fits(sides: Callable[..., Side]) -> None:
    with moonpool.Pool.local("4KiB") as tiny_pool:
        writer = sides(tiny_pool)
        assert writer.ask(prompt_of(100))[0] == sides().ask(prompt_of(100))[0]
        writer.settle()
        assert writer.figure("pool_stores_failed") > 0


@pytest.mark.faults
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_pool_that_ends_under_a_request(
    sides: Callable[..., Side], tmp_path: Path, how: signal.Signals
) -> None:
    """All of its processes, while one engine stores and another one loads."""
    prompts = [prompt_of(333, seed) for seed in range(3)]
    want = [sides().ask(prompt) for prompt in prompts]
    with Cluster(MasterConfig(port=0, nodes_expected=1), [node_of(tmp_path)]) as cluster:
        pool = moonpool.connect(cluster.address, timeout_s=1.0)
        try:
            writer, reader = (sides(pool, load_ms=500, lookup_ms=200) for _ in range(2))
            writer.ask(prompts[0])
            writer.settle()
            loading = looked_up(reader, prompts[0])
            storing = writer.answers.add(greedy(prompts[1], 4))
            for _ in range(4):
                writer.answers.step()
            assert cluster.master is not None
            pids = [cluster.master.pid, *(node.pid for node in cluster.nodes)]
            for pid in pids:
                os.kill(pid, how)
            try:
                reader.answers.run()
                writer.answers.run()
                assert reader.answers.tokens[loading] == want[0][0]
                assert writer.answers.tokens[storing] == want[1][0]
                got = writer.ask(prompts[2])
                assert got[0] == want[2][0] and same(got[1], want[2][1])
                assert got[2] == Reuse()
                writer.settle()  # what was on its way when the pool ended has failed by now
                assert writer.figure("pool_failures") > 0
            finally:
                for pid in pids if how is signal.SIGSTOP else []:
                    os.kill(pid, signal.SIGCONT)
        finally:
            for side in (writer, reader):
                side.close()
            pool.close()


def quiet_port() -> int:
    """A port that nobody listens at, and that nobody who asks for any port is given meanwhile."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@pytest.mark.faults
async def test_an_engine_starts_before_its_pool(tiny: Path, tmp_path: Path) -> None:
    """It answers without, and shares what it computes once the pool is there."""
    port = quiet_port()
    with Engine.load(tiny, config_of(pool=f"127.0.0.1:{port}")) as engine:
        assert "no master" in engine.pool_away

        async def ask(seed: int) -> list[int]:
            steps = [step async for step in engine.generate(greedy(prompt_of(200, seed), 4))]
            return [token for step in steps for token in step.tokens]

        assert await ask(0) == Answers(core_of(tiny)).ask(greedy(prompt_of(200), 4))
        assert engine.figures()["pool_blocks_stored"] == 0
        with Cluster(MasterConfig(port=port, nodes_expected=1), [node_of(tmp_path)]):
            async with asyncio.timeout(60):
                seed = 0
                while not engine.figures()["pool_blocks_stored"]:
                    seed += 1
                    await ask(seed)
                    await asyncio.sleep(0.1)


def test_a_pool_that_refuses_is_said_at_once(tiny: Path, tmp_path: Path) -> None:
    master = MasterConfig(port=0, nodes_expected=1, token="right")
    node = msgspec.structs.replace(node_of(tmp_path), token="right")
    with Cluster(master, [node]) as cluster, pytest.raises(Refused):
        Engine.load(tiny, config_of(pool=cluster.address))
