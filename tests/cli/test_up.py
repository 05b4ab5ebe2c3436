"""`moonpool up`: everything up with one command, everything down with one signal."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import moonpool

pytestmark = pytest.mark.faults


class Up:
    def __init__(self, directory: Path, *words: str) -> None:
        command = [sys.executable, "-m", "moonpool", "up", "--port", "0", "--memory", "8MiB"]
        self.process = subprocess.Popen(
            [*command, "--nodes", "2", "--dir", str(directory), "--json", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.pids = {item["name"]: item["pid"] for item in self.ready["processes"]}

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=60)
        assert not any(Path(f"/proc/{pid}").exists() for pid in self.pids.values())
        return self.process.returncode, err


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path)
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_all_down(tmp_path: Path, up: Up, number: signal.Signals) -> None:
    assert set(up.pids) == {"master", "node0", "node1"}
    with moonpool.connect(up.ready["address"]) as pool:
        pool.put("k", b"value", replicas=2)
        assert pool.get("k") == b"value"
    status, _ = up.end(number)
    assert status == 0
    assert list(tmp_path.iterdir()) == []


def test_the_first_put_waits_for_the_nodes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONPOOL_MASTER_GRACE_MS", "600000")
    up = Up(tmp_path)
    with moonpool.connect(up.ready["address"], timeout_s=60) as pool:
        assert pool.put("k", b"value").status == "stored"
    assert up.end(signal.SIGINT)[0] == 0


def test_a_child_that_dies_is_reported_and_nothing_is_restarted(up: Up) -> None:
    os.kill(up.pids["node1"], signal.SIGKILL)
    status, err = up.wait()
    assert status == 1
    assert f"node1 (pid {up.pids['node1']}) ended by itself, status -9" in err


def test_an_admin_service_that_dies_is_reported_too(tmp_path: Path) -> None:
    up = Up(tmp_path, "--admin-port", "0")
    assert up.ready["admin"].startswith("http://127.0.0.1:")
    os.kill(up.pids["admin"], signal.SIGKILL)
    status, err = up.wait()
    assert status == 1
    assert f"admin (pid {up.pids['admin']}) ended by itself, status -9" in err


def test_children_end_with_a_parent_that_is_killed(up: Up) -> None:
    descriptors = [os.pidfd_open(pid) for pid in up.pids.values()]
    up.process.kill()
    up.process.wait()
    for descriptor in descriptors:
        assert _ended(descriptor)
        os.close(descriptor)


def test_persisted_objects_are_there_at_the_next_start(tmp_path: Path) -> None:
    first = Up(tmp_path, "--persist")
    with moonpool.connect(first.ready["address"]) as pool:
        pool.put("kept", b"value")
    first.end(signal.SIGTERM)
    second = Up(tmp_path, "--persist")
    with moonpool.connect(second.ready["address"]) as pool:
        assert pool.get("kept") == b"value"
    assert second.end(signal.SIGTERM)[0] == 0


def _ended(descriptor: int) -> bool:
    import selectors

    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(30))
