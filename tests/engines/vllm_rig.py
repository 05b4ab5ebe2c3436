"""Engines and pools of the vLLM tests: real vLLM processes, a real pool, small local models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, ClassVar, TypeVar

from tests.faults.pool_rig import MIB, Rig, running

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300.0  # engines start slowly on a machine that is busy otherwise
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
# One thread each: on few cores that others use too, threads that wait for each other take minutes,
# and the scheduler's process and our threads want a core, too.
ONE_THREAD = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
# Larger than the model's default, so that blocks are of some size; small beside a real one.
MODEL_CHANGES: dict[str, Any] = {
    "hidden_size": 256,
    "head_dim": 64,
    "max_position_embeddings": 4096,
}
# Prompts of several hundred tokens are prefilled in chunks; the caches are small, so that they are
# reused. Steps of other shapes round otherwise, and what others are in a step depends on time: in
# bfloat16 a near tie of two tokens may turn, in float32 none does.
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "block_size": 32,
    "max_model_len": 2048,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 160,
}


def variables(more: dict[str, str]) -> dict[str, str]:
    """Of a process with vLLM in it."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith("MOONPOOL_")}
    return {**ours, **ENVIRONMENT, **more}


def role(
    module: str, log: IO[bytes], environment: dict[str, str]
) -> tuple[subprocess.Popen[str], IO[str]]:
    """`python -m tests.engines.MODULE`, and what it answers, line by line."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.engines.{module}", str(writing)],
        cwd=ROOT,
        env=variables(environment),
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        pass_fds=[writing],
        text=True,
    )
    os.close(writing)
    return process, os.fdopen(reading)


class EngineProcess:
    """One engine; a call waits for its answer. `log` is what it printed."""

    started = 0

    def __init__(self, log: Path, arguments: dict[str, Any], **environment: str) -> None:
        self.log_path = log
        self._log: IO[bytes] = log.open("wb")
        self.process, self._answers = role("vllm_role", self._log, environment)
        self._lock = threading.Lock()
        self._tell(arguments)
        self._ready: dict[str, Any] | None = None

    @property
    def version(self) -> str:
        return self._ready["version"] if self._ready else ""

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
        """Ours, those of the last request included: vLLM takes them up with its next step."""
        self.generate([7] * 9, max_tokens=2)
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


class Engines:
    """Engines by name over one model and one pool; `start` does not wait, so two start at once."""

    versions: ClassVar[set[str]] = set()

    def __init__(self, model: Path, master: str, logs: Path) -> None:
        self._model = model
        self._master = master
        self._logs = logs
        self._engines: dict[str, EngineProcess] = {}

    def start(
        self,
        name: str,
        *,
        connector: bool = True,
        model: Path | None = None,
        master: str | None = None,
        role: str = "kv_both",
        environment: dict[str, str] | None = None,
        extra: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> EngineProcess:
        """The engine called `name`; the arguments count when it is first asked for."""
        if name not in self._engines:
            options = {**ENGINE, **arguments, "model": str(model or self._model)}
            if connector:
                options["kv_transfer_config"] = moonpool_transfer(
                    master or self._master, role, **(extra or {})
                )
            log = self._logs / f"{name}.log"
            self._engines[name] = EngineProcess(
                log, options, **{**ONE_THREAD, **(environment or {})}
            )
        return self._engines[name]

    def end(self, name: str) -> None:
        engine = self._engines.pop(name)
        self._note(engine)
        engine.end()

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *exc: object) -> None:
        for name in list(self._engines):
            self.end(name)

    def _note(self, engine: EngineProcess) -> None:
        if engine.version:
            Engines.versions.add(engine.version)

    @classmethod
    def summary(cls) -> list[str]:
        """For the end of the run: which vLLM, and how often it was started."""
        if not EngineProcess.started:
            return []
        versions = ", ".join(sorted(cls.versions))
        return [f"vLLM {versions}: {EngineProcess.started} engine starts"]


@contextmanager
def running_pool(memory: int = 128 * MIB) -> Iterator[Rig]:
    """One node, because a batch lies on one: whoever stops it stops the loads."""
    with running(nodes=1, memory=memory, nodes_expected=1) as rig:
        yield rig


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
