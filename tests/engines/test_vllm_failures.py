"""The pool fails while vLLM loads from it: every request ends in time, with the right tokens.

The engine stores prompts, forgets its own copies, and is to load them while something happens. Over
TCP a stopped node holds a load in its middle for as long as a test needs.
"""

from __future__ import annotations

import ctypes
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from moonpool import connect
from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.cluster import Cluster
from tests.engines.test_vllm_pool import computed, prompt, tokens
from tests.engines.vllm_rig import EngineProcess, Engines, eventually, running_pool
from tests.faults.pool_rig import Rig

LOAD_S = 1.5
THREAD_S = 1.0  # a thread that wakes late
LATE_S = 20.0  # a loaded machine; computing the prompts anew is in here
SETTINGS = {
    "load_timeout_ms": int(LOAD_S * 1000),
    "lookup_timeout_ms": 500,
    "failed_block_ms": 200,
    "retry_ms": 100,
    "retry_max_ms": 300,
}
PROMPTS = [prompt(900 + i, 260 + 40 * i) for i in range(5)]


@pytest.fixture(scope="module")
def failing() -> Iterator[Rig]:
    """A pool for this file alone."""
    with running_pool() as rig:
        yield rig


@pytest.fixture(scope="module")
def far(engines: Engines, failing: Rig) -> EngineProcess:
    """Loads asynchronously, over TCP."""
    environment = {"MOONPOOL_CLIENT_SHARED_MEMORY": "false"}
    extra = {**SETTINGS, "load": "async"}
    return engines.start("far", master=failing.address, environment=environment, extra=extra)


@pytest.fixture(scope="module")
def near(engines: Engines, failing: Rig, far: EngineProcess) -> EngineProcess:
    """Loads synchronously, from shared memory."""
    extra = {**SETTINGS, "load": "sync"}
    return engines.start("near", master=failing.address, extra=extra)


@pytest.fixture(scope="module")
def reference(far: EngineProcess, failing: Rig) -> list[list[int]]:
    return tokens(computed(far, failing, *PROMPTS))


class Asked:
    """All prompts at once, on a thread."""

    def __init__(self, engine: EngineProcess, prompts: list[list[int]]) -> None:
        self.answers: list[dict[str, Any]] = []
        self._start = time.monotonic()
        self._thread = threading.Thread(target=self._ask, args=(engine, prompts))
        self._thread.start()

    def _ask(self, engine: EngineProcess, prompts: list[list[int]]) -> None:
        self.answers = engine.generate(*prompts)

    def wait(self) -> list[list[int]]:
        self._thread.join(LOAD_S + LATE_S)
        assert not self._thread.is_alive(), "a request hangs longer than its deadline"
        return tokens(self.answers)


def asked(engine: EngineProcess) -> Asked:
    engine.call("reset")
    return Asked(engine, PROMPTS)


def failed(engine: EngineProcess) -> dict[str, float]:
    return {n: v for n, v in engine.counters().items() if n.startswith("load_failed_blocks") and v}


def in_time(engine: EngineProcess, before: dict[str, float]) -> None:
    """All of the prompts were to be loaded, none in vain for longer than it may take, and not all
    of their blocks came."""
    after = engine.counters()
    loads = after["loads"] - before["loads"]
    assert loads >= len(PROMPTS)
    assert (after["load_seconds"] - before["load_seconds"]) / loads < LOAD_S + THREAD_S
    lost = sum(n for name, n in after.items() if name.startswith("load_failed_blocks"))
    lost -= sum(n for name, n in before.items() if name.startswith("load_failed_blocks"))
    assert lost > 0, "nothing failed, so nothing was shown"


def await_hits(engine: EngineProcess, reference: list[list[int]]) -> None:
    """The pool is used again, and nothing came late into blocks that others have by now."""

    def hit() -> bool:
        again = asked(engine)
        assert again.wait() == reference
        return all(
            a["cached"] >= (len(p) - 1) // 32 * 32
            for a, p in zip(again.answers, PROMPTS, strict=True)
        )

    eventually(hit, "hits in the pool")
    loaded, missed = engine.counters()["loaded_tokens"], failed(engine)
    assert asked(engine).wait() == reference
    assert engine.counters()["loaded_tokens"] > loaded and failed(engine) == missed


def test_a_node_stopped_in_the_middle_of_loads(
    far: EngineProcess, failing: Rig, reference: list[list[int]]
) -> None:
    (node,) = failing.nodes
    before = far.counters()
    failing.stop(node)
    assert asked(far).wait() == reference
    in_time(far, before)
    failing.wake(node.pid)
    await_hits(far, reference)


def test_a_node_killed_in_the_middle_of_loads(
    far: EngineProcess, failing: Rig, reference: list[list[int]]
) -> None:
    killed_in_the_middle(far, failing, reference)


def test_a_pool_killed_in_the_middle_of_loads(
    far: EngineProcess, failing: Rig, reference: list[list[int]]
) -> None:
    """Its master, too: nobody is left to say where anything lies."""
    killed_in_the_middle(far, failing, reference, master=True)


def test_a_master_killed_in_the_middle_of_loads(
    far: EngineProcess, failing: Rig, reference: list[list[int]]
) -> None:
    """Where the blocks lie is known by then: they still come, or are computed."""
    (node,) = failing.nodes
    failing.stop(node)
    running = asked(far)
    time.sleep(LOAD_S / 3)
    failing.kill(failing.master)
    failing.wake(node.pid)
    assert running.wait() == reference
    failing.restart()
    await_hits(far, reference)


def killed_in_the_middle(
    far: EngineProcess, failing: Rig, reference: list[list[int]], master: bool = False
) -> None:
    (node,) = failing.nodes
    before = far.counters()
    failing.stop(node)
    running = asked(far)
    time.sleep(LOAD_S / 3)  # its loads are under way: the node cannot answer them
    if master:
        failing.kill(failing.master)
    failing.wake(node.pid)
    failing.kill(node)
    assert running.wait() == reference
    in_time(far, before)
    failing.restart()
    await_hits(far, reference)


def unanswered(engine: EngineProcess) -> float:
    """Requests about which the pool said nothing."""
    found = engine.counters()
    return found["lookup_failures"] + found["lookups_skipped/away"]


@pytest.mark.parametrize("fault", ["stopped", "killed"])
def test_no_master(
    fault: str, far: EngineProcess, failing: Rig, reference: list[list[int]]
) -> None:
    if fault == "stopped":
        failing.stop(failing.master)
    else:
        failing.kill(failing.master)
    before = unanswered(far)
    assert asked(far).wait() == reference
    assert unanswered(far) > before, "the pool answered"
    if fault == "stopped":
        failing.wake(failing.master.pid)
    else:
        failing.restart()
    await_hits(far, reference)


@pytest.mark.parametrize("which", ["far", "near"])
def test_corrupted_blocks(
    which: str, far: EngineProcess, near: EngineProcess, failing: Rig, reference: list[list[int]]
) -> None:
    """A bit of every second object turns; those blocks are computed, and stored again."""
    engine = {"far": far, "near": near}[which]
    engine.call("reset")
    assert tokens(engine.generate(*PROMPTS)) == reference  # so that the pool has all of it
    flipped = flip(failing, every=2)
    before = failed(engine).get("load_failed_blocks/corrupt", 0)
    assert asked(engine).wait() == reference
    found = failed(engine).get("load_failed_blocks/corrupt", 0) - before
    assert 0 < found <= flipped
    await_hits(engine, reference)


def flip(rig: Rig, every: int) -> int:
    """One bit in some of the pool's objects, behind everybody's back."""
    flipped = 0
    with connect(rig.address) as pool:
        for found in list(pool.list())[::every]:
            with pool.view(found.key) as data:
                if data is not None:
                    address = np.frombuffer(data, np.uint8).ctypes.data + found.size // 2
                    ctypes.c_uint8.from_address(address).value ^= 16
                    flipped += 1
    return flipped


# --- a pool that comes later, and events ----------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Subscriber:
    """All KV events that vLLM publishes."""

    def __init__(self, endpoint: str) -> None:
        import zmq

        self._socket: Any = zmq.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(endpoint)
        self.events: list[dict[str, Any]] = []

    def of(self, kind: str, medium: str) -> list[dict[str, Any]]:
        while self._socket.poll(50):
            _, _, payload = self._socket.recv_multipart()
            self.events += msgspec.msgpack.decode(payload)[1]
        return [e for e in self.events if e["type"] == kind and e.get("medium") == medium]

    def close(self) -> None:
        self._socket.close(0)


def stepping(engine: EngineProcess, look: Callable[[], Any], what: str) -> Any:
    """vLLM publishes with its steps only."""

    def turn() -> Any:
        engine.generate([9] * 5, max_tokens=1)
        return look()

    return eventually(turn, what)


def test_a_pool_that_comes_after_the_engine(engines: Engines, tmp_path: Path) -> None:
    """The engine starts, answers and says so once; later it stores, and tells of it."""
    port, endpoint = free_port(), f"tcp://127.0.0.1:{free_port()}"
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint.replace("127.0.0.1", "*"),
    }
    late = engines.start(
        "late", master=f"127.0.0.1:{port}", extra=SETTINGS, kv_events_config=events
    )
    first = late.generate(PROMPTS[0])
    assert late.log().count(f"no pool at 127.0.0.1:{port}") == 1
    subscriber = Subscriber(endpoint)
    node = NodeConfig(name="n0", memory=32 << 20, headroom=8 << 20, dir=str(tmp_path))
    with Cluster(MasterConfig(port=port, nodes_expected=1), [node]) as cluster:
        eventually(lambda: "answers again" in late.log(), "a line that the pool is there")
        late.call("reset")
        assert late.generate(PROMPTS[0])[0]["tokens"] == first[0]["tokens"]
        stored = stepping(
            late, lambda: subscriber.of("BlockStored", "STORAGE"), "events of stored blocks"
        )
        assert stored[0]["block_size"] == 32 and stored[0]["parent_block_hash"] is None
        assert stored[0]["token_ids"] == PROMPTS[0][: len(stored[0]["token_ids"])]
        own = subscriber.of("BlockStored", "GPU")
        assert set(stored[0]["block_hashes"]) <= {h for e in own for h in e["block_hashes"]}
        with connect(cluster.address) as pool:
            assert pool.remove_prefix("mp1/") > 0
        removed = stepping(
            late, lambda: subscriber.of("BlockRemoved", "STORAGE"), "events of removed blocks"
        )
        assert {h for e in removed for h in e["block_hashes"]} & set(stored[0]["block_hashes"])
    assert late.log().count("answers again") == 1
    subscriber.close()
    assert late.generate(PROMPTS[0])[0]["tokens"] == first[0]["tokens"], "the pool is gone again"
    engines.end("late")
