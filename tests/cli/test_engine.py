"""`moonpool engine`: a process that serves, says when it is ready, and ends when it is told to."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from moonpool.cli import main
from moonpool.core.engine_section import EngineConfig
from moonpool.engine.model_files import SMOLLM2_FETCH
from tests.engine.tiny import write_model

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


def can_listen(host: str) -> bool:
    try:
        with socket.create_server((host, 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_it_serves_until_sigterm(model: Path, host: str) -> None:
    if ":" in host and not can_listen(host):
        pytest.skip("this machine has no IPv6")
    command = [sys.executable, "-m", "moonpool", "engine", "--model", str(model), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--kv-memory", "4MiB", "--served-name", "mine", "--json", "--host", host],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        assert ready["ready"] == "engine" and ready["model"] == "mine" and ready["pool"] is None
        assert ready["context_tokens"] == 2048
        with openai.OpenAI(base_url=ready["url"], api_key="-", max_retries=0) as client:
            answer = client.completions.create(model="mine", prompt="hello", max_tokens=4)
        assert answer.usage is not None and answer.usage.completion_tokens == 4
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (0, "")
    assert err == "taking the engine down\n"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `moonpool engine WORDS` says when it does not start."""
    assert main(["engine", *words]) in (1, 2)
    return capsys.readouterr().err


def test_missing_weights_say_how_to_get_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "needs --model" in refused(capsys)
    assert SMOLLM2_FETCH in refused(capsys, "--model", str(tmp_path / "absent"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert SMOLLM2_FETCH in refused(capsys, "--model", "smollm2")


def test_damaged_and_foreign_weights_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cut = write_model(tmp_path / "cut")
    weights = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert "is cut off or no safetensors file" in refused(
        capsys, "--model", str(cut), "--port", "0"
    )
    other = write_model(tmp_path / "other", architectures=["MambaForCausalLM"])
    assert "MambaForCausalLM is not known here" in refused(
        capsys, "--model", str(other), "--port", "0"
    )
    gguf = tmp_path / "x.gguf"
    gguf.write_bytes(b"GGUF")
    assert "download it again" in refused(capsys, "--model", str(gguf), "--port", "0")


def test_a_taken_port_and_an_open_door_are_refused(
    capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "port 0 takes any free one" in refused(capsys, "--model", str(model), "--port", port)
    assert "there is no API key" in refused(capsys, "--model", str(model), "--host", "0.0.0.0")


def test_blocks_that_do_not_fit_chunks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--block-size", "48", "--chunk-tokens", "64")
    assert "is no multiple of engine.block_size" in refused(capsys, "--model", "x", *words)
    assert EngineConfig().chunk_tokens % EngineConfig().block_size == 0
