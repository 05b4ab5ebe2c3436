"""Processes around a segment are stopped and killed; its memory stays right."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from moonpool import _core
from tests.faults.segment_roles import stamped
from tests.transfer.shared_segment import MOVED, NO_SPACE, OK, At, put, records, retire

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20

pytestmark = pytest.mark.faults


class Role:
    """One process of `segment_roles`, with its children a group of its own."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "tests.faults.segment_roles", *map(str, words)]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pipesize=1 << 20,
            start_new_session=True,
        )

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words, "the process ended early"
        return words

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def kill(self) -> list[list[str]]:
        """The lines said before the end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.signal(signal.SIGKILL)
        rest = self.process.stdout.read()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        return [line.split() for line in rest.splitlines(keepends=True) if line.endswith("\n")]


@pytest.fixture
def start() -> Iterator[Callable[..., Role]]:
    """Starts roles of which none outlives the test."""
    started: list[Role] = []

    def start_one(*words: object) -> Role:
        started.append(Role(*words))
        return started[-1]

    yield start_one
    for role in started:
        if role.process.returncode is None:
            role.kill()


def await_stopped(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
        time.sleep(0.001)


def fill_with_stamps(agent: _core.SegmentAgent, size: int) -> dict[At, bytes]:
    """Objects until the segment is full, each with bytes of its own."""
    stored: dict[At, bytes] = {}
    while True:
        status, slot, generation = agent.claim(records([size], [b"key"]), b"key", agent.term)
        if status[0] == NO_SPACE:
            return stored
        at, data = At(int(slot[0]), int(generation[0])), stamped(len(stored), size)
        assert agent.write(*at, 0, data) == OK
        assert agent.seal(at.slots, at.generations, at.slots, 1, agent.term)[0] == OK
        stored[at] = data


def test_a_stopped_writer_harms_no_other_object(tmp_path: Path, start: Callable[..., Role]) -> None:
    path, size = str(tmp_path / "segment"), 8 * MIB
    node = start("serve", path, size)
    assert node.line() == ["ready"]
    writer = start("write", path, size)
    row = writer.line()
    node.tell(*row)
    status, *where = node.line()
    assert status == "0"
    writer.tell(*where)
    assert writer.line() == ["writing"]
    time.sleep(0.02)
    writer.signal(signal.SIGSTOP)
    await_stopped(writer.process.pid)
    node.kill()

    agent = _core.SegmentAgent.adopt(path)
    assert agent.adopted["writing"] == 1
    assert agent.expire(np.array([1], np.uint64), np.array([77], np.uint64)) == 1
    stored = fill_with_stamps(agent, MIB - 64)
    assert agent.usage()["retired"] == 1, "its memory must wait for the writer"
    writer.signal(signal.SIGCONT)
    assert writer.line() == ["status", str(MOVED)]
    for at, data in stored.items():
        assert agent.read(*at) == data
    free = agent.usage()["free_bytes"]
    writer.kill()
    assert agent.drain() == 1
    assert agent.usage()["free_bytes"] == free + size
    agent.destroy()


def test_a_killed_agent_loses_nothing(tmp_path: Path, start: Callable[..., Role]) -> None:
    path = str(tmp_path / "segment")
    node = start("fill", path, 300)
    sealed = [node.line() for _ in range(300)]
    node.kill()
    info = _core.segment_info(path)
    assert (info["owner_alive"], info["owner_pid"]) == (False, node.process.pid)
    agent = _core.SegmentAgent.adopt(path)
    assert agent.adopted == {"sealed": 300, "writing": 0, "retired": 0, "freed": 0, "broken": 0}
    for slot, generation, seed in (map(int, words) for words in sealed):
        assert agent.read(slot, generation) == stamped(seed, 1000 + seed)
    agent.destroy()


def test_a_thousand_killed_readers_leave_no_pin(tmp_path: Path, start: Callable[..., Role]) -> None:
    path = str(tmp_path / "segment")
    agent = _core.SegmentAgent.create(path, MIB, 0, 16, rows=100, populate=False)
    at = put(agent, b"viewed")
    for _ in range(10):
        readers = start("views", path, at.slot, at.generation, 100)
        for _ in range(100):
            assert readers.line() == ["holds", "3"]
        assert agent.usage()["pins"] == 300
        readers.kill()
        while agent.usage()["pins"]:  # the kernel closes a killed process's files after its end
            time.sleep(0.005)
    assert retire(agent, at) == OK
    assert agent.drain() == 1
    agent.destroy()


def test_a_forked_child_keeps_no_pin_of_its_parent(
    tmp_path: Path, start: Callable[..., Role]
) -> None:
    path = str(tmp_path / "segment")
    agent = _core.SegmentAgent.create(path, MIB, 0, 16, populate=False)
    at = put(agent, b"viewed")
    reader = start("orphan", path, at.slot, at.generation)
    assert sorted([reader.line(), reader.line()]) == [["child", "lives"], ["holds", "6"]]
    assert agent.usage()["pins"] == 1
    os.kill(reader.process.pid, signal.SIGKILL)
    while agent.usage()["pins"]:
        time.sleep(0.005)
    assert retire(agent, at) == OK
    assert agent.drain() == 1
    agent.destroy()


def test_rows_of_dead_clients_are_used_again(tmp_path: Path, start: Callable[..., Role]) -> None:
    path = str(tmp_path / "segment")
    agent = _core.SegmentAgent.create(path, MIB, 0, 16, rows=1, populate=False)
    epochs = []
    for _ in range(3):
        client = start("write", path, 100)
        row, epoch = map(int, client.line())
        epochs.append(epoch)
        assert agent.claim(records([100], [b"key"]), b"key", 0, row, epoch)[0][0] == OK
        with pytest.raises(_core.SegmentFull):
            _core.SegmentClient(path)
        assert agent.drain() == 0
        client.kill()
        while _core.segment_info(path)["clients_alive"]:
            time.sleep(0.005)
        assert agent.drain() == 1
    assert epochs == [1, 2, 3]
    agent.destroy()


def test_kills_at_random_moments_leave_a_consistent_segment(
    tmp_path: Path, start: Callable[..., Role]
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    path = str(tmp_path / "segment")
    _core.SegmentAgent.create(path, 2 * MIB, 0, 200, populate=False).close()
    sealed: dict[tuple[int, int], tuple[int, int]] = {}
    for _ in range(6):
        node = start("churn", path, draw.randrange(1 << 30))
        first = node.line()
        time.sleep(draw.uniform(0, 0.15))
        for kind, slot, generation, *value in [first, *node.kill()]:
            at = int(slot), int(generation)
            if kind == "S":
                sealed[at] = int(value[0]), int(value[1])
            else:
                sealed.pop(at, None)  # asked for, and perhaps done
        agent = _core.SegmentAgent.adopt(path)
        assert agent.adopted["broken"] == 0
        assert agent.adopted["writing"] == 0
        for at, (value_seed, size) in sealed.items():
            assert agent.read(*at) == stamped(value_seed, size)
        agent.close()
    agent = _core.SegmentAgent.adopt(path)
    found = agent.inventory(0, agent.slots)
    agent.retire(found["slot"], found["generation"], agent.term)
    agent.drain()
    assert agent.usage()["free_bytes"] == agent.usage()["largest_free"] == agent.data_bytes
    agent.destroy()
