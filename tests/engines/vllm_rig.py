"""Engines and pools of the vLLM tests: real vLLM processes, a real pool, small local models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
T = TypeVar("T")

# Found by trial on two cores: without the reserved CPU set to 0 vLLM takes another number of
# threads beside a connector, and other threads are other floats.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "PYTHONHASHSEED": "0",
}


class EngineProcess:
    """One engine; a call waits for its answer. `log` is what it printed."""

    started = 0

    def __init__(self, log: Path, arguments: dict[str, Any], **environment: str) -> None:
        reading, writing = os.pipe()
        self.log_path = log
        self._log: IO[bytes] = log.open("wb")
        ours = {k: v for k, v in os.environ.items() if not k.startswith("MOONPOOL_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.engines.vllm_role", str(writing)],
            cwd=ROOT,
            env={**ours, **ENVIRONMENT, **environment},
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
            text=True,
        )
        os.close(writing)
        self._answers = os.fdopen(reading)
        self._lock = threading.Lock()
        self._tell(arguments)
        self._ready: dict[str, Any] | None = None

    def ready(self) -> dict[str, Any]:
        """Its version and the time it took to start."""
        if self._ready is None:
            self._ready = self._answer()
            EngineProcess.started += 1
        return self._ready

    def call(self, command: str, **arguments: Any) -> Any:
        self.ready()
        with self._lock:
            self._tell({"do": command, **arguments})
            return self._answer()["result"]

    def generate(self, *prompts: list[int], **options: Any) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = self.call("generate", prompts=list(prompts), **options)
        return answers

    def counters(self) -> dict[str, float]:
        found: dict[str, float] = self.call("counters")
        return found

    def log(self) -> str:
        self._log.flush()
        return self.log_path.read_text(errors="replace")

    def end(self) -> None:
        """In order where it can, else by force."""
        if self.process.poll() is None and self._ready is not None:
            try:
                self.call("stop")
                self.process.wait(30)
            except (AssertionError, OSError, subprocess.TimeoutExpired):
                pass
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._answers.close()
        self._log.close()

    def _tell(self, words: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        assert line, f"the engine ended: {self.log()[-4000:]}"
        words: dict[str, Any] = json.loads(line)
        return words


def moonpool_transfer(master: str, role: str = "kv_both", **extra: Any) -> dict[str, Any]:
    """What goes into --kv-transfer-config."""
    return {
        "kv_connector": "MoonpoolConnector",
        "kv_role": role,
        "kv_connector_module_path": "moonpool.connectors.vllm",
        "kv_connector_extra_config": {"master": master, **extra},
    }


def eventually(condition: Callable[[], T], what: str) -> T:
    """The first true answer of `condition`."""
    deadline = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.05)
    return answer
