"""A split as people start it: vLLM's own servers, two for prompts and one for answers, behind our
router. The router gives both halves of a request one transfer id."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.test_vllm_pd import BLOCK, prompt
from tests.engines.vllm_pd_rig import LEASE, free_port, handoff_transfer
from tests.engines.vllm_rig import ENGINE, ONE_THREAD, eventually, variables

LONG = 64  # tokens from which on a prompt is computed elsewhere


class Server:
    """One of vLLM's; `transfer` is where a prefill server hands over."""

    def __init__(self, model: Path, log: Path, kind: str) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        port = free_port() if kind == "kv_producer" else None
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

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
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
    def __init__(self, prefill: list[Server], decode: Server, router: Router) -> None:
        self.prefill, self.decode = prefill, decode
        self._url = router.url

    def ask(self, prompt: list[int], url: str = "") -> tuple[str, int]:
        """The answer, and how many prompt tokens were not computed by who gave it."""
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0.0, "model": "tiny"}
        answer = httpx.post(f"{url or self._url}/v1/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        details = told["usage"]["prompt_tokens_details"] or {"cached_tokens": 0}
        return told["choices"][0]["text"], details["cached_tokens"]


@pytest.fixture(scope="module")
def fleet(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    logs = tmp_path_factory.mktemp("served")
    with ExitStack() as stack:
        servers = [
            Server(model, logs / name, kind)
            for name, kind in (("p0", "kv_producer"), ("p1", "kv_producer"), ("d0", "kv_consumer"))
        ]
        for server in servers:
            stack.callback(server.close)
        for server in servers:
            server.await_ready()
        *prefill, decode = servers
        words = ["--remote-prefill-tokens", str(LONG)]
        for server in prefill:
            words += ["--prefill", f"{server.url},transfer={server.transfer}"]
        router = Router(*words, "--decode", decode.url)
        stack.callback(router.close)
        yield Fleet(prefill, decode, router)


def test_two_servers_compute_prompts_and_a_third_answers(fleet: Fleet) -> None:
    prompts = [prompt(f"served {i}", 200 + 61 * i) for i in range(6)]
    for each in prompts:
        text, cached = fleet.ask(each)
        assert cached >= len(each) // BLOCK * BLOCK - 1, "computed where it was answered"
        # A prefill server, asked directly, answers by itself.
        assert fleet.ask(each, fleet.prefill[0].url)[0] == text
    asked = [server.metric("vllm:prompt_tokens_total") for server in fleet.prefill]
    assert min(asked) > 0, "one of them had nothing to do"


def test_a_short_prompt_stays_where_it_is_answered(fleet: Fleet) -> None:
    before = [server.metric("vllm:request_success_total") for server in fleet.prefill]
    assert fleet.ask(prompt("short", LONG - 10))[1] == 0
    assert [s.metric("vllm:request_success_total") for s in fleet.prefill] == before


def test_prefill_servers_that_die_change_no_answer(fleet: Fleet) -> None:
    """Both, one after the other; the last of the three goes on by itself."""
    for number, server in enumerate(fleet.prefill):
        known, fresh = prompt("served 0", 200), prompt(f"dies {number}", 500)
        expected = fleet.ask(known, fleet.decode.url)[0]
        server.close()
        assert fleet.ask(known)[0] == expected
        assert fleet.ask(fresh)[0] == fleet.ask(fresh, fleet.decode.url)[0]
