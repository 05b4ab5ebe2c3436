"""Decisions that Dynamo made, as `bench/peers/dynamo_decisions.py` recorded them, made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from moonpool.router import (
    Brain,
    BrainConfig,
    DynamoCost,
    Removed,
    RouteRequest,
    Stored,
    Target,
    Tier,
    Worker,
    prefix_hashes,
    prefix_seed,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "dynamo_decisions.json").read_text())
BLOCK = GOLDEN["block_size"]
TOLD = 0.0006
"""Costs of pinned questions are told to three digits. Where the credit decays they are not what was
compared: it decays by what a worker has more to do than the least loaded of those in question.
"""

Tokens = npt.NDArray[np.uint32]


def tokens_of(prompt: list[list[int]]) -> Tokens:
    parts = [tag * 4096 + np.arange(count, dtype=np.uint32) for tag, count in prompt]
    return np.concatenate(parts)


class Replay:
    """One recorded run on a brain of ours; time passes, so that no prediction outlives a step."""

    def __init__(self, run: dict[str, Any]) -> None:
        config = BrainConfig(cost=DynamoCost(**run["config"]), lease_s=1e9, predicted_ttl_s=0.1)
        self.brain = Brain(config)
        self.now = 0.0
        for number in range(1, run["workers"] + 1):
            self.brain.add_worker(Worker(id=str(number), model="m", block_size=BLOCK))

    def costs(self, step: dict[str, Any]) -> list[float]:
        """What the request costs here on each worker; it is booked where Dynamo sent it."""
        self.now += 1.0
        tokens = tokens_of(step["ask"])
        asked = RouteRequest(model="m", tokens=tokens)
        scores = self.brain.decide(asked, self.now, book=False).scores
        costs = {int(score.worker): score.cost for score in scores}
        pin = Target(str(step["worker"]))
        there = RouteRequest(model="m", tokens=tokens, pin=pin, booking_id=str(step["id"]))
        self.brain.decide(there, self.now)
        return [costs[number] for number in sorted(costs)]

    def report(self, step: dict[str, Any]) -> None:
        """What a worker told."""
        if "first" in step:
            assert self.brain.first_token(str(step["first"]), self.now)
        elif "free" in step:
            assert self.brain.free(str(step["free"]), self.now)
        elif "store" in step:
            hashes = prefix_hashes(tokens_of(step["store"]), BLOCK, prefix_seed("m"))
            worker, device = str(step["worker"]), step["device"]
            self.brain.apply_event(worker, Stored(hashes[:device].tolist()))
            parent = int(hashes[device - 1]) if device else 0
            self.brain.apply_event(worker, Stored(hashes[device:].tolist(), parent, tier=Tier.HOST))
        else:
            hashes = prefix_hashes(tokens_of(step["remove"]), BLOCK, prefix_seed("m"))
            gone = hashes[slice(*step["blocks"])].tolist()
            self.brain.apply_event(str(step["worker"]), Removed(gone))


@pytest.mark.parametrize("run", GOLDEN["runs"], ids=lambda run: ",".join(run["config"]) or "plain")
def test_dynamos_recorded_decisions(run: dict[str, Any]) -> None:
    """Dynamo draws among equals, so its choice is one of the cheapest here, not always ours."""
    replay = Replay(run)
    for step in run["steps"]:
        if "ask" not in step:
            replay.report(step)
            continue
        costs = replay.costs(step)
        chosen = costs[step["worker"] - 1]
        assert chosen == pytest.approx(min(costs), abs=1e-9), step
        assert chosen == pytest.approx(step["cost"], abs=1e-6), step
        if not run["config"].get("overlap_score_credit_decay"):
            assert costs == pytest.approx(step["costs"], abs=TOLD), step


def test_the_record_has_enough() -> None:
    steps = [step for run in GOLDEN["runs"] for step in run["steps"]]
    asked = [step for step in steps if "ask" in step]
    assert len(asked) >= 150
    assert sum(max(step["costs"]) > min(step["costs"]) for step in asked) > 0.9 * len(asked)
    assert {name for step in steps for name in step} >= {"first", "free", "store", "remove"}
