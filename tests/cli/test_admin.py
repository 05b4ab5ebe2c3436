"""`moonpool admin`, `top` and `explain`, and the page that `up` brings."""

import contextlib
import fcntl
import io
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import moonpool
from moonpool.cli import main
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.cluster import Cluster, local_directory

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with local_directory("test") as directory:
        node = NodeConfig(name="node0", memory=4 << 20, dir=str(directory), persist=False)
        with Cluster(MasterConfig(port=0, nodes_expected=1), [node]) as cluster:
            yield cluster.address


def started(*words: str, **environment: str) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "moonpool", *words, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def test_admin_serves_until_a_signal(address: str) -> None:
    process, ready = started("admin", "--master", address, "--port", "0")
    try:
        assert ready["master"] == address
        assert httpx.get(f"{ready['url']}/ready").json()["ready"]
        assert httpx.put(f"{ready['url']}/v1/objects/k", content=b"v").status_code == 201
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_no_master_no_admin() -> None:
    process, told = started("admin", "--master", "127.0.0.1:1", "--port", "0")
    process.communicate(timeout=30)
    assert process.returncode == 1 and told["error"] == "unreachable"


def test_the_port_is_taken(address: str) -> None:
    first, ready = started("admin", "--master", address, "--port", "0")
    try:
        port = ready["url"].rpartition(":")[2]
        second, told = started("admin", "--master", address, "--port", port)
        second.communicate(timeout=30)
        assert second.returncode == 1 and "another --port" in told["message"]
    finally:
        first.terminate()
        first.communicate(timeout=30)


def test_up_brings_the_page_and_takes_it_down(tmp_path: Path) -> None:
    words = ("up", "--port", "0", "--memory", "4MiB", "--dir", str(tmp_path), "--admin-port", "0")
    process, ready = started(*words, MOONPOOL_TOKEN="secret")
    (admin,) = [one["pid"] for one in ready["processes"] if one["role"] == "admin"]
    try:
        assert httpx.get(f"{ready['admin']}/metrics").status_code == 401
        token = {"authorization": "Bearer secret"}
        assert "moonpool_up 1" in httpx.get(f"{ready['admin']}/metrics", headers=token).text
        assert b"secret" not in Path(f"/proc/{admin}/cmdline").read_bytes()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 0 and not Path(f"/proc/{admin}").exists()


def test_top_once(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with moonpool.connect(address) as pool:
        pool.put("top", b"x")
    assert main(["top", "--once", "--every", "0.1", "--master", address]) == 0
    line = capsys.readouterr().out
    assert "reads/s" in line and line.rstrip().endswith("ready")
    assert main(["top", "--once", "--every", "0.1", "--json", "--master", address]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["unready"] == "" and record["objects"] >= 1
    assert main(["top", "--every", "0", "--master", address]) == 2


def test_top_on_a_terminal_is_drawn_until_ctrl_c(address: str) -> None:
    """A terminal of its own: what is drawn is read from the other end."""
    with moonpool.connect(address) as pool:
        pool.put("drawn", b"x")
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    command = [sys.executable, "-m", "moonpool", "top", "--every", "0.1", "--master", address]
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=there, stdout=there, stderr=there, env=environment)
    os.close(there)
    seen = b""
    try:
        while not all(word in seen for word in (b"node0", b"memory", b"reads/s", b"Ctrl-C")):
            assert select.select([here], [], [], 30)[0], seen
            seen += os.read(here, 65_536)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the other end is gone
            while os.read(here, 65_536):
                pass
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(here)


def test_explain(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with moonpool.connect(address) as pool:
        pool.put("told", b"x")
        assert main(["explain", "told", "--master", address]) == 0
        assert "readable, from node0" in capsys.readouterr().out
        pool.remove("told")
    assert main(["explain", "told", "--master", address, "--json"]) == 1
    story = json.loads(capsys.readouterr().out)
    assert [event["kind"] for event in story["events"]] == ["put", "remove"]


def test_explain_of_a_requests_keys(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with moonpool.connect(address) as pool:
        pool.put_many(["b0", "b1"], [b"x", b"y"])
    assert main(["explain", "b0", "b1", "--master", address]) == 0
    assert "all 2 blocks are readable" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("b0\nb1\nb2\n"))
    assert main(["explain", "-", "--master", address]) == 1
    said = capsys.readouterr().out
    assert "2 of 3 blocks lead; block 2 (b2) is a miss" in said
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["explain", "-", "--master", address]) == 2
