"""The worker's side of hand-overs over two real nodes in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from moonpool.connectors.vllm.pd_metadata import (
    Advance,
    Announcement,
    Ending,
    HandoffPlan,
    Opening,
    Target,
)
from moonpool.connectors.vllm.pd_worker import HandoffWorker, Results
from moonpool.transfer.handoff import DecodeNode, PrefillNode
from tests.transfer.handoff.ranks import LAYERS, config, layout, memory_of, until

NAMES = [f"model.layers.{at}.self_attn.attn" for at in range(LAYERS)]


class Pair:
    """A prefill and a decode worker; `step` is one step of an engine."""

    def __init__(self) -> None:
        memory, self.source = memory_of(layout())
        node = PrefillNode("p0", memory, config())
        self.remote = node.start()
        self.prefill = HandoffWorker(NAMES, node, None)
        memory, self.target = memory_of(layout())
        self.decode = HandoffWorker(NAMES, None, DecodeNode("d0", memory, config()))
        self.source[:] = np.random.default_rng(1).integers(0, 256, self.source.shape)

    def announce(self, blocks: list[int]) -> HandoffPlan:
        target = Target("t", self.remote)
        told = Announcement("d", target, 0, 8 * len(blocks), blocks, "same")
        return HandoffPlan(claims=[target], announced=[told])

    def close(self) -> None:
        self.decode.close()
        self.prefill.close()


def step(worker: HandoffWorker, plan: HandoffPlan | None = None) -> Results:
    worker.before_reuse(plan or HandoffPlan())
    worker.bind(plan or HandoffPlan())
    for name in NAMES:
        worker.layer_done(name)
    worker.start_loads()
    return worker.results()


def until_step(
    worker: HandoffWorker, wanted: Callable[[Results], Any], first: HandoffPlan | None = None
) -> Results:
    """The first results that are `wanted`; the step of the plan `first` may have them already."""
    found: list[Results] = []
    plans = [first]

    def look() -> bool:
        results = step(worker, plans.pop() if plans else None)
        if wanted(results):
            found.append(results)
        return bool(found)

    until(look)
    return found[0]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_blocks_arrive_and_both_engines_are_told(pair: Pair) -> None:
    step(pair.decode, pair.announce([3, 4]))
    opened = HandoffPlan(opened=[Opening("t", 16, "same")], advanced=[Advance("t", 8, [0])])
    step(pair.prefill, opened)
    results = step(pair.prefill, HandoffPlan(advanced=[Advance("t", 16, [0, 1])]))
    assert results.sent == set(), "the request is not over at the prefill engine"
    received = until_step(pair.decode, lambda results: results.received)
    assert received == Results(set(), {"d"}, set(), set())
    assert np.array_equal(pair.target[:, 0, 3:5], pair.source[:, 0, :2])
    step(pair.prefill, HandoffPlan(ended=[Ending("p", "t")]))
    # It may have been told in that very step.
    until(lambda: not pair.prefill._ended)


def test_a_prefill_request_that_failed_leaves_decode_with_bad_blocks(pair: Pair) -> None:
    step(pair.decode, pair.announce([3, 4]))
    step(pair.prefill, HandoffPlan(failed=[("t", "aborted")]))
    results = until_step(pair.decode, lambda results: results.received)
    assert results == Results(set(), {"d"}, {"d"}, {3, 4})


def test_an_aborted_decode_request_gets_its_blocks_back(pair: Pair) -> None:
    step(pair.prefill, HandoffPlan(opened=[Opening("t", 16, "same")]))
    step(pair.decode, pair.announce([3, 4]))
    cancelled = HandoffPlan(cancelled=[("t", None)])
    assert until_step(pair.decode, lambda results: results.received, cancelled).failed == {"d"}
    step(pair.prefill, HandoffPlan(ended=[Ending("p", "t")]))
    until_step(pair.prefill, lambda results: not pair.prefill._ended)


def test_blocks_of_a_preempted_request_are_quiet_before_they_are_used_again(pair: Pair) -> None:
    step(pair.decode, pair.announce([3, 4]))
    opened = HandoffPlan(opened=[Opening("t", 16, "same")], advanced=[Advance("t", 8, [0])])
    step(pair.prefill, opened)
    step(pair.prefill, HandoffPlan(preempted=["t"]))
    assert "t" in pair.prefill._released
    assert until_step(pair.decode, lambda results: results.received).failed == {"d"}
