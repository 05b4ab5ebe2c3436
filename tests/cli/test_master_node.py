"""`moonpool master` and `moonpool node` as somebody would run them, each in its own terminal."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import moonpool
from moonpool.core.errors import Refused

pytestmark = pytest.mark.faults
TOKEN = "a long random text"


class Command:
    """A running command; `ready` is its first line."""

    def __init__(self, *words: str, token: str = TOKEN) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "moonpool", *words, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"MOONPOOL_TOKEN": token},
        )
        assert self.process.stdout is not None
        self.ready = json.loads(self.process.stdout.readline() or "{}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


def test_a_pool_of_two_commands(folder: Path) -> None:
    master = Command("master", "--port", "0")
    address = master.ready["address"]
    node = Command(
        "node", "--master", address, "--memory", "8MiB", "--name", "a", "--dir", str(folder)
    )
    assert node.ready["name"] == "a"
    with moonpool.connect(address, token=TOKEN) as pool:
        pool.put("k", b"value")
        assert pool.get("k") == b"value"
    with pytest.raises(Refused):
        moonpool.connect(address, token="another")
    assert node.end(signal.SIGINT) == 0
    assert [path.name for path in folder.iterdir()] == ["a.seg"]
    assert master.end() == 0


def test_a_name_that_another_node_has_is_refused(folder: Path) -> None:
    master = Command("master", "--port", "0")
    words = ["node", "--master", master.ready["address"], "--memory", "8MiB", "--name", "a"]
    node = Command(*words, "--dir", str(folder))
    second = Command(*words, "--dir", str(folder))
    _, err = second.process.communicate(timeout=30)
    assert second.process.returncode == 1
    assert second.ready["error"] == "segment_locked"
    assert str(node.process.pid) in err
    assert node.end() == 0
    assert master.end() == 0


def test_a_port_that_is_taken_is_one_line(folder: Path) -> None:
    master = Command("master", "--port", "0")
    port = master.ready["address"].rpartition(":")[2]
    node = ("node", "--memory", "8MiB", "--name", "a", "--dir", str(folder))
    for words in (("master",), node):
        second = Command(*words, "--port", port)
        _, err = second.process.communicate(timeout=30)
        assert second.process.returncode == 1
        assert len(err.splitlines()) == 1
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in err
    assert master.end() == 0
