"""In what order blocks are filled, read and given back, and how many at a time."""

from __future__ import annotations

import threading

import pytest
import torch

from moonpool.connectors.vllm.counters import Counters
from moonpool.connectors.vllm.metadata import SaveJob, StepPlan
from moonpool.connectors.vllm.saver import Saver
from moonpool.pool.pool import Pool
from tests.connectors.vllm.engine_shapes import LOG, caches, chain, keys_of, layouts, linked, run
from tests.connectors.vllm.worker_rig import NOWHERE, Engine, HeldLayout, holding, load, stored


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
        two.step(StepPlan([load("text", everything[::-1], synchronous)], []))
        assert two.receive()[1] == set()
        assert torch.equal(two.blocks(everything[::-1]), one.blocks(everything))
    for engine in (one, two):
        assert engine.loader._slabs.in_use == 0, "a slab was not given back"


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
    held = holding(two)
    two.worker.bind(StepPlan([load("text", [7, 8], synchronous=True)], []))
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
    held = holding(two)
    two.step(StepPlan([load("text", [7, 8])], []))
    assert held.begun.wait(30)
    before = two.blocks([7, 8])
    for _ in range(3):
        assert two.worker.received({"load-text"}).finished == set(), "its blocks are being written"
    held.go.set()
    assert two.receive()[0] == {"load-text"}
    after = two.blocks([7, 8])
    assert torch.equal(after, one.blocks([3, 4])) and not torch.equal(after, before)


def test_what_lies_in_this_memory_comes_layer_by_layer_however_few_slabs_there_are(
    one: Engine, two: Engine, pool: Pool
) -> None:
    """What comes from afar cannot all be held, and comes block by block."""
    count = 20
    for slabs in (two.loader._slabs, one.saver._slabs):
        slabs.slab_bytes, slabs.limit = two.loader._layouts[0].object_bytes * 2, 24
    two.loader._slabs.limit = 4
    one.store("text", list(range(count)))
    stored(pool, "text", count)
    near = pool.view_many(keys_of(0, NOWHERE, chain("text", 1)))[0] is not None
    held = holding(two)
    held.go.set()
    two.step(StepPlan([load("text", list(range(count)), synchronous=True)], []))
    assert two.receive()[1] == set()
    if near:
        assert held.filled == [(count, True)]
    else:
        assert sum(blocks for blocks, _ in held.filled) == count
        assert not any(by_layer for _, by_layer in held.filled)
    assert torch.equal(two.blocks(list(range(count))), one.blocks(list(range(count))))
