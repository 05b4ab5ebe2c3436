"""Plans and reports: they survive vLLM's pickling, and reports of two workers become one."""

import pickle

from moonpool.connectors.vllm.counters import COUNTERS, Counters, merged
from moonpool.connectors.vllm.metadata import LoadJob, Namespace, SaveJob, StepPlan, WorkerReport
from tests.connectors.vllm.engine_shapes import run


def test_a_plan_travels() -> None:
    plan = StepPlan(
        [LoadJob("a", Namespace("lora", "salt"), [run("text", [1, 2])], True)],
        [SaveJob("b", Namespace(), [run("text", [3], first=2)], [b"p" * 32])],
        3,
    )
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_two_workers() -> None:
    one = WorkerReport(1, ((0, b"x"),), ("r",), (b"s",))
    other = WorkerReport(2, ((0, b"x"), (1, b"x")), ("q",), (b"t", b"s"))
    both = one.aggregate(other)
    assert both == WorkerReport(3, ((0, b"x"), (1, b"x")), ("r", "q"), (b"s", b"t"))


def test_counters_are_sums_until_they_are_taken() -> None:
    counters = Counters()
    counters.add("loads")
    counters.add("loads", 2)
    counters.add("load_failed_blocks", 3, reason="corrupt")
    counters.add("load_failed_blocks", reason="never heard of")
    taken = counters.take()
    assert taken == {"loads": 3, "load_failed_blocks/corrupt": 3, "load_failed_blocks/other": 1}
    assert counters.take() == {}
    assert merged(taken, {"loads": 1, "saved_blocks": 2})["loads"] == 4


def test_reasons_have_a_place_for_the_rest() -> None:
    assert all(
        "other" in parts or name == "lookups_skipped"
        for name, (_, parts) in COUNTERS.items()
        if parts
    )
