"""A prefill rank in another process, killed and stopped at every stage; every byte is stamped."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moonpool.transfer.handoff import DecodeNode
from tests.transfer.handoff.ranks import (
    LAYERS,
    Inbox,
    compute,
    config,
    layout,
    memory_of,
    stamp,
    until,
)
from tests.tree import ROOT

pytestmark = pytest.mark.faults

STAGES = ["unopened", "open", "announced", "pushing", "computed"]
SHAPE = {"token_bytes": 16 << 10}  # 128 KiB a block: a push takes a while
# As short as a machine that is busy with other tests keeps.
SHORT = {"lease_ms": 1500, "beat_ms": 100, "fence_ms": 300}


class Prefill:
    """The process, and lines to it."""

    def __init__(self, shape: dict[str, Any], settings: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.transfer.handoff.prefill_role",
                json.dumps(shape),
                json.dumps(settings),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{Path(ROOT) / 'src'}:{ROOT}"},
        )
        assert self.process.stdout is not None
        self.remote = self.process.stdout.readline().strip()

    def tell(self, answer: bool = True, **order: Any) -> dict[str, bool]:
        """An order; what was released by then."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline())) if answer else {}

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Bench:
    def __init__(self, **settings: Any) -> None:
        self.settings = SHORT | settings
        self.prefill = Prefill(SHAPE, self.settings)
        memory, self.target = memory_of(layout(**SHAPE))
        self.node = DecodeNode("d0", memory, config(**self.settings))
        self.settled = Inbox(self.node)

    def bring_to(self, stage: str, transfer: str, blocks: list[int]) -> None:
        """Blocks at both ends have the same numbers."""
        tokens = len(blocks) * 8
        if stage == "unopened":
            self.node.claim(transfer, self.prefill.remote)
            until(lambda: self.node.counts.get("sessions", 0) > 0)
            return
        self.prefill.tell(open=transfer, tokens=tokens, blocks=blocks)
        if stage == "open":
            self.node.claim(transfer, self.prefill.remote)
            until(lambda: self.node.counts.get("sessions", 0) > 0)
            return
        self.node.announce(transfer, self.prefill.remote, 0, tokens, blocks)
        if stage == "announced":
            until(lambda: self.node.counts.get("sessions", 0) > 0)
            return
        self.prefill.tell(compute=transfer, layers=[0, 2])
        until(lambda: len(self.node.progress(transfer)) == 2)
        if stage == "computed":
            self.prefill.tell(answer=False, compute=transfer, layers=[2, LAYERS])

    def serves(self, blocks: list[int]) -> bool:
        """A whole transfer; a busy machine may need several tries to keep a short lease."""
        for number in range(10):
            transfer = f"next{number}"
            self.prefill.tell(open=transfer, tokens=len(blocks) * 8, blocks=blocks)
            self.node.announce(transfer, self.prefill.remote, 0, len(blocks) * 8, blocks)
            self.prefill.tell(compute=transfer, layers=[0, LAYERS])
            if self.settled.settled(transfer).ok:
                return self.arrived(transfer, blocks)
        return False

    def reuse(self, blocks: list[int]) -> None:
        """Decode takes its blocks back and fills them with its own."""
        for layer in range(LAYERS):
            for block in blocks:
                self.target[layer, 0, block] = stamp("mine", layer, block, self.target.shape[3])

    def untouched(self, blocks: list[int]) -> bool:
        return all(
            np.array_equal(
                self.target[layer, 0, block], stamp("mine", layer, block, self.target.shape[3])
            )
            for layer in range(LAYERS)
            for block in blocks
        )

    def arrived(self, transfer: str, blocks: list[int]) -> bool:
        return all(
            np.array_equal(
                self.target[layer, 0, block], stamp(transfer, layer, at, self.target.shape[3])
            )
            for layer in range(LAYERS)
            for at, block in enumerate(blocks)
        )

    def close(self) -> None:
        self.node.close()
        self.prefill.end()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_prefill_worker_is_known_and_its_successor_serves(
    bench: Bench, stage: str
) -> None:
    blocks = list(range(12))
    bench.bring_to(stage, "t", blocks)
    bench.prefill.signal(signal.SIGKILL)
    settled = bench.settled.settled("t")
    if settled.ok:
        assert stage == "computed"
        assert bench.arrived("t", blocks)
    bench.prefill.end()
    bench.prefill = Prefill(SHAPE, bench.settings)
    assert bench.serves(blocks)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stopped_prefill_worker_writes_nothing_when_it_wakes(bench: Bench, stage: str) -> None:
    blocks = list(range(12))
    bench.bring_to(stage, "t", blocks)
    bench.prefill.signal(signal.SIGSTOP)
    settled = bench.settled.settled("t")
    if settled.ok:
        assert stage == "computed"
        assert bench.arrived("t", blocks)
    bench.reuse(blocks)
    bench.prefill.signal(signal.SIGCONT)
    if stage not in ("unopened", "computed"):
        bench.prefill.tell(compute="t", layers=[0, LAYERS])
        until(lambda: bench.prefill.tell(released=True).get("t") is False)
    time.sleep(0.2)
    assert bench.untouched(blocks)
    assert bench.serves([block + 12 for block in blocks])


def test_stops_at_random_moments_of_a_push_leave_reused_blocks_alone(bench: Bench) -> None:
    seed = int(os.environ.get("HANDOFF_SEED", random.randrange(2**32)))
    print(f"HANDOFF_SEED={seed}")
    draw = random.Random(seed)
    blocks = list(range(12))
    for number in range(4):
        transfer = f"t{number}"
        bench.bring_to("announced", transfer, blocks)
        bench.prefill.tell(answer=False, compute=transfer, layers=[0, LAYERS])
        time.sleep(draw.uniform(0.0, 0.02))
        bench.prefill.signal(signal.SIGSTOP)
        settled = bench.settled.settled(transfer)
        assert not settled.ok or bench.arrived(transfer, blocks)
        bench.reuse(blocks)
        bench.prefill.signal(signal.SIGCONT)
        assert bench.prefill.process.stdout is not None
        bench.prefill.process.stdout.readline()
        until(lambda transfer=transfer: transfer in bench.prefill.tell(released=True))  # type: ignore[misc]
        time.sleep(0.05)
        assert bench.untouched(blocks)


def test_an_abort_while_bytes_move_frees_both_ends(bench: Bench) -> None:
    blocks = list(range(12))
    bench.bring_to("announced", "t", blocks)
    bench.prefill.tell(answer=False, compute="t", layers=[0, LAYERS])
    bench.node.cancel("t")
    settled = bench.settled.settled("t")
    bench.reuse(blocks)
    assert bench.prefill.process.stdout is not None
    bench.prefill.process.stdout.readline()
    until(lambda: "t" in bench.prefill.tell(released=True))
    assert bench.untouched(blocks)
    assert settled.code in ("cancelled", "")


def test_a_killed_decode_worker_frees_the_prefill_blocks() -> None:
    """The other way round: the decode rank is a process, prefill is here."""
    from moonpool.transfer.handoff import PrefillNode

    memory, source = memory_of(layout())
    node = PrefillNode("p0", memory, config(**SHORT))
    inbox = Inbox(node)
    remote = node.start()
    script = (
        "import sys\n"
        "from tests.transfer.handoff.ranks import *\n"
        "memory, _ = memory_of(layout())\n"
        f"node = DecodeNode('d0', memory, config(**{SHORT!r}))\n"
        f"node.announce('t', {remote!r}, 0, 8, [0])\n"
        f"node.announce('u', {remote!r}, 0, 8, [1])\n"
        "until(lambda: len(node.progress('t')) == 2)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    node.open("t", 8, [0])
    node.open("u", 8, [1])
    compute(node, source, "t", [0], 8, layers=range(2))
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{Path(ROOT) / 'src'}:{ROOT}"},
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        os.kill(child.pid, signal.SIGSTOP)
        # Its session's lease and its transfers' end at about the same time.
        assert inbox.released("t").code in ("unreachable", "deadline_exceeded")
        assert inbox.released("u").code in ("unreachable", "deadline_exceeded")
    finally:
        child.kill()
        child.communicate()
        node.close()
