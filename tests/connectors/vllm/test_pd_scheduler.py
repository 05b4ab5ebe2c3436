"""The scheduler's side of hand-overs: what is claimed, announced, advanced, kept and given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from moonpool.connectors.vllm.pd_metadata import Advance, Ending, HandoffPlan, Opening, Target
from moonpool.connectors.vllm.pd_scheduler import HandoffScheduler, prompt_digest

BLOCK = 32
REMOTE = "127.0.0.1:7701"


@dataclass
class Asked:
    """What is read of a vLLM request."""

    request_id: str
    num_prompt_tokens: int
    kv_transfer_params: dict[str, Any] | None = None
    prompt_token_ids: Sequence[int] | None = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_token_ids = list(range(self.num_prompt_tokens))


def decode_request(name: str = "d", tokens: int = 100, **changes: Any) -> Asked:
    params = {"do_remote_prefill": True, "transfer_id": f"t-{name}", "remote": REMOTE}
    return Asked(name, tokens, params | changes)


def prefill_request(name: str = "p", tokens: int = 100, **changes: Any) -> Asked:
    return Asked(name, tokens, {"do_remote_decode": True, "transfer_id": f"t-{name}"} | changes)


class Side:
    """A scheduler and the block tables vLLM would have."""

    def __init__(self, produces: bool = True, consumes: bool = True) -> None:
        self.warnings: list[str] = []
        self.tables: dict[str, list[int]] = {}
        self.pure = HandoffScheduler(BLOCK, produces, consumes, self.warnings.append)

    def plan(self, *scheduled: tuple[str, int], preempted: tuple[str, ...] = ()) -> HandoffPlan:
        def table(name: str) -> tuple[list[int], ...] | None:
            return (self.tables[name],) if name in self.tables else None

        return self.pure.plan(scheduled, table, preempted)


def test_a_decode_request_is_claimed_then_announced_once() -> None:
    side = Side()
    request = decode_request(tokens=100, remote_engine_id="p0")
    target = Target("t-d", REMOTE, "p0")
    side.pure.new(request)
    assert side.pure.pending
    assert side.plan().claims == [target]
    assert side.pure.matched(request, 32) == 68
    assert side.pure.matched(request, 32) == 68
    side.pure.allocated(request, [[9, 4, 7, 1]], 68)
    (told,) = side.plan().announced
    assert (told.target, told.first_token, told.tokens) == (target, 32, 100)
    assert told.blocks == [4, 7, 1]
    assert told.prompt == prompt_digest(request)
    assert side.pure.matched(request, 32) == 0, "what failed is computed, not asked for again"
    assert not side.pure.pending


def test_what_decode_has_already_is_not_waited_for() -> None:
    side = Side()
    request = decode_request(tokens=97)
    side.pure.new(request)
    side.plan()
    assert side.pure.matched(request, 96) == 0
    side.pure.allocated(request, [[0, 1, 2, 3]], 0)
    assert side.plan().cancelled == [("t-d", Target("t-d", REMOTE))]
    assert not side.pure.finished("d", aborted=False)
    assert side.plan() == HandoffPlan()


@pytest.mark.parametrize("announced", [False, True])
def test_an_aborted_decode_request_says_so(announced: bool) -> None:
    side = Side()
    request = decode_request()
    side.pure.new(request)
    side.plan()
    if announced:
        side.pure.allocated(request, [[0, 1, 2, 3]], 100)
        side.plan()
    assert not side.pure.finished("d", aborted=True)
    assert side.pure.pending
    where = None if announced else Target("t-d", REMOTE)
    assert side.plan().cancelled == [("t-d", where)]


def test_a_prefill_request_advances_with_its_chunks_and_keeps_its_blocks() -> None:
    side = Side()
    request = prefill_request(tokens=100)
    side.pure.new(request)
    side.tables["p"] = [5, 6]
    plan = side.plan(("p", 64))
    assert plan.opened == [Opening("t-p", 100, prompt_digest(request))]
    assert plan.advanced == [Advance("t-p", 64, [5, 6])]
    side.tables["p"] = [5, 6, 2, 8]
    plan = side.plan(("p", 101))
    assert plan.opened == []
    assert plan.advanced == [Advance("t-p", 100, [5, 6, 2, 8])]
    assert side.pure.finished("p", aborted=False)
    plan = side.plan()
    assert (plan.ended, plan.failed) == ([Ending("p", "t-p")], [])


def test_an_aborted_prefill_request_fails_and_its_blocks_are_kept_until_quiet() -> None:
    side = Side()
    side.pure.new(prefill_request())
    side.tables["p"] = [5]
    side.plan(("p", 32))
    assert side.pure.finished("p", aborted=True)
    plan = side.plan()
    assert plan.ended == [Ending("p", "t-p")]
    assert [transfer for transfer, _ in plan.failed] == ["t-p"]


def test_a_prefill_request_that_never_ran_holds_nothing() -> None:
    side = Side()
    side.pure.new(prefill_request())
    assert not side.pure.finished("p", aborted=True)
    plan = side.plan()
    assert (plan.ended, [transfer for transfer, _ in plan.failed]) == ([], ["t-p"])


def test_a_preempted_prefill_request_is_given_up_once() -> None:
    side = Side()
    side.pure.new(prefill_request())
    side.tables["p"] = [5]
    side.plan(("p", 32))
    assert side.plan(preempted=("p", "stranger")).preempted == ["t-p"]
    plan = side.plan(("p", 32))
    assert (plan.opened, plan.advanced, plan.preempted) == ([], [], [])
    assert side.pure.finished("p", aborted=False), "the worker says when the pushes have ended"


def test_a_transfer_id_in_use_is_served_without_a_hand_over() -> None:
    side = Side()
    side.pure.new(prefill_request("p"))
    side.pure.new(prefill_request("q", transfer_id="t-p"))
    side.tables = {"p": [1], "q": [2]}
    assert [one.transfer for one in side.plan(("p", 32), ("q", 32)).advanced] == ["t-p"]
    assert side.pure.finished("p", aborted=False)
    side.pure.new(prefill_request("r", transfer_id="t-p"))
    assert len(side.warnings) == 2
    side.pure.quiet({"p"})
    side.pure.new(prefill_request("s", transfer_id="t-p"))
    assert len(side.warnings) == 2


def test_blocks_are_lent_to_one_decode_request_of_a_transfer() -> None:
    """Its workers know a transfer by its id: a second request would be given the first's end."""
    side = Side()
    request = decode_request("d")
    side.pure.new(request)
    side.pure.new(decode_request("e", transfer_id="t-d"))
    assert len(side.warnings) == 1
    side.pure.allocated(request, [[0, 1, 2, 3]], 100)
    assert not side.pure.finished("d", aborted=True)
    again = decode_request("f", transfer_id="t-d")
    side.pure.new(again)
    assert len(side.warnings) == 2, "bytes may arrive in its blocks still"
    assert side.pure.matched(again, 0) == 0
    side.pure.quiet({"d"})
    side.pure.new(decode_request("g", transfer_id="t-d"))
    assert len(side.warnings) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"transfer_id": None},
        {"transfer_id": ""},
        {"transfer_id": "x" * 129},
        {"remote": None},
        {"remote": "nowhere"},
        {"remote": "h:99999"},
        {"remote_engine_id": 7},
    ],
)
def test_parameters_that_make_no_sense_are_told_and_the_request_is_served(
    changes: dict[str, Any],
) -> None:
    side = Side()
    request = decode_request(**changes)
    side.pure.new(request)
    assert len(side.warnings) == 1
    assert side.pure.matched(request, 0) == 0
    assert side.plan() == HandoffPlan()


def test_a_role_ignores_what_belongs_to_the_other() -> None:
    prefill, decode = Side(consumes=False), Side(produces=False)
    prefill.pure.new(decode_request())
    decode.pure.new(prefill_request())
    decode.tables["p"] = [1]
    assert prefill.plan() == HandoffPlan()
    assert decode.plan(("p", 32)) == HandoffPlan()
    assert not decode.pure.finished("p", aborted=False)
