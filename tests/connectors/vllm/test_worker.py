"""Loads and saves of real caches through a real pool, and what becomes of those that fail."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
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
from tests.connectors.vllm.engine_shapes import (
    BLOCK,
    LOG,
    caches,
    chain,
    keys_of,
    layouts,
    linked,
    run,
)
from tests.faults.pool_rig import MIB, Rig, running

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
        if plan.synchronous:
            self.worker.start_loads()
        for name in self.caches:
            self.worker.wait_for_layer(name)
            if call_layers:
                self.worker.layer_done(name)
        if not plan.synchronous:
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


def load(name: str, block_ids: list[int], first: int = 0) -> LoadJob:
    return LoadJob(f"load-{name}", NOWHERE, [run(name, block_ids, first)])


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(nodes=1, memory=32 * MIB) as rig:
        yield rig


@pytest.fixture(params=["in this memory", "over TCP"])
def pool(request: pytest.FixtureRequest, rig: Rig) -> Iterator[Pool]:
    if request.param == "in this memory":
        with Pool.local("32MiB") as pool:
            yield pool
        return
    far = rig.connect(shared_memory=False)
    far.remove([item.key for item in far.list()])
    yield far


def turn_a_bit(pool: Pool, rig: Rig, key: bytes) -> None:
    """In the object itself, behind the pool's back."""
    for near in (pool, rig.connect()):
        with near.view(key) as data:
            if data is not None:
                address = np.frombuffer(data, np.uint8).ctypes.data
                ctypes.c_uint8.from_address(address + 77).value ^= 1


@pytest.fixture
def one(pool: Pool) -> Iterator[Engine]:
    engine = Engine(linked(pool), seed=1)
    yield engine
    engine.close()


@pytest.fixture
def two(pool: Pool) -> Iterator[Engine]:
    engine = Engine(linked(pool), seed=2)
    yield engine
    engine.close()


def stored(pool: Pool, name: str, count: int) -> None:
    """Wait until the first `count` blocks of a text are in the pool."""
    patience = threading.Event()
    keys = keys_of(0, NOWHERE, chain(name, count))
    for _ in range(3000):
        if all(pool.exists(keys)):
            return
        patience.wait(0.01)
    raise AssertionError(f"{pool.exists(keys)}")


@pytest.mark.parametrize("synchronous", [True, False])
def test_blocks_go_from_one_engine_to_another(
    one: Engine, two: Engine, pool: Pool, synchronous: bool
) -> None:
    one.store("text", [3, 4, 9, 20])
    stored(pool, "text", 4)
    untouched = two.blocks([0, 1, 2, 4, 9, 20])
    two.step(StepPlan([load("text", [7, 3, 30, 11])], [], synchronous))
    finished, bad = two.receive()
    assert finished == (set() if synchronous else {"load-text"}) and not bad
    assert torch.equal(two.blocks([7, 3, 30, 11]), one.blocks([3, 4, 9, 20]))
    assert torch.equal(two.blocks([0, 1, 2, 4, 9, 20]), untouched)
    assert two.counters.take()["loaded_tokens"] == 4 * BLOCK


def test_layers_that_vllm_did_not_call_for_are_stored_too(one: Engine, pool: Pool) -> None:
    one.store("text", [3, 4], call_layers=False)
    stored(pool, "text", 2)
    (key,) = keys_of(0, NOWHERE, chain("text", 1))
    expected = b"".join(
        cache[3].view(torch.uint8).numpy().tobytes() for cache in one.caches.values()
    )
    assert pool.get(key) == expected


def test_the_engine_may_reuse_its_blocks_after_the_step(one: Engine, pool: Pool) -> None:
    """What is stored is what lay there in the step, whatever comes after."""
    before = one.blocks([5, 6])
    one.store("text", [5, 6])
    for cache in one.caches.values():
        cache.fill_(0)
    stored(pool, "text", 2)
    one.step(StepPlan([load("text", [1, 2])], [], synchronous=True))
    assert torch.equal(one.blocks([1, 2]), before)


def test_a_layer_is_read_when_it_is_done_and_not_before(one: Engine, pool: Pool) -> None:
    job = SaveJob("r", NOWHERE, [run("text", [5])], [None])
    one.worker.bind(StepPlan([], [job]))
    for cache in one.caches.values():
        cache[5] = 1.0
    for name in one.caches:
        one.worker.layer_done(name)
    one.worker.wait_for_saves()
    stored(pool, "text", 1)
    one.step(StepPlan([load("text", [1])], [], synchronous=True))
    assert (one.blocks([1]) == 1.0).all()


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_block_that_is_missing_is_reported_and_no_other(
    one: Engine, two: Engine, pool: Pool, synchronous: bool
) -> None:
    one.store("text", [3, 4, 5])
    stored(pool, "text", 3)
    gone = chain("text", 3)[1]
    pool.remove(keys_of(0, NOWHERE, [gone]))
    before = two.blocks([8])
    two.step(StepPlan([load("text", [7, 8, 9])], [], synchronous))
    finished, bad = two.receive()
    assert bad == {8} and finished == (set() if synchronous else {"load-text"})
    assert torch.equal(two.blocks([8]), before), "not written"
    assert torch.equal(two.blocks([7, 9]), one.blocks([3, 5]))
    report = two.worker.report()
    assert report is not None and report.failed == ((0, gone),)
    assert two.worker.report() is None, "told once"
    assert two.counters.take()["load_failed_blocks/absent"] == 1


def test_what_was_computed_on_a_block_that_failed_is_not_stored(
    one: Engine, two: Engine, pool: Pool
) -> None:
    """Nor what plans compute that were made before the scheduler heard of it."""
    save = SaveJob("r", NOWHERE, [run("next", [9])], [None])
    two.step(StepPlan([load("absent", [7])], [save], synchronous=True))
    two.step(StepPlan([], [save], failures_known=0))
    report = two.worker.report()
    assert report is not None and report.failures == 1
    assert two.counters.take()["save_dropped_blocks/failed_load"] == 2
    two.step(StepPlan([], [save], failures_known=1))
    stored(pool, "next", 1)


def test_an_asynchronous_load_that_failed_does_not_stop_others_from_storing(
    two: Engine, pool: Pool
) -> None:
    save = SaveJob("r", NOWHERE, [run("next", [9])], [None])
    two.step(StepPlan([load("absent", [7])], [save]))
    assert two.receive() == ({"load-absent"}, {7})
    stored(pool, "next", 1)


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_corrupt_block_is_not_written_into_the_engine(
    one: Engine, two: Engine, pool: Pool, rig: Rig, synchronous: bool
) -> None:
    one.store("text", [3, 4])
    stored(pool, "text", 2)
    keys = keys_of(0, NOWHERE, chain("text", 2))
    turn_a_bit(pool, rig, keys[0])
    before = two.blocks([7])
    two.step(StepPlan([load("text", [7, 8])], [], synchronous))
    assert two.receive()[1] == {7}
    assert torch.equal(two.blocks([7]), before)
    assert torch.equal(two.blocks([8]), one.blocks([4]))
    assert two.counters.take()["load_failed_blocks/corrupt"] == 1
    assert pool.exists(keys) == [False, True], "the master was told"


@pytest.mark.parametrize("synchronous", [True, False])
def test_an_object_of_another_size_is_no_block(
    one: Engine, two: Engine, pool: Pool, synchronous: bool
) -> None:
    one.store("text", [3, 4])
    stored(pool, "text", 2)
    key = keys_of(0, NOWHERE, chain("text", 2))[1]
    pool.remove(key)
    pool.put(key, b"too small")
    two.step(StepPlan([load("text", [7, 8])], [], synchronous))
    assert two.receive()[1] == {8}
    assert torch.equal(two.blocks([7]), one.blocks([3]))


def test_blocks_after_a_parent_that_is_gone_are_orphans(one: Engine, pool: Pool) -> None:
    job = SaveJob("r", NOWHERE, [run("text", [5, 6], first=3)], [chain("text", 3)[2]])
    one.step(StepPlan([], [job]))
    one.saver.close()
    report = one.worker.report()
    assert report is not None and report.orphans == ("r",) and report.stored == ()
    assert one.counters.take()["save_dropped_blocks/orphan"] == 2


def test_what_is_stored_is_told(one: Engine, two: Engine, pool: Pool) -> None:
    one.store("text", [5, 6])
    one.saver.close()
    report = one.worker.report()
    assert report is not None and report.stored == tuple(chain("text", 2))
    two.store("text", [1, 2])
    two.saver.close()
    counted = two.counters.take()
    assert counted["save_existing_blocks"] == 2 and "saved_blocks" not in counted


def test_a_request_that_ended_is_still_reported_once(two: Engine) -> None:
    two.step(StepPlan([load("absent", [7, 8])], []))
    two.worker.received({"load-absent", "another"})
    two.receive()
    assert two.receive() == (set(), set())
    assert two.worker.received({"load-absent"}).finished == set()


def test_without_a_pool_loads_fail_at_once_and_nothing_is_stored() -> None:
    def away() -> Pool:
        from moonpool.core.errors import Unreachable

        raise Unreachable("nobody there")

    link = PoolLink(away, where="x", retry_s=0.01, retry_max_s=0.01, log=LOG)
    link.start()
    engine = Engine(link, seed=1)
    engine.store("text", [1, 2])
    engine.step(StepPlan([load("text", [3, 4])], []))
    assert engine.receive() == ({"load-text"}, {3, 4})
    counted = engine.counters.take()
    assert counted["save_dropped_blocks/away"] == 2 and counted["load_failed_blocks/away"] == 2
    engine.close()
    link.close()


def test_a_full_buffer_drops_the_tail(pool: Pool) -> None:
    """One slab at a time; the pieces after it find none, and the engine goes on."""
    engine = Engine(linked(pool), seed=1, save_buffer=1 << 20)
    jobs = [SaveJob(name, NOWHERE, [run(name, [1, 2])], [None]) for name in ("a", "b", "c")]
    engine.step(StepPlan([], jobs))
    stored(pool, "a", 2)
    assert engine.counters.take()["save_dropped_blocks/buffer"] == 4
    engine.close()


@pytest.mark.parametrize("limit", [12, 6])
def test_long_loads_go_in_waves(limit: int, one: Engine, two: Engine, pool: Pool) -> None:
    """More blocks than a slab takes, in both orders of filling; and too many for one of them."""
    everything = list(range(40))
    for engine in (one, two):
        for slabs in (engine.loader._slabs, engine.saver._slabs):
            slabs.slab_bytes, slabs.limit = engine.loader._layouts[0].object_bytes * 7, limit
    for part in (everything[:20], everything[20:]):
        first = part[0]
        parent = chain("text", first)[-1] if first else None
        one.step(StepPlan([], [SaveJob("r", NOWHERE, [run("text", part, first)], [parent])]))
        stored(pool, "text", first + 20)
    for synchronous in (True, False):
        for cache in two.caches.values():
            cache.fill_(0)
        two.step(StepPlan([load("text", everything[::-1])], [], synchronous))
        assert two.receive()[1] == set()
        assert torch.equal(two.blocks(everything[::-1]), one.blocks(everything))
    for engine in (one, two):
        assert engine.loader._slabs.in_use == 0, "a slab was not given back"


class HeldLayout(GroupLayout):
    """What copies in the background is slow: it waits to be told."""

    def __init__(self, layout: GroupLayout) -> None:
        self.__dict__.update(layout.__dict__)
        self.begun = threading.Event()
        self.go = threading.Event()

    def scatter(
        self,
        block_ids: Sequence[int],
        objects: Sequence[Any],
        crcs: npt.NDArray[np.uint32] | None,
    ) -> list[bool]:
        self.begun.set()
        assert self.go.wait(30)
        return super().scatter(block_ids, objects, crcs)

    def scatter_layers(
        self, block_ids: Sequence[int], objects: Sequence[Any], gate: LayerGate
    ) -> None:
        assert self.go.wait(30)
        super().scatter_layers(block_ids, objects, gate)

    def gather(self, layer: int, block_ids: Sequence[int], objects: Sequence[Any]) -> None:
        if threading.current_thread().name.startswith("moonpool-stage"):
            assert self.go.wait(30)
        super().gather(layer, block_ids, objects)


def test_a_step_ends_when_its_blocks_are_copied_and_not_before(pool: Pool) -> None:
    tensors = caches(1)
    (held,) = map(HeldLayout, layouts(tensors))
    saver = Saver(
        [held],
        keys_of,
        linked(pool),
        Counters(),
        buffer_bytes=64 << 20,
        timeout_s=10.0,
        replicas=1,
        log=LOG,
    )
    before = tensors["model.layers.0.self_attn.attn"][5].clone()
    saver.begin([SaveJob("r", NOWHERE, [run("text", [5])], [None])])
    for name in tensors:
        saver.layer_done(name)
    ended = threading.Event()

    def finish() -> None:
        saver.finish_step(good=True)
        ended.set()
        for tensor in tensors.values():
            tensor.fill_(0)  # the engine has other plans with its blocks

    step = threading.Thread(target=finish)
    step.start()
    assert not ended.wait(0.2)
    held.go.set()
    step.join()
    stored(pool, "text", 1)
    (key,) = keys_of(0, NOWHERE, chain("text", 1))
    data = pool.get(key)
    assert data is not None and data.startswith(before.view(torch.uint8).numpy().tobytes())
    saver.close()


def test_a_layer_is_computed_when_its_blocks_are_in_place_and_not_before(
    one: Engine, two: Engine, pool: Pool
) -> None:
    one.store("text", [3, 4])
    stored(pool, "text", 2)
    (held,) = map(HeldLayout, two.loader._layouts)
    two.loader._layouts = [held]
    two.worker.bind(StepPlan([load("text", [7, 8])], [], synchronous=True))
    two.worker.start_loads()
    through = threading.Event()

    def step() -> None:
        two.worker.wait_for_layer(held.names[0])
        through.set()

    thread = threading.Thread(target=step)
    thread.start()
    assert not through.wait(0.2)
    held.go.set()
    thread.join()
    two.worker.wait_for_saves()
    assert torch.equal(two.blocks([7, 8]), one.blocks([3, 4]))


def test_blocks_of_an_aborted_request_are_its_own_until_nothing_writes_to_them(
    one: Engine, two: Engine, pool: Pool
) -> None:
    """vLLM gives them to another request when it hears that the load is over."""
    one.store("text", [3, 4])
    stored(pool, "text", 2)
    (held,) = map(HeldLayout, two.loader._layouts)
    two.loader._layouts = [held]
    two.step(StepPlan([load("text", [7, 8])], []))
    assert held.begun.wait(30)
    before = two.blocks([7, 8])
    for _ in range(3):
        assert two.worker.received({"load-text"}).finished == set(), "its blocks are being written"
    held.go.set()
    assert two.receive()[0] == {"load-text"}
    after = two.blocks([7, 8])
    assert torch.equal(after, one.blocks([3, 4])) and not torch.equal(after, before)
