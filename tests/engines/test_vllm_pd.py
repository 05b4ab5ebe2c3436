"""vLLM split in two: prompts computed by one engine, decoded by another; answers are those of one
engine that does both, whatever happens to the prefill engine or the request."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.vllm_pd_rig import LEASE, PDEngine, Split
from tests.engines.vllm_pd_stages import STAGES
from tests.engines.vllm_rig import eventually

BLOCK = 32


def prompt(seed: object, length: int) -> list[int]:
    draw = random.Random(f"pd {seed}")
    return [draw.randrange(3, 259) for _ in range(length)]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pd")


@pytest.fixture(scope="module")
def decode(model: Path, logs: Path) -> Iterator[PDEngine]:
    engine = PDEngine(logs / "d0", model, "kv_consumer", extra=LEASE)
    yield engine.ready()
    engine.end()


@pytest.fixture
def narrow(model: Path, logs: Path) -> Iterator[PDEngine]:
    """A decode engine with room for one request of the longest kind."""
    engine = PDEngine(
        logs / "narrow", model, "kv_consumer", extra=LEASE, num_gpu_blocks_override=66
    )
    yield engine.ready()
    engine.end()


class Prefills:
    """Two prefill engines; one that was killed is started anew when it is next asked for."""

    def __init__(self, model: Path, logs: Path) -> None:
        self._model, self._logs = model, logs
        self._lives = 0
        self._engines: dict[str, PDEngine] = {}

    def begin(self, name: str) -> PDEngine:
        old = self._engines.get(name)
        if old is None or old.process.poll() is not None:
            if old is not None:
                old.end()
            self._lives += 1
            log = self._logs / f"{name}-{self._lives}"
            self._engines[name] = PDEngine(log, self._model, "kv_producer", extra=LEASE)
        return self._engines[name]

    def __getitem__(self, name: str) -> PDEngine:
        return self.begin(name).ready()

    def end(self) -> None:
        for engine in self._engines.values():
            engine.end()


@pytest.fixture(scope="module")
def prefills(model: Path, logs: Path, decode: PDEngine) -> Iterator[Prefills]:
    made = Prefills(model, logs)
    yield made
    made.end()


def reference(decode: PDEngine, tokens: list[int], max_tokens: int = 8) -> list[int]:
    """The decode engine's own answer; the salt keeps it from meeting blocks of the split one."""
    name = f"r-{random.random()}"
    decode.add(name, tokens, max_tokens=max_tokens, salt=name)
    answer: list[int] = decode.answer(name)["tokens"]
    return answer


def quiet(engine: PDEngine) -> bool:
    """Nothing is held: every block of the cache can be had."""
    found = engine.counts()
    return bool(found["requests"] == 0)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 333, 700])
def test_the_answer_is_that_of_one_engine(
    prefills: Prefills, decode: PDEngine, length: int
) -> None:
    tokens = prompt(length, length)
    before = decode.counts()["counts"].get("decode_arrived", 0)
    split = Split(prefills["p0"], decode, tokens).send()
    answer = split.answer()
    assert answer["tokens"] == reference(decode, tokens)
    assert len(split.prefilled()["tokens"]) == 1
    if length > 1:
        assert decode.counts()["counts"]["decode_arrived"] == before + 1
        assert answer["cached"] >= length - 1
    eventually(lambda: quiet(prefills["p0"]), "the prefill engine's blocks")


def test_only_what_decode_lacks_is_pushed(prefills: Prefills, decode: PDEngine) -> None:
    whole = prompt(1000, 600)
    first = Split(prefills["p0"], decode, whole[:400]).send()
    first.answer()
    before = prefills["p0"].counts()["counts"]["prefill_pushed_bytes"]
    second = Split(prefills["p0"], decode, whole).send()
    assert second.answer()["tokens"] == reference(decode, whole)
    after = prefills["p0"].counts()["counts"]["prefill_pushed_bytes"]
    first_share = 400 // BLOCK * BLOCK
    assert 0 < after - before <= (600 - first_share + BLOCK) * (before / 400) * 1.2


def test_two_prefill_engines_serve_one_decode_engine(prefills: Prefills, decode: PDEngine) -> None:
    prefills.begin("p1")
    workers = [prefills["p0"], prefills["p1"]]
    pushed = [worker.counts()["counts"].get("prefill_pushed_bytes", 0) for worker in workers]
    prompts = [prompt(2000 + i, 200 + 61 * i) for i in range(6)]
    splits = [Split(workers[i % 2], decode, tokens).send() for i, tokens in enumerate(prompts)]
    for split, tokens in zip(splits, prompts, strict=True):
        assert split.answer()["tokens"] == reference(decode, tokens)
    for worker, before in zip(workers, pushed, strict=True):
        assert worker.counts()["counts"]["prefill_pushed_bytes"] > before
        eventually(lambda worker=worker: quiet(worker), "the prefill engines' blocks")  # type: ignore[misc]


def frozen(prefills: Prefills, decode: PDEngine, tokens: list[int], stage: str) -> Split:
    """A request whose hand-over has come so far, and stands."""
    split = Split(prefills["p0"], decode, tokens)
    split.prefill.freeze_at(stage)
    split.send().prefill.await_frozen()
    return split


@pytest.mark.parametrize("stage", ["before", *STAGES])
def test_a_prefill_engine_killed_at_any_stage(
    prefills: Prefills, decode: PDEngine, stage: str
) -> None:
    tokens = prompt(f"killed {stage}", 700)
    if stage == "before":
        split = Split(prefills["p0"], decode, tokens)
        split.prefill.signal(signal.SIGKILL)
        split.send_decode()
    else:
        split = frozen(prefills, decode, tokens, stage)
        split.prefill.signal(signal.SIGKILL)
    split.prefill.process.wait()
    prefills.begin("p0")
    assert split.answer()["tokens"] == reference(decode, tokens)
    eventually(lambda: quiet(decode), "the decode engine's blocks")


@pytest.mark.parametrize("stage", STAGES)
def test_a_prefill_engine_that_stops_and_wakes(
    prefills: Prefills, decode: PDEngine, stage: str
) -> None:
    """The decode engine does not wait for it; what it sends when it wakes reaches no block that
    others have by now."""
    tokens = prompt(f"stopped {stage}", 700)
    split = frozen(prefills, decode, tokens, stage)
    assert split.answer()["tokens"] == reference(decode, tokens)
    others = [prompt(f"stopped {stage} {i}", 300) for i in range(3)]
    expected = [reference(decode, each) for each in others]
    split.prefill.signal(signal.SIGCONT)
    assert [reference(decode, each) for each in others] == expected
    split.prefilled()
    eventually(lambda: quiet(split.prefill), "the blocks of a transfer that ended meanwhile")


@pytest.mark.parametrize("who", ["prefill", "decode"])
@pytest.mark.parametrize("stage", STAGES)
def test_an_abort_at_any_stage(prefills: Prefills, decode: PDEngine, who: str, stage: str) -> None:
    tokens = prompt(f"aborted {who} {stage}", 700)
    split = frozen(prefills, decode, tokens, stage)
    if who == "prefill":
        split.prefill.tell({"do": "abort", "id": f"p-{split.transfer}"})
        split.prefill.signal(signal.SIGCONT)
        assert split.answer()["tokens"] == reference(decode, tokens)
    else:
        decode.tell({"do": "abort", "id": f"d-{split.transfer}"})
        split.prefill.signal(signal.SIGCONT)
        split.prefilled()
        eventually(lambda: quiet(decode), "the decode engine's blocks")
    eventually(lambda: quiet(split.prefill), "the prefill engine's blocks")
    after = prompt(f"after {who} {stage}", 300)
    again = Split(split.prefill, decode, after).send()
    assert again.answer()["tokens"] == reference(decode, after)


def test_a_decode_engine_without_room_takes_them_one_by_one(
    prefills: Prefills, decode: PDEngine, narrow: PDEngine
) -> None:
    """Room for one of three: prefill holds what decode cannot take yet, and nothing is computed
    twice for it."""
    prompts = [prompt(6000 + i, 1500) for i in range(3)]
    splits = [Split(prefills["p0"], narrow, each, max_tokens=160).send() for each in prompts]
    for split in splits:
        split.prefilled()
    assert prefills["p0"].counts()["requests"] > 0, "decode took all at once"
    answers: list[Any] = [split.answer()["tokens"] for split in splits]
    assert narrow.counts()["counts"]["decode_arrived"] == 3
    assert answers == [reference(decode, each, max_tokens=160) for each in prompts]
    eventually(lambda: quiet(prefills["p0"]), "the prefill engine's blocks")


def test_a_request_that_prefill_never_gets_is_computed_by_decode(
    prefills: Prefills, decode: PDEngine
) -> None:
    tokens = prompt(7000, 300)
    split = Split(prefills["p0"], decode, tokens)
    split.send_decode()
    split.prefill.tell({"do": "counts"})
    assert split.answer()["tokens"] == reference(decode, tokens)
