"""Prefill and decode engines of vLLM, and the little of a proxy that their tests need."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engines.vllm_rig import ENGINE, ONE_THREAD, PATIENCE_S, EngineProcess, Engines, role
from tests.faults.pool_rig import await_stopped

# Longer than an engine is ever busy with something else here: two cores, many processes.
LEASE = {"lease_ms": 1500, "beat_ms": 150}


class PDEngine:
    """One engine; requests overlap. `remote` is where a prefill engine hands over."""

    def __init__(self, log: Path, model: Path, kind: str, **changes: Any) -> None:
        self.remote = f"127.0.0.1:{free_port()}"
        port = int(self.remote.rpartition(":")[2]) if kind == "kv_producer" else None
        transfer = handoff_transfer(kind, log.stem, port, **changes.pop("extra", {}))
        self.log_path = log
        self._log = log.open("wb")
        self.process, self._answers = role("vllm_pd_role", self._log, ONE_THREAD)
        self._got: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._is_ready = False
        self.version = ""
        arguments = {**ENGINE, "model": str(model), "kv_transfer_config": transfer, **changes}
        self.tell(arguments)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def ready(self) -> PDEngine:
        if not self._is_ready:
            first = self.wait(lambda one: "ready" in one, "its start")
            self._is_ready = True
            EngineProcess.started += 1
            self.version = str(first["version"])
            Engines.versions.add(self.version)
        return self

    def tell(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def add(self, request: str, prompt: list[int], **options: Any) -> None:
        self.tell({"do": "add", "id": request, "prompt": prompt, **options})

    def answer(self, request: str) -> dict[str, Any]:
        return self.wait(lambda one: one.get("id") == request, f"an answer to {request}")

    def counts(self) -> dict[str, Any]:
        self.tell({"do": "counts"})
        return self.wait(lambda one: "counts" in one, "counts")

    def freeze_at(self, stage: str) -> None:
        """It stops by itself when its next hand-over is there; see `await_frozen`."""
        self.tell({"do": "freeze_at", "stage": stage})
        self.wait(lambda one: one.get("armed") == stage, "its word that it will stop")

    def await_frozen(self) -> None:
        await_stopped(self.process.pid)

    def wait(self, wanted: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        give_up_s = time.monotonic() + PATIENCE_S
        with self._news:
            while True:
                for at, one in enumerate(self._got):
                    if wanted(one):
                        return self._got.pop(at)
                assert self.process.poll() is None, f"{what}: it ended: {self.text()[-3000:]}"
                assert time.monotonic() < give_up_s, f"never came: {what}: {self.text()[-3000:]}"
                self._news.wait(0.5)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def text(self) -> str:
        return self.log_path.read_text(errors="replace")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._log.close()
        self._listener.join()  # it closes its pipe

    def _listen(self) -> None:
        for line in self._answers:
            with self._news:
                self._got.append(json.loads(line))
                self._news.notify_all()
        self._answers.close()


class Split:
    """What a proxy does with one request: both engines at once, under one transfer id."""

    def __init__(self, prefill: PDEngine, decode: PDEngine, prompt: list[int], **options: Any):
        self.transfer = uuid.uuid4().hex
        self.prefill, self.decode = prefill, decode
        self.prompt, self.options = prompt, options

    def send_prefill(self) -> None:
        params = {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "transfer_id": self.transfer,
        }
        self.prefill.add(f"p-{self.transfer}", self.prompt, max_tokens=1, params=params)

    def send_decode(self) -> None:
        params = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "transfer_id": self.transfer,
            "remote": self.prefill.remote,
            "remote_engine_id": None,
        }
        self.decode.add(f"d-{self.transfer}", self.prompt, params=params, **self.options)

    def send(self) -> Split:
        self.send_prefill()
        self.send_decode()
        return self

    def answer(self) -> dict[str, Any]:
        return self.decode.answer(f"d-{self.transfer}")

    def prefilled(self) -> dict[str, Any]:
        return self.prefill.answer(f"p-{self.transfer}")


def handoff_transfer(kind: str, name: str, port: int | None, **extra: Any) -> dict[str, Any]:
    """What goes into --kv-transfer-config."""
    where = {} if port is None else {"port": port}
    return {
        "kv_connector": "MoonpoolHandoffConnector",
        "kv_role": kind,
        "kv_connector_module_path": "moonpool.connectors.vllm",
        "kv_connector_extra_config": {"name": name, **where, **extra},
    }


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
