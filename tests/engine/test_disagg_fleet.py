"""The whole of it as people start it: a router, a prefill and a decode engine, each a process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.steps import prompt_of
from tests.engine.tiny import write_model
from tests.tree import ROOT

pytestmark = pytest.mark.faults
CHUNK = 32


class Command:
    """`moonpool ...`, once it is ready; `told` is its first line."""

    def __init__(self, *words: str) -> None:
        ours = {k: v for k, v in os.environ.items() if not k.startswith("MOONPOOL_")}
        ours |= {"PYTHONPATH": str(Path(ROOT) / "src"), "MOONPOOL_HANDOFF_LEASE_MS": "3000"}
        line = "import sys; from moonpool.cli import main; sys.exit(main())"
        self.process = subprocess.Popen(
            [sys.executable, "-c", line, *words, "--json"],
            stdout=subprocess.PIPE,
            text=True,
            env=ours,
        )
        assert self.process.stdout is not None
        self.told: dict[str, Any] = json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Fleet:
    def __init__(self, folder: Path, pairs: int = 1) -> None:
        settings = ["--chunk-tokens", str(CHUNK), "--block-size", "16", "--kv-memory", "16MiB"]
        engine = ["engine", "--model", str(folder), "--port", "0", "--threads", "1", *settings]
        self.prefills = [Command(*engine, "--role", "prefill") for _ in range(pairs)]
        self.decodes = [Command(*engine, "--role", "decode") for _ in range(pairs)]
        self.prefill = self.prefills[0]
        workers: list[str] = []
        for one in self.prefills:
            workers += ["--prefill", f"{root_of(one)},transfer={one.told['transfer']}"]
        for one in self.decodes:
            workers += ["--decode", root_of(one)]
        self.router = Command("router", "--port", "0", "--remote-prefill-tokens", "64", *workers)
        self.url = str(self.router.told["url"]).rstrip("/")

    def ask(self, prompt: list[int], url: str = "") -> tuple[str, int]:
        """The answer's text, and how many prompt tokens were not computed by who answered."""
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0.0, "model": "tiny"}
        answer = httpx.post(f"{url or self.url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        cached = told["usage"]["prompt_tokens_details"]["cached_tokens"]
        return told["choices"][0]["text"], cached

    def close(self) -> None:
        for command in (self.router, *self.decodes, *self.prefills):
            command.end()


def prompt_tokens(engine: Command) -> dict[str, float]:
    """Prompt tokens that it had, by where they came from."""
    page = httpx.get(f"{root_of(engine)}/metrics", timeout=60).text
    found = re.findall(r'prompt_tokens_total\{source="(\w+)"\} (\S+)', page)
    return {source: float(count) for source, count in found}


def root_of(command: Command) -> str:
    return str(command.told["url"]).removesuffix("/v1")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(write_model(tmp_path_factory.mktemp("fleet") / "tiny"))
    yield made
    made.close()


def test_a_prompt_goes_to_one_engine_and_its_answer_comes_from_another(fleet: Fleet) -> None:
    for seed in range(3):
        prompt = prompt_of(200 + seed, seed=seed)
        text, cached = fleet.ask(prompt)
        assert cached == (len(prompt) - 1) // CHUNK * CHUNK, "computed where it was answered"
        # The prefill engine, asked directly, answers by itself.
        assert fleet.ask(prompt, root_of(fleet.prefill))[0] == text


def test_a_prefill_engine_killed_under_way_changes_no_answer(fleet: Fleet) -> None:
    prompt = prompt_of(900, seed=9)
    expected = fleet.ask(prompt, root_of(fleet.prefill))[0]
    answers: list[str] = []
    fresh = prompt_of(900, seed=10)
    thread = threading.Thread(target=lambda: answers.append(fleet.ask(fresh)[0]))
    thread.start()
    time.sleep(0.05)
    fleet.prefill.process.send_signal(signal.SIGKILL)
    thread.join()
    assert len(answers) == 1
    # Whatever it did with the one, the other half of the fleet goes on by itself.
    assert fleet.ask(prompt)[0] == expected
    assert fleet.ask(fresh)[0] == answers[0]


def test_two_prefill_and_two_decode_engines_share_the_work(tmp_path: Path) -> None:
    fleet = Fleet(write_model(tmp_path / "tiny"), pairs=2)
    try:
        prompts = [prompt_of(300 + seed, seed=seed) for seed in range(12)]
        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(fleet.ask, prompts))
        for prompt, (text, cached) in zip(prompts, answers, strict=True):
            assert cached == (len(prompt) - 1) // CHUNK * CHUNK, "computed where it was answered"
            assert fleet.ask(prompt, root_of(fleet.prefill))[0] == text
        assert all(prompt_tokens(one)["peer"] > 0 for one in fleet.decodes)
        assert all(prompt_tokens(one)["computed"] > 0 for one in fleet.prefills)
    finally:
        fleet.close()
