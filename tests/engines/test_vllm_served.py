"""A split as people start it: vLLM's own servers, one for prompts and one for answers, behind our
router, which gives both halves of a request one transfer id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.test_vllm_pd import BLOCK, prompt
from tests.engines.vllm_pd_rig import LEASE, free_port, handoff_transfer
from tests.engines.vllm_rig import ENGINE, ONE_THREAD, eventually, variables

PREFILL, DECODE = "kv_producer", "kv_consumer"
LONG = 64  # tokens from which on a prompt is computed elsewhere


class Server:
    """One of vLLM's; `transfer` is where a prefill server hands over."""

    def __init__(self, model: Path, log: Path, kind: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        port = free_port() if kind == PREFILL else None
        self.transfer = f"127.0.0.1:{port}"
        transfer = handoff_transfer(kind, log.stem, port, **LEASE)
        options: dict[str, Any] = {
            **ENGINE,
            "model": model,
            "served_model_name": "tiny",
            "host": "127.0.0.1",
            "port": self.url.rpartition(":")[2],
            "kv_transfer_config": json.dumps(transfer),
        }
        words = [w for k, v in options.items() for w in (f"--{k.replace('_', '-')}", str(v))]
        words += ["--enforce-eager", "--enable-prompt-tokens-details"]
        self.log_path = log
        self._log = log.open("wb")
        # The command `vllm` of this wheel does not start.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words],
            env=variables({**ONE_THREAD, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def await_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log_path.read_text(errors="replace")[-4000:]
            try:
                return httpx.get(f"{self.url}/health", timeout=5).status_code == 200
            except httpx.TransportError:
                return False

        eventually(ready, f"a server that answers: {self.log_path}")

    def metric(self, name: str) -> float:
        """Summed over its labels."""
        lines = httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def kill(self) -> None:
        """With the engine, which is a process of its own."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """In order where it can: what is killed leaves shared memory behind."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        with suppress(ProcessLookupError):
            self.kill()
        self._log.close()


class Router:
    """`moonpool router WORDS`; `url` is where it listens."""

    def __init__(self, *words: str) -> None:
        line = "import sys; from moonpool.cli import main; sys.exit(main())"
        self._process = subprocess.Popen(
            [sys.executable, "-c", line, "router", "--port", "0", *words, "--json"],
            stdout=subprocess.PIPE,
            env=variables({}),
            text=True,
        )
        assert self._process.stdout is not None
        self.url = str(json.loads(self._process.stdout.readline())["url"]).rstrip("/")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Fleet:
    def __init__(self, prefill: Server, decode: Server, router: Router) -> None:
        self.prefill, self.decode = prefill, decode
        self.url = router.url

    def ask(self, prompt: list[int], url: str = "") -> tuple[str, int]:
        """The answer, and how many prompt tokens were not computed by who gave it."""
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0.0, "model": "tiny"}
        answer = httpx.post(f"{url or self.url}/v1/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        details = told["usage"]["prompt_tokens_details"] or {"cached_tokens": 0}
        return told["choices"][0]["text"], details["cached_tokens"]


@pytest.fixture(scope="module")
def fleet(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    logs = tmp_path_factory.mktemp("served")
    with ExitStack() as stack:
        prefill, decode = Server(model, logs / "p0", PREFILL), Server(model, logs / "d0", DECODE)
        for server in (prefill, decode):
            stack.callback(server.close)
        for server in (prefill, decode):
            server.await_ready()
        router = Router(
            *("--remote-prefill-tokens", str(LONG)),
            *("--prefill", f"{prefill.url},transfer={prefill.transfer}"),
            *("--decode", decode.url),
        )
        stack.callback(router.close)
        yield Fleet(prefill, decode, router)


def test_one_server_computes_prompts_and_another_answers(fleet: Fleet) -> None:
    for i in range(4):
        tokens = prompt(f"served {i}", 200 + 61 * i)
        text, cached = fleet.ask(tokens)
        assert cached >= len(tokens) // BLOCK * BLOCK - 1, "computed where it was answered"
        # The prefill server, asked directly, answers by itself.
        assert fleet.ask(tokens, fleet.prefill.url)[0] == text


def test_a_short_prompt_stays_where_it_is_answered(fleet: Fleet) -> None:
    before = fleet.prefill.metric("vllm:request_success_total")
    assert before > 0
    assert fleet.ask(prompt("short", LONG - 10))[1] == 0
    assert fleet.prefill.metric("vllm:request_success_total") == before


def test_a_prefill_server_that_dies_changes_no_answer(fleet: Fleet) -> None:
    """The other half of the fleet goes on by itself."""
    known, fresh = prompt("served 0", 200), prompt("dies", 500)
    expected = fleet.ask(known, fleet.decode.url)[0]
    fleet.prefill.kill()
    assert fleet.ask(known)[0] == expected
    assert fleet.ask(fresh)[0] == fleet.ask(fresh, fleet.decode.url)[0]
