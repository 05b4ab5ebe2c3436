"""The engine's face: streaming to event loops, aborts, refusals, the end."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import moonpool
from moonpool.core.clock import ManualClock
from moonpool.core.errors import (
    BadConfig,
    BadInput,
    BadModel,
    EngineBusy,
    EngineStopped,
    TransferError,
)
from moonpool.engine import Engine, Request, Step
from tests.engine.steps import Answers, config_of, core_of, greedy, prompt_of


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[Engine]:
    with Engine.load(tiny, config_of()) as made:
        yield made


async def collected(engine: Engine, length: int, seed: int = 0) -> list[int]:
    tokens: list[int] = []
    async for step in engine.generate(greedy(prompt_of(length, seed), 10)):
        tokens += step.tokens
    assert step.finish == "length"
    return tokens


async def test_streams_beside_each_other(engine: Engine, tiny: Path) -> None:
    got = await asyncio.gather(*(collected(engine, 30 + i, i) for i in range(6)))
    assert got == [Answers(core_of(tiny)).ask(greedy(prompt_of(30 + i, i), 10)) for i in range(6)]


async def test_tokens_come_one_by_one(engine: Engine) -> None:
    steps = [step async for step in engine.generate(greedy(prompt_of(30), 5))]
    assert [len(step.tokens) for step in steps] == [1] * 5
    assert [step.finish for step in steps] == [None] * 4 + ["length"]


async def test_leaving_the_loop_aborts(engine: Engine) -> None:
    before = engine.figures()["aborted"]
    stream = engine.generate(greedy(prompt_of(30), 1000))
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]
    while engine.figures()["running"]:
        await asyncio.sleep(0.001)
    assert engine.figures()["aborted"] == before + 1


async def test_leaving_before_the_engine_heard_of_it_aborts(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, begun = engine.figures()["aborted"], threading.Event()

    def submit(request: Request, on_step: Callable[[Step], None]) -> int:
        begun.set()
        return Engine.submit(engine, request, on_step)

    monkeypatch.setattr(engine, "submit", submit)
    with engine._changed:  # no order can be given
        stream = engine.generate(greedy(prompt_of(30), 1000))
        entering = asyncio.ensure_future(anext(stream))
        assert await asyncio.to_thread(begun.wait, 30)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
    async with asyncio.timeout(30):
        while engine.figures()["aborted"] == before:
            await asyncio.sleep(0.001)


def test_callbacks_from_a_thread(engine: Engine) -> None:
    over, steps = threading.Event(), list[Step]()

    def on_step(step: Step) -> None:
        steps.append(step)
        if step.finish:
            over.set()

    number = engine.submit(greedy(prompt_of(30), 1000), on_step)
    engine.abort(number)
    assert over.wait(30) and steps[-1].finish == "abort"
    engine.abort(number)


async def test_bad_input_is_raised_at_once(engine: Engine) -> None:
    with pytest.raises(BadInput):
        engine.submit(greedy([]), lambda step: None)
    with pytest.raises(BadInput):
        async for _ in engine.generate(greedy([], 5)):
            pass


async def test_a_late_refusal_is_raised_in_the_stream(tiny: Path) -> None:
    clock = ManualClock()
    core = core_of(tiny, 60, reserve_percent=100, queue_ms=2000)
    with Engine(core, "tiny", clock=clock) as engine:
        first = engine.generate(greedy(prompt_of(60), 900))
        await anext(first)
        late = asyncio.create_task(collected(engine, 60, seed=1))
        while not engine.figures()["waiting"]:
            await asyncio.sleep(0.001)
        clock.advance(2.5)
        with pytest.raises(EngineBusy) as caught:
            await late
        assert caught.value.retry_after_s >= 1.0
        assert len([step async for step in first]) == 899


async def test_closing_ends_what_runs(tiny: Path) -> None:
    engine = Engine.load(tiny, config_of())
    stream = engine.generate(greedy(prompt_of(30), 2000))
    await anext(stream)
    engine.close()
    with pytest.raises(EngineStopped, match="it was closed"):
        async for _ in stream:
            pass
    with pytest.raises(EngineStopped):
        engine.submit(greedy([5]), lambda step: None)
    engine.abort(1)
    engine.close()


def test_what_was_started_ends_when_the_rest_cannot(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())
    with moonpool.Pool.local("1MiB") as pool, socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MOONPOOL_HANDOFF_PORT", str(taken.getsockname()[1]))
        with pytest.raises(TransferError, match="cannot listen"):
            Engine.load(tiny, config_of(role="prefill"), pool)
    left = {one.name for one in set(threading.enumerate()) - before}
    assert not [name for name in left if "store" in name or "lane" in name]


def test_what_cannot_be_loaded(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="no config.json"):
        Engine.load(tmp_path)
    with pytest.raises(BadConfig, match="less than one page"):
        Engine.load(tiny, config_of(kv_memory=4096))
    with pytest.raises(BadConfig, match="no device"):
        Engine.load(tiny, config_of(device="abacus"))
    with pytest.raises(BadConfig, match="no multiple"):
        config_of(chunk_tokens=40)
