"""Loads and saves of real caches through a real pool, and what becomes of those that fail."""

from __future__ import annotations

import pytest
import torch

from moonpool.connectors.vllm.link import PoolLink
from moonpool.connectors.vllm.metadata import SaveJob, StepPlan
from moonpool.pool.pool import Pool
from tests.connectors.vllm.engine_shapes import BLOCK, LOG, chain, keys_of, linked, run
from tests.connectors.vllm.worker_rig import NOWHERE, Engine, load, stored, turn_a_bit
from tests.faults.pool_rig import Rig


@pytest.mark.parametrize("synchronous", [True, False])
def test_blocks_go_from_one_engine_to_another(
    one: Engine, two: Engine, pool: Pool, synchronous: bool
) -> None:
    one.store("text", [3, 4, 9, 20])
    stored(pool, "text", 4)
    untouched = two.blocks([0, 1, 2, 4, 9, 20])
    two.step(StepPlan([load("text", [7, 3, 30, 11], synchronous)], []))
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
    one.step(StepPlan([load("text", [1, 2], synchronous=True)], []))
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
    one.step(StepPlan([load("text", [1], synchronous=True)], []))
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
    two.step(StepPlan([load("text", [7, 8, 9], synchronous)], []))
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
    two.step(StepPlan([load("absent", [7], synchronous=True)], [save]))
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
def test_a_corrupt_block_is_reported_and_no_other(
    one: Engine, two: Engine, pool: Pool, rig: Rig, synchronous: bool
) -> None:
    one.store("text", [3, 4])
    stored(pool, "text", 2)
    keys = keys_of(0, NOWHERE, chain("text", 2))
    turn_a_bit(pool, rig, keys[0])
    two.step(StepPlan([load("text", [7, 8], synchronous)], []))
    assert two.receive()[1] == {7}
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
    two.step(StepPlan([load("text", [7, 8], synchronous)], []))
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
