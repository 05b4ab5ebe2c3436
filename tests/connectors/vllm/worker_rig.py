"""One worker of a connector with caches of its own, stepped as vLLM does it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from moonpool._core import LayerGate
from moonpool.connectors.vllm.counters import Counters
from moonpool.connectors.vllm.layout import GroupLayout
from moonpool.connectors.vllm.link import PoolLink
from moonpool.connectors.vllm.loader import Loader
from moonpool.connectors.vllm.metadata import LoadJob, Namespace, SaveJob, StepPlan
from moonpool.connectors.vllm.saver import Saver
from moonpool.connectors.vllm.worker import PoolWorker
from moonpool.pool.pool import Pool
from tests.connectors.vllm.engine_shapes import BLOCK, LOG, caches, chain, keys_of, layouts, run
from tests.faults.pool_rig import Rig

NOWHERE = Namespace()


class Engine:
    """One worker with caches of its own."""

    def __init__(self, link: PoolLink, seed: int, save_buffer: int = 64 << 20) -> None:
        self.caches = caches(seed)
        self.counters = Counters()
        both = layouts(self.caches)
        self.loader = Loader(
            both,
            keys_of,
            link,
            self.counters,
            buffer_bytes=16 << 20,
            threads=2,
            timeout_s=10.0,
            log=LOG,
        )
        self.saver = Saver(
            both,
            keys_of,
            link,
            self.counters,
            buffer_bytes=save_buffer,
            timeout_s=10.0,
            replicas=1,
            log=LOG,
        )
        self.worker = PoolWorker(both, self.loader, self.saver, self.counters, [BLOCK])

    def step(self, plan: StepPlan, *, call_layers: bool = True) -> None:
        """As vLLM's model runner goes through one."""
        self.worker.bind(plan)
        synchronous = any(job.synchronous for job in plan.loads)
        if synchronous:
            self.worker.start_loads()
        for name in self.caches:
            self.worker.wait_for_layer(name)
            if call_layers:
                self.worker.layer_done(name)
        if not synchronous:
            self.worker.start_loads()
        self.worker.wait_for_saves()

    def store(self, name: str, block_ids: list[int], **options: bool) -> None:
        job = SaveJob(f"save-{name}", NOWHERE, [run(name, block_ids)], [None])
        self.step(StepPlan([], [job]), **options)

    def receive(self) -> tuple[set[str], set[int]]:
        """What vLLM hears once all loads are over."""
        finished, bad = set[str](), set[int]()
        patience = threading.Event()
        for _ in range(3000):
            received = self.worker.received(set())
            finished |= received.finished
            bad |= received.bad_blocks
            if not self.worker.loading:
                return finished, bad
            patience.wait(0.01)
        raise AssertionError("loads never ended")

    def blocks(self, block_ids: list[int]) -> torch.Tensor:
        return torch.stack([cache[block_ids] for cache in self.caches.values()])

    def close(self) -> None:
        self.worker.close()


def load(name: str, block_ids: list[int], synchronous: bool = False) -> LoadJob:
    return LoadJob(f"load-{name}", NOWHERE, [run(name, block_ids)], synchronous)


def stored(pool: Pool, name: str, count: int) -> None:
    """Wait until the first `count` blocks of a text are in the pool."""
    patience = threading.Event()
    keys = keys_of(0, NOWHERE, chain(name, count))
    for _ in range(3000):
        if all(pool.exists(keys)):
            return
        patience.wait(0.01)
    raise AssertionError(f"{pool.exists(keys)}")


def turn_a_bit(pool: Pool, rig: Rig, key: bytes) -> None:
    """In the object itself, behind the pool's back."""
    for near in (pool, rig.connect()):
        with near.view(key) as data:
            if data is not None:
                address = np.frombuffer(data, np.uint8).ctypes.data
                ctypes.c_uint8.from_address(address + 77).value ^= 1


class HeldLayout(GroupLayout):
    """What copies in the background is slow: it waits to be told."""

    def __init__(self, layout: GroupLayout) -> None:
        self.__dict__.update(layout.__dict__)
        self.begun = threading.Event()
        self.go = threading.Event()
        self.filled: list[tuple[int, bool]] = []  # blocks at once, and whether layer by layer

    def scatter(
        self,
        block_ids: Sequence[int],
        objects: Sequence[Any],
        crcs: Sequence[int] = (),
        gate: LayerGate | None = None,
    ) -> list[bool]:
        self.begun.set()
        assert self.go.wait(30)
        self.filled.append((len(block_ids), gate is not None))
        return super().scatter(block_ids, objects, crcs, gate)

    def gather(self, layer: int, block_ids: Sequence[int], objects: Sequence[Any]) -> None:
        if threading.current_thread().name.startswith("moonpool-stage"):
            assert self.go.wait(30)
        super().gather(layer, block_ids, objects)


def holding(engine: Engine) -> HeldLayout:
    """The engine's loads wait from now on until its `go` is set."""
    (held,) = map(HeldLayout, engine.loader._layouts)
    engine.loader._layouts = [held]
    return held
