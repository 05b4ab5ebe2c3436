"""Prompts computed on one engine and answered on another: the answer is that of one engine,
whatever becomes of the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from moonpool.core.errors import BadInput
from moonpool.engine.core import EngineCore
from moonpool.engine.request import Request
from tests.engine.steps import BLOCK, CHUNK, Answers, core_of, greedy, prompt_of
from tests.engine.tiny import write_model
from tests.tree import ROOT

WAIT_S = 30.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that a busy machine keeps."""
    monkeypatch.delenv("MOONPOOL_JOB", raising=False)
    monkeypatch.setenv("MOONPOOL_HANDOFF_LEASE_MS", "3000")


class Side:
    """One engine, stepped by the test."""

    def __init__(self, folder: Path, role: str, **changes: Any) -> None:
        self.core: EngineCore = core_of(folder, role=role, **changes)
        self.answers = Answers(self.core)

    @property
    def remote(self) -> str:
        assert self.core.disagg is not None
        return self.core.disagg.address

    @property
    def handings(self) -> float:
        return self.core.figures()["handings"]

    def close(self) -> None:
        assert self.core.disagg is not None
        self.core.disagg.close()


class Split:
    """A prefill and a decode engine."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.prefill = Side(folder, "prefill")
        self.decode = Side(folder, "decode", **changes)

    def step_until(self, done: Callable[[], Any], *sides: Side) -> None:
        give_up_s = time.monotonic() + WAIT_S
        while not done():
            assert time.monotonic() < give_up_s, "it did not happen"
            for side in sides or (self.prefill, self.decode):
                side.answers.step()

    def send(self, transfer: str, prompt: list[int]) -> int:
        return self.prefill.answers.add(sent(transfer, prompt))

    def receive(self, transfer: str, prompt: list[int], max_tokens: int = 8) -> int:
        return self.decode.answers.add(received(transfer, self.prefill.remote, prompt, max_tokens))

    def answer(self, number: int, *sides: Side) -> list[int]:
        answers = self.decode.answers
        self.step_until(lambda: number in answers.last and answers.last[number].finish, *sides)
        return answers.tokens[number]

    def quiet(self) -> None:
        self.step_until(lambda: not self.prefill.handings and not self.decode.handings)
        for side in (self.prefill, self.decode):
            assert not side.core.scheduler.parked
            figures = side.core.figures()
            assert figures["free_pages"] + figures["cached_pages"] == figures["pages"]

    def close(self) -> None:
        self.decode.close()
        self.prefill.close()


def sent(transfer: str, prompt: list[int]) -> Request:
    return greedy(
        prompt, max_tokens=1, transfer={"do_remote_decode": True, "transfer_id": transfer}
    )


def received(transfer: str, remote: str, prompt: list[int], max_tokens: int = 8) -> Request:
    params = {"do_remote_prefill": True, "transfer_id": transfer, "remote": remote}
    return greedy(prompt, max_tokens=max_tokens, transfer=params)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Callable[[list[int]], list[int]]:
    """What one engine by itself answers, computing all of it."""
    answers = Answers(core_of(folder))

    def ask(prompt: list[int], max_tokens: int = 8) -> list[int]:
        answers.core.cache.clear()
        return answers.ask(greedy(prompt, max_tokens=max_tokens))

    return ask


@pytest.fixture
def split(folder: Path) -> Iterator[Split]:
    made = Split(folder)
    yield made
    made.close()


def whole_chunks(length: int) -> int:
    return (length - 1) // CHUNK * CHUNK


def test_answers_are_equal_and_whole_chunks_came_from_the_peer(
    split: Split, alone: Callable[[list[int]], list[int]]
) -> None:
    for length in (1, BLOCK, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 7, 150, 151, 300):
        prompt = prompt_of(length, seed=length)
        number = split.receive(f"t{length}", prompt)
        first = split.send(f"t{length}", prompt)
        assert split.answer(number) == alone(prompt)
        last = split.decode.answers.last[number]
        assert last.reuse.peer_tokens == whole_chunks(length)
        assert split.prefill.answers.tokens[first] == alone(prompt)[:1]
        split.quiet()


def test_decode_asks_only_for_what_it_lacks(
    split: Split, alone: Callable[[list[int]], list[int]]
) -> None:
    prompt = prompt_of(200)
    split.decode.answers.ask(greedy(prompt[:100]))
    split.send("t", prompt)
    number = split.receive("t", prompt)
    assert split.answer(number) == alone(prompt)
    reuse = split.decode.answers.last[number].reuse
    assert (reuse.local_tokens, reuse.peer_tokens) == (96, 192 - 96)


def test_prefill_sends_what_it_had_cached(
    split: Split, alone: Callable[[list[int]], list[int]]
) -> None:
    prompt = prompt_of(200)
    split.prefill.answers.ask(greedy(prompt))
    for number in range(2):
        split.send(f"t{number}", prompt)
    split.receive("t0", prompt_of(200))
    got = split.receive("t1", prompt)
    assert split.answer(got) == alone(prompt)
    split.quiet()


def test_two_prompts_with_one_prefix_are_sent_side_by_side(
    split: Split, alone: Callable[[list[int]], list[int]]
) -> None:
    """Both are computed at the same time: no page of one may become the other's meanwhile."""
    prompts = [prompt_of(160) + prompt_of(40, seed=n) for n in range(3)]
    numbers = [split.receive(f"t{n}", prompt) for n, prompt in enumerate(prompts)]
    for n, prompt in enumerate(prompts):
        split.send(f"t{n}", prompt)
    for number, prompt in zip(numbers, prompts, strict=True):
        assert split.answer(number) == alone(prompt)
    split.quiet()
    assert split.prefill.core.figures()["cached_pages"] > 0


def test_pages_that_wait_to_be_sent_are_nobody_elses(
    folder: Path, alone: Callable[[list[int]], list[int]]
) -> None:
    """Two prompts are computed side by side and held; others use the pages that are left."""
    made = Split(folder)
    made.prefill.close()
    made.prefill = Side(folder, "prefill", pages=40, threads=2)
    prompt = prompt_of(160)
    for name in ("t0", "t1"):
        made.send(name, prompt)
    made.step_until(lambda: len(made.prefill.core.scheduler.parked) == 2, made.prefill)
    for seed in range(1, 4):
        made.prefill.answers.ask(greedy(prompt_of(250, seed=seed)))
    for name in ("t0", "t1"):
        number = made.receive(name, prompt)
        assert made.answer(number) == alone(prompt)
        made.decode.core.cache.clear()
    made.quiet()
    made.close()


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("who", ["prefill", "decode"])
def test_an_abort_frees_both_and_harms_nobody(
    split: Split, alone: Callable[[list[int]], list[int]], who: str, steps: int
) -> None:
    prompt = prompt_of(200, seed=steps)
    number = split.receive("t", prompt)
    first = split.send("t", prompt)
    for _ in range(steps):
        split.prefill.answers.step()
        split.decode.answers.step()
    if who == "prefill":
        split.prefill.core.abort(first)
        assert split.answer(number) == alone(prompt)
    else:
        split.decode.core.abort(number)
    split.quiet()
    number = split.receive("again", prompt)
    split.send("again", prompt)
    assert split.answer(number) == alone(prompt)
    split.quiet()


def test_a_decode_engine_without_room_takes_them_one_by_one(
    folder: Path, alone: Callable[[list[int]], list[int]]
) -> None:
    made = Split(folder, pages=20)
    prompts = [prompt_of(200, seed=n) for n in range(4)]
    numbers = [made.receive(f"t{n}", prompt) for n, prompt in enumerate(prompts)]
    for n, prompt in enumerate(prompts):
        made.send(f"t{n}", prompt)
    for number, prompt in zip(numbers, prompts, strict=True):
        assert made.answer(number) == alone(prompt)
    made.quiet()
    made.close()


def test_nobody_at_the_address_is_a_recompute(
    split: Split, alone: Callable[[list[int]], list[int]]
) -> None:
    prompt = prompt_of(100)
    request = received("t", "127.0.0.1:1", prompt)
    number = split.decode.answers.add(request)
    assert split.answer(number) == alone(prompt)
    assert split.decode.core.figures()["peer_failures"] <= 1


def test_another_model_is_never_taken(
    folder: Path, tmp_path: Path, alone: Callable[[list[int]], list[int]]
) -> None:
    other = Split(write_model(tmp_path / "other", seed=1))
    decode = Side(folder, "decode")
    prompt = prompt_of(100)
    other.send("t", prompt)
    number = decode.answers.add(received("t", other.prefill.remote, prompt))
    other.decode, mine = decode, other.decode
    assert other.answer(number) == alone(prompt)
    assert decode.answers.last[number].reuse.peer_tokens == 0
    mine.close()
    other.close()


@pytest.mark.parametrize(
    ("role", "params", "named"),
    [
        ("decode", {"do_remote_decode": True, "transfer_id": "t"}, "role decode"),
        ("prefill", {"do_remote_prefill": True, "transfer_id": "t", "remote": "h:1"}, "role pre"),
        ("both", {"do_remote_decode": True, "transfer_id": ""}, "transfer_id"),
        ("both", {"do_remote_decode": True, "do_remote_prefill": True}, "exclude"),
        ("both", {"do_remote_prefill": True, "transfer_id": "t"}, "remote is"),
        ("both", {"do_remote_prefill": True, "transfer_id": "t", "remote": "h"}, "port"),
        ("none", {"do_remote_decode": True, "transfer_id": "t"}, "engine.role"),
    ],
)
def test_parameters_that_mean_nothing_are_bad_input(
    folder: Path, role: str, params: dict[str, Any], named: str
) -> None:
    core = core_of(folder, role=role)
    with pytest.raises(BadInput, match=named):
        core.check(greedy([5, 6, 7], transfer=params))
    if core.disagg is not None:
        core.disagg.close()


class Child:
    """A prefill engine to be killed."""

    def __init__(self, folder: Path) -> None:
        env = {k: v for k, v in os.environ.items() if k != "MOONPOOL_JOB"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.disagg_role", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**env, "PYTHONPATH": f"{Path(ROOT) / 'src'}:{ROOT}"},
        )
        assert self.process.stdout is not None
        self.remote = self.process.stdout.readline().strip()

    def submit(self, transfer: str, prompt: list[int]) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"transfer": transfer, "prompt": prompt}) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "submitted\n"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_prefill_engine_killed_or_stopped_at_any_stage_changes_no_answer(
    folder: Path, alone: Callable[[list[int]], list[int]], number: signal.Signals
) -> None:
    decode = Side(folder, "decode")
    for stage_ms in (0, 10, 60):
        child = Child(folder)
        prompt = prompt_of(700, seed=stage_ms)
        asked = decode.answers.add(received(f"t{stage_ms}", child.remote, prompt))
        decode.answers.step()
        child.submit(f"t{stage_ms}", prompt)
        time.sleep(stage_ms / 1000)
        child.process.send_signal(number)
        give_up_s = time.monotonic() + WAIT_S
        while not decode.core.is_idle:
            assert time.monotonic() < give_up_s
            decode.answers.step()
        assert decode.answers.tokens[asked] == alone(prompt)
        if number is signal.SIGSTOP:
            child.process.send_signal(signal.SIGCONT)
            again = prompt_of(300, seed=1000 + stage_ms)
            assert decode.answers.ask(greedy(again)) == alone(again)
        child.end()
    decode.close()
