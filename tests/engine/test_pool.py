"""Engines over pools: the same bits wherever a prefix came from, whatever becomes of the pool."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

import moonpool
from moonpool.core.errors import Refused
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.engine import Engine
from moonpool.engine.core import EngineCore
from moonpool.engine.model.attention.base import Span
from moonpool.engine.model.runner import Runner, Watch
from moonpool.engine.pooling.loading import Load
from moonpool.engine.request import Reuse
from moonpool.pool.cluster import Cluster
from tests.engine.steps import BLOCK, CHUNK, Answers, config_of, core_of, greedy, prompt_of
from tests.engine.tiny import write_model

LENGTHS = [*range(CHUNK - 1, CHUNK + 3), *range(60, 70), 95, 96, 97, 160, 201, 333]
assert len(LENGTHS) == 20


class Recorder(Runner):
    """The same runner; it keeps the logits it gave."""

    def __init__(self, inner: Runner) -> None:
        self.__dict__ = inner.__dict__
        self.seen: list[Tensor] = []

    def prefill(
        self, tokens: Sequence[int], span: Span, watch: Watch | None, *, last: bool
    ) -> Tensor | None:
        logits = super().prefill(tokens, span, watch, last=last)
        if logits is not None:
            self.seen.append(logits.clone())
        return logits

    def decode(self, tokens: Sequence[int], spans: Sequence[Span]) -> Tensor:
        logits = super().decode(tokens, spans)
        self.seen.append(logits.clone())
        return logits


class Side:
    """An engine of its own on a pool, or on none."""

    def __init__(
        self, folder: Path, pool: moonpool.Pool | None = None, pages: int = 200, **changes: object
    ) -> None:
        self.core: EngineCore = core_of(folder, pages, pool, **changes)
        self.answers = Answers(self.core)

    def ask(self, prompt: list[int], **changes: object) -> tuple[list[int], list[Tensor], Reuse]:
        recorder = Recorder(self.core.runner)
        self.core.runner = recorder
        number = self.answers.add(greedy(prompt, 4, **changes))
        self.answers.run()
        return self.answers.tokens[number], recorder.seen, self.answers.last[number].reuse

    def figure(self, name: str) -> float:
        return self.core.figures()[name]

    def settle(self) -> None:
        """What is to be stored is stored."""
        link = self.core.link
        assert link is not None
        link.drain()
        self.answers.step()

    def close(self) -> None:
        if self.core.link is not None:
            self.core.link.close()
        self.answers.step()


@pytest.fixture
def sides(tiny: Path) -> Iterator[Callable[..., Side]]:
    made: list[Side] = []

    def make(pool: moonpool.Pool | None = None, pages: int = 200, **changes: object) -> Side:
        made.append(Side(tiny, pool, pages, **changes))
        return made[-1]

    yield make
    for side in made:
        side.close()


@pytest.fixture
def pool() -> Iterator[moonpool.Pool]:
    with moonpool.Pool.local("32MiB") as made:
        yield made


def node_of(folder: Path) -> NodeConfig:
    return NodeConfig(name="n0", memory=32 << 20, dir=str(folder), persist=False)


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def compare_lengths(make: Callable[..., Side], pool: moonpool.Pool) -> None:
    """Cold, from own pages, and from the pool, at all lengths: the same tokens and logits."""
    writer = make(pool)
    for seed, length in enumerate(LENGTHS):
        prompt = prompt_of(length, seed)
        tokens, logits, reuse = make().ask(prompt)
        assert reuse == Reuse()
        stored = writer.ask(prompt)
        local = writer.ask(prompt)
        writer.settle()
        read = make(pool).ask(prompt)
        there = (length - 1) // CHUNK * CHUNK
        assert stored[2] == Reuse()
        assert local[2] == Reuse(local_tokens=there)
        assert read[2] == Reuse(pool_tokens=there)
        for way in (stored, local, read):
            assert way[0] == tokens and same(way[1], logits), (length, way[2])


def test_the_same_bits_from_an_embedded_pool(
    sides: Callable[..., Side], pool: moonpool.Pool
) -> None:
    compare_lengths(sides, pool)


@pytest.mark.faults
def test_the_same_bits_from_a_pool_of_processes(sides: Callable[..., Side], tmp_path: Path) -> None:
    with (
        Cluster(MasterConfig(port=0, nodes_expected=1), [node_of(tmp_path)]) as cluster,
        moonpool.connect(cluster.address) as pool,
    ):
        compare_lengths(sides, pool)


def test_own_pages_then_the_pool(sides: Callable[..., Side], pool: moonpool.Pool) -> None:
    """The own pages reach to the second chunk, the pool further."""
    prompt = prompt_of(200)
    want = sides().ask(prompt)
    writer, reader = sides(pool), sides(pool)
    reader.ask(prompt[: 2 * CHUNK + 1])
    writer.ask(prompt)
    writer.settle()
    got = reader.ask(prompt)
    assert got[2] == Reuse(local_tokens=2 * CHUNK, pool_tokens=4 * CHUNK)
    assert got[0] == want[0] and same(got[1], want[1])
    again = reader.ask(prompt)
    assert again[2] == Reuse(local_tokens=6 * CHUNK) and same(again[1], want[1])


def test_chunks_of_several_blocks(tiny: Path, pool: moonpool.Pool) -> None:
    writer = Side(tiny, pool, chunk_tokens=3 * BLOCK)
    reader = Side(tiny, pool, chunk_tokens=3 * BLOCK)
    want = writer.ask(prompt_of(150))
    writer.settle()
    got = reader.ask(prompt_of(150))
    assert got[2] == Reuse(pool_tokens=144) and same(got[1], want[1])
    writer.close()
    reader.close()


@pytest.mark.parametrize(
    "changes",
    [{"block_size": 2 * BLOCK}, {"chunk_tokens": 2 * CHUNK}, {"dtype": "float32"}],
    ids=["blocks", "chunks", "dtype"],
)
def test_what_would_not_fit_has_other_keys(
    sides: Callable[..., Side], pool: moonpool.Pool, changes: dict[str, object]
) -> None:
    writer = sides(pool)
    writer.ask(prompt_of(100))
    writer.settle()
    other = sides(pool, **changes)
    assert other.ask(prompt_of(100))[2] == Reuse()
    assert other.figure("pool_loads_failed") == 0


def test_another_model_has_other_keys(
    sides: Callable[..., Side], pool: moonpool.Pool, tmp_path: Path
) -> None:
    writer = sides(pool)
    writer.ask(prompt_of(100))
    writer.settle()
    other = Side(write_model(tmp_path / "other", seed=9), pool)
    assert other.ask(prompt_of(100))[2] == Reuse()
    other.close()


def test_salts_share_nothing(sides: Callable[..., Side], pool: moonpool.Pool) -> None:
    writer, reader = sides(pool), sides(pool)
    writer.ask(prompt_of(100), salt="a")
    writer.settle()
    assert reader.ask(prompt_of(100))[2] == Reuse()
    assert reader.ask(prompt_of(100), salt="b")[2] == Reuse()
    assert reader.ask(prompt_of(100), salt="a")[2] == Reuse(pool_tokens=96)


def test_what_a_pool_lost_is_stored_again(sides: Callable[..., Side], pool: moonpool.Pool) -> None:
    writer, reader = sides(pool), sides(pool)
    writer.ask(prompt_of(100))
    writer.settle()
    assert pool.remove_prefix("mp1/") == 6
    assert writer.ask(prompt_of(150)[:100] + prompt_of(60, 1))[2] == Reuse(local_tokens=96)
    writer.settle()
    assert reader.ask(prompt_of(100))[2] == Reuse(pool_tokens=96)


def test_the_same_prompt_twice_at_once(sides: Callable[..., Side], pool: moonpool.Pool) -> None:
    writer, reader = sides(pool), sides(pool)
    want = sides().ask(prompt_of(100))[0]
    numbers = [writer.answers.add(greedy(prompt_of(100), 4)) for _ in range(3)]
    writer.answers.run()
    writer.settle()
    assert [writer.answers.tokens[number] for number in numbers] == [want] * 3
    got = reader.ask(prompt_of(100))
    assert got[0] == want and got[2] == Reuse(pool_tokens=96)


def looked_up(side: Side, prompt: list[int]) -> int:
    """A request whose blocks the pool has promised, before the engine has heard of it."""
    number = side.answers.add(greedy(prompt, 4))
    assert side.core.link is not None
    side.core.link.drain()
    return number


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


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_abort_while_blocks_are_on_their_way(
    sides: Callable[..., Side], pool: moonpool.Pool, steps: int
) -> None:
    writer, reader = sides(pool), sides(pool)
    writer.ask(prompt_of(333))
    writer.settle()
    number = reader.answers.add(greedy(prompt_of(333), 4))
    for _ in range(steps):
        reader.answers.step()
    reader.core.abort(number)
    assert reader.answers.last[number].finish == "abort"
    reader.settle()
    reader.answers.run()
    cache = reader.core.cache
    assert cache.allocator.free_pages + cache.tree.cached_pages == 200
    assert cache.tree.protected_pages == 0


def test_pages_that_are_being_written_are_given_to_nobody(
    sides: Callable[..., Side], pool: moonpool.Pool
) -> None:
    """An aborted job keeps its pages until the engine has heard that its load left them."""
    writer, reader = sides(pool), sides(pool)
    writer.ask(prompt_of(100))
    writer.settle()
    number = looked_up(reader, prompt_of(100))
    core = reader.core
    core._hear()
    (job,) = core.scheduler.admit()
    core._begin(job)
    assert job.load is not None
    core.abort(number)
    assert core.cache.allocator.free_pages == 200 - 6
    reader.settle()
    assert core.cache.allocator.free_pages == 200 and core.is_idle


def test_preemption_with_a_pool(sides: Callable[..., Side], pool: moonpool.Pool) -> None:
    prompts = [prompt_of(100, seed) for seed in range(4)]
    want = [sides().ask(prompt)[0] for prompt in prompts]
    writer = sides(pool)
    for prompt in prompts:
        writer.ask(prompt)
    writer.settle()
    small = sides(pool, pages=17, reserve_percent=0)
    numbers = [small.answers.add(greedy(prompt, 40)) for prompt in prompts]
    small.answers.run()
    assert [small.answers.tokens[number][:4] for number in numbers] == want
    assert small.core.cache.counts.preempted > 0
    assert small.figure("pool_tokens") > 0


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


def test_a_far_pool_sends_whole_blocks(
    sides: Callable[..., Side], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONPOOL_CLIENT_SHARED_MEMORY", "false")
    want = sides().ask(prompt_of(200))
    with (
        Cluster(MasterConfig(port=0, nodes_expected=1), [node_of(tmp_path)]) as cluster,
        moonpool.connect(cluster.address) as far,
    ):
        writer, reader = sides(far), sides(far)
        writer.ask(prompt_of(200))
        writer.settle()
        got = reader.ask(prompt_of(200))
        assert got[2] == Reuse(pool_tokens=192) and same(got[1], want[1])
        writer.close()
        reader.close()


def test_a_load_that_is_not_worth_it_is_not_made(
    sides: Callable[..., Side], pool: moonpool.Pool
) -> None:
    writer, reader = sides(pool), sides(pool)
    writer.ask(prompt_of(100))
    writer.settle()
    assert reader.core.link is not None
    reader.core.link.cost.loaded(1, 100.0)
    reader.core.link.cost.computed(100, 0.001)
    assert reader.ask(prompt_of(100))[2] == Reuse()
    assert reader.figure("pool_not_worth") == 1 and reader.figure("pool_blocks_loaded") == 0


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
