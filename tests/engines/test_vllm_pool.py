"""vLLM engines that share prefixes through a pool: the answers are those without one.

Two comparisons: tokens with an engine that has no connector, and log-probabilities, bit for bit,
with a hit in the engine's own prefix cache (a recomputation has other matrix shapes).
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moonpool import connect
from tests.engine.tiny import write_model
from tests.engines.vllm_rig import MODEL_CHANGES, ROOT, EngineProcess, Engines, eventually
from tests.faults.pool_rig import Rig

BLOCK = 32


def prompt(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 259) for _ in range(length)]


def objects(rig: Rig) -> int:
    """How many the pool holds."""
    with connect(rig.address) as pool:
        count = pool.stat()["objects"]
    assert isinstance(count, int)
    return count


def computed(
    engine: EngineProcess, rig: Rig, *prompts: list[int], known: int = 0, **options: Any
) -> list[Any]:
    """Answers of an engine that has to compute them, when the pool holds all of the prompts'
    blocks; `known` of them it had before."""
    before, blocks = objects(rig), sum(len(each) // BLOCK for each in prompts) - known
    answers = engine.generate(*prompts, **options)
    eventually(lambda: objects(rig) >= before + blocks, f"{blocks} blocks in the pool")
    return answers


def tokens(answers: list[dict[str, Any]]) -> list[list[int]]:
    return [answer["tokens"] for answer in answers]


@pytest.fixture(scope="module")
def plain(engines: Engines) -> EngineProcess:
    """Without a connector."""
    return engines.start("plain", connector=False, num_gpu_blocks_override=400)


@pytest.fixture(scope="module")
def first(engines: Engines, plain: EngineProcess) -> EngineProcess:
    return engines.start("first", extra={"load": "async"})


@pytest.fixture(scope="module")
def second(engines: Engines, first: EngineProcess) -> EngineProcess:
    """As it comes: in the step what is alone, and beside it what is not."""
    return engines.start("second")


@pytest.fixture(scope="module")
def synchronous(engines: Engines) -> EngineProcess:
    return engines.start("synchronous", extra={"load": "sync"})


@pytest.mark.parametrize(
    ("names", "seed"),
    [
        (("first", "second"), 100),
        (("second", "first"), 110),
        (("first", "synchronous"), 120),
        (("synchronous", "second"), 130),
    ],
)
def test_a_prompt_that_only_another_engine_has_seen(
    names: tuple[str, str],
    seed: int,
    plain: EngineProcess,
    first: EngineProcess,
    second: EngineProcess,
    synchronous: EngineProcess,
    rig: Rig,
) -> None:
    of_name = {"first": first, "second": second, "synchronous": synchronous}
    writer, reader = (of_name[name] for name in names)
    prompts = [prompt(seed, 700), prompt(seed + 1, 1001), prompt(seed + 2, 333)]
    reference = tokens(plain.generate(*prompts))
    assert len({token for answer in reference for token in answer}) > 8, "the model says one thing"
    assert tokens(computed(writer, rig, *prompts)) == reference

    for each, expected in zip(prompts, reference, strict=True):
        (loaded,) = reader.generate(each)
        assert loaded["tokens"] == expected
        assert loaded["cached"] == (len(each) - 1) // BLOCK * BLOCK
        (local,) = reader.generate(each)
        assert local["cached"] == loaded["cached"]
        assert local["logprobs"] == loaded["logprobs"], "not the bits that were computed"
    counters = reader.counters()
    assert counters["loaded_tokens"] >= sum((len(each) - 1) // BLOCK * BLOCK for each in prompts)
    assert not any(value for name, value in counters.items() if "failed" in name)


def test_several_at_once(
    plain: EngineProcess, first: EngineProcess, second: EngineProcess, rig: Rig
) -> None:
    prompts = [prompt(200 + i, 300 + 37 * i) for i in range(6)]
    reference = tokens(plain.generate(*prompts, max_tokens=24))
    assert tokens(computed(first, rig, *prompts, max_tokens=24)) == reference
    assert tokens(second.generate(*prompts, max_tokens=24)) == reference


@pytest.mark.parametrize("load", ["auto", "async", "sync"])
def test_a_local_hit_is_extended_by_the_pool(
    load: str,
    plain: EngineProcess,
    first: EngineProcess,
    second: EngineProcess,
    synchronous: EngineProcess,
    rig: Rig,
) -> None:
    """The reader has the first blocks itself, the pool has those after them."""
    readers = {"auto": (second, 300), "async": (first, 302), "sync": (synchronous, 301)}
    reader, seed = readers[load]
    writer = second if reader is first else first
    whole = prompt(seed, 900)
    reference = tokens(plain.generate(whole))
    computed(reader, rig, whole[:400])
    computed(writer, rig, whole, known=400 // BLOCK)
    before = reader.counters()
    (answer,) = reader.generate(whole)
    loaded = reader.counters()["loaded_tokens"] - before["loaded_tokens"]
    assert answer["tokens"] == reference[0] and answer["cached"] == 896
    assert loaded == 896 - 384, "what the engine has is not loaded"
    (local,) = reader.generate(whole)
    assert local["cached"] == 896 and local["logprobs"] == answer["logprobs"]


def test_answers_are_stored_too(first: EngineProcess, second: EngineProcess, rig: Rig) -> None:
    """The next turn of a chat finds the blocks of the answer before."""
    start = prompt(310, 200)
    (answer,) = first.generate(start, max_tokens=120)
    chat = start + answer["tokens"] + prompt(311, 10)
    whole = (len(start) + 119) // BLOCK

    def found() -> bool:
        second.call("reset")
        (again,) = second.generate(chat, max_tokens=1)
        return bool(again["cached"] >= (whole - 1) * BLOCK)

    eventually(found, "the answer's blocks in the pool")


def test_salt_keeps_apart(first: EngineProcess, second: EngineProcess, rig: Rig) -> None:
    secret = prompt(320, 400)
    computed(first, rig, secret, salt="tenant a")
    assert second.generate(secret)[0]["cached"] == 0
    second.call("reset")
    assert second.generate(secret, salt="tenant b")[0]["cached"] == 0
    second.call("reset")
    assert second.generate(secret, salt="tenant a")[0]["cached"] == 384


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_prompts_around_one_block(
    length: int, plain: EngineProcess, first: EngineProcess, second: EngineProcess
) -> None:
    short = prompt(330 + length, length)
    reference = tokens(plain.generate(short))
    assert tokens(first.generate(short)) == reference
    assert tokens(second.generate(short)) == reference


def test_preempted_requests_answer_the_same(
    plain: EngineProcess, engines: Engines, rig: Rig
) -> None:
    """More than the cache holds: requests are preempted and load what they had stored."""
    prompts = [prompt(400 + i, 250) for i in range(6)]
    small = engines.start("small", num_gpu_blocks_override=66)
    reference = tokens(plain.generate(*prompts, max_tokens=160))
    assert tokens(small.generate(*prompts, max_tokens=160)) == reference
    preempted = small.call("metrics", prefix="vllm:num_preemptions")
    assert sum(preempted.values()) > 0
    engines.end("small")


def test_after_a_restart_of_the_engine_that_computed(
    plain: EngineProcess, engines: Engines, first: EngineProcess, second: EngineProcess, rig: Rig
) -> None:
    """What it had computed is there for others while it is away, and for itself afterwards."""
    known = prompt(500, 640)
    reference = tokens(plain.generate(known))
    computed(first, rig, known)
    engines.end("first")
    again = engines.start("first")
    for engine in (second, again):
        (answer,) = engine.generate(known)
        assert answer["cached"] == 608 and answer["tokens"] == reference[0]
        (local,) = engine.generate(known)
        assert local["cached"] == 608 and local["logprobs"] == answer["logprobs"]


def test_other_weights_types_and_block_sizes_are_never_loaded(
    engines: Engines, first: EngineProcess, tmp_path: Path, rig: Rig
) -> None:
    """The same tokens, the same pool, even the same name of the model. Each loads its own."""
    known = prompt(510, 640)
    computed(engines.start("first"), rig, known)
    others = {
        "weights": {"model": write_model(tmp_path / "tiny", seed=1, **MODEL_CHANGES)},
        "dtype": {"dtype": "bfloat16"},
        "blocks": {"block_size": 64, "num_gpu_blocks_override": 80},
    }
    started = {
        name: engines.start(name, **arguments)  # type: ignore[arg-type]
        for name, arguments in others.items()
    }
    for name, engine in started.items():
        before = engine.counters()
        (answer,) = engine.generate(known)
        after = engine.counters()
        assert answer["cached"] == 0, name
        assert after["lookup_tokens"] - before["lookup_tokens"] >= 576, name
        assert after["loaded_tokens"] == before["loaded_tokens"], name
        loaded = reloaded(engine, known, 576 if name == "blocks" else 608)
        (local,) = engine.generate(known)
        assert local["cached"] == loaded["cached"], name
        assert local["logprobs"] == loaded["logprobs"], name
        engines.end(name)


def reloaded(engine: EngineProcess, known: list[int], whole: int) -> dict[str, Any]:
    """The answer once the pool has all of the prompt and the engine nothing."""

    def answered() -> dict[str, Any] | None:
        engine.call("reset")
        (answer,) = engine.generate(known)
        return answer if answer["cached"] == whole else None

    return eventually(answered, "its own blocks in the pool") or {}


def test_another_version_of_vllm_is_named() -> None:
    code = (
        "import vllm, importlib; vllm.__version__ = '0.33.1'; "
        "importlib.import_module('moonpool.connectors.vllm').MoonpoolConnector"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1
    assert "fits vLLM 0.32, this is vLLM 0.33.1" in run.stderr
