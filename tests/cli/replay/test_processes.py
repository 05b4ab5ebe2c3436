"""`moonpool replay` through real processes: known values, faults that show, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moonpool.cli import main
from moonpool.planner.traces import Request, Trace
from moonpool.pool import cluster
from tests.cli.replay.test_driver import MINI

pytestmark = pytest.mark.faults


@pytest.fixture(autouse=True)
def _nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Segments lie in a folder of this test, which is empty afterwards."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        monkeypatch.setattr(cluster, "default_directory", lambda: Path(folder))
        yield
        assert list(Path(folder).iterdir()) == []


def write(trace: Trace, path: Path) -> str:
    path.write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in trace.requests))
    return str(path)


def replay(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The last line of stdout; the exit status says what the errors say."""
    status = main(["replay", *words, "--json"])
    lines = capsys.readouterr().out.splitlines()
    record: dict[str, Any] = json.loads(lines[-1])
    assert status == 0 or record["errors"]
    return record


@pytest.mark.parametrize(
    ("capacity", "blocks", "tokens"), [(3, 5, 2560), (4, 7, 3584), (5, 8, 4060)]
)
def test_a_small_cache_has_the_known_values(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    capacity: int,
    blocks: int,
    tokens: int,
) -> None:
    trace = write(MINI, tmp_path / "mini.jsonl")
    record = replay(capsys, trace, "--capacity-blocks", str(capacity), "--block-bytes", "4KiB")
    assert (record["prefix_hit_blocks"], record["hit_tokens"]) == (blocks, tokens)
    assert record["errors"] == {}


@pytest.mark.parametrize("nodes", [1, 3])
def test_room_for_everything_hits_everything_on_any_number_of_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: int
) -> None:
    trace = write(MINI, tmp_path / "mini.jsonl")
    record = replay(capsys, trace, "--nodes", str(nodes))
    assert (record["requests"], record["input_tokens"]) == (7, 8256)
    assert (record["prefix_hit_blocks"], record["hit_tokens"]) == (9, 4572)
    assert (record["bytes_read"], record["bytes_written"]) == (9 << 14, 8 << 14)
    assert record["errors"] == {}


# 120 prompts that share a head and come twice: 360 different blocks in chains of 4.
TWICE = Trace(
    "twice",
    tuple(
        Request(time, 2048, 1, [0, *range(1000 + 3 * n, 1003 + 3 * n)])
        for time, n in enumerate([*range(120), *range(120)])
    ),
)
ALL_TOKENS = 119 * 512 + 120 * 2048


def test_flipped_bytes_are_errors_and_no_hits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write(TWICE, tmp_path / "twice.jsonl")
    assert replay(capsys, trace)["hit_tokens"] == ALL_TOKENS
    record = replay(capsys, trace, "--inject", "corrupt:5", "--seed", "3")
    assert record["errors"] == {"corrupt": 5}
    assert record["corrupted_bytes"] == 5
    assert ALL_TOKENS - 5 * 2048 <= record["hit_tokens"] < ALL_TOKENS


def test_a_killed_node_is_an_error_and_its_blocks_are_no_hits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write(TWICE, tmp_path / "twice.jsonl")
    record = replay(capsys, trace, "--nodes", "2", "--inject", "kill-node:120")
    assert record["killed_nodes"] == 1
    assert record["errors"]
    assert 119 * 512 <= record["hit_tokens"] < ALL_TOKENS


def test_the_last_node_killed_ends_in_misses_not_in_a_hang(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write(TWICE.head(40), tmp_path / "twice.jsonl")
    record = replay(capsys, trace, "--inject", "kill-node:20")
    assert record["requests"] == 40
    assert record["errors"]
    assert record["hit_tokens"] <= 19 * 512 + 20 * 2048


def test_what_does_not_fit_is_refused_with_the_sum(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["replay", "conversation", "--block-bytes", "1GiB"])
    assert status == 1
    assert "blocks x 1 GiB" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_replay_takes_its_processes_with_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    many = Trace(
        "many", tuple(Request(0, 2048, 1, [4 * n + i for i in range(4)]) for n in range(50_000))
    )
    words = ["replay", write(many, tmp_path / "many.jsonl"), "--block-bytes", "256"]
    process = subprocess.Popen([sys.executable, "-m", "moonpool", *words])
    try:
        children = _children(process.pid, 2)
        process.send_signal(number)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.wait()
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def _children(parent: int, count: int) -> list[int]:
    """Pids of the children of `parent`, once there are `count`."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        if len(text.split()) == count:
            return [int(pid) for pid in text.split()]
        time.sleep(0.05)
    raise AssertionError(f"process {parent} (of {os.getpid()}) has no {count} children")
