"""What users of other routers reported, tried on the brain: docs/scenarios.md has the list."""

from __future__ import annotations

import numpy as np

from moonpool.router import (
    Brain,
    RouteRequest,
    Stored,
    Target,
    Worker,
    prefix_hashes,
    prefix_seed,
)

MODEL = "m"
BLOCK = 16


def brain_of(*ids: str) -> Brain:
    brain = Brain()
    for worker_id in ids:
        brain.add_worker(Worker(id=worker_id, model=MODEL, block_size=BLOCK))
    return brain


def holds(brain: Brain, worker: str, tokens: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> None:
    brain.apply_event(worker, Stored(prefix_hashes(tokens, BLOCK, prefix_seed(MODEL)).tolist()))


def ask(tokens: np.ndarray[tuple[int], np.dtype[np.uint32]], **fields: object) -> RouteRequest:
    return RouteRequest(**({"model": MODEL, "tokens": tokens} | fields))  # type: ignore[arg-type]


def test_the_second_half_of_a_prompt_is_no_prefix() -> None:
    """R20: AAAA lies at one worker, BBBB at another; BBBBAAAA begins with BBBB only."""
    brain = brain_of("n1", "n2")
    first, second = np.full(BLOCK, 1, np.uint32), np.full(BLOCK, 2, np.uint32)
    holds(brain, "n1", first)
    holds(brain, "n2", second)
    decision = brain.decide(ask(np.concatenate([second, first])), 0.0)
    hits = {score.worker: score.hit_tokens for score in decision.scores}
    assert hits == {"n1": 0, "n2": BLOCK}


def test_routers_that_know_nothing_of_each_other_do_not_all_choose_one() -> None:
    """R82: 400 requests in a burst over four routers, no report from any worker meanwhile."""
    ids = [f"w{number}" for number in range(8)]
    brains = [brain_of(*ids) for _ in range(4)]
    chosen = dict.fromkeys(ids, 0)
    draw = np.random.default_rng(82)
    for number in range(400):
        tokens = draw.integers(0, 1 << 30, 20 * BLOCK, dtype=np.uint32)
        chosen[brains[number % 4].decide(ask(tokens), number * 0.001).worker] += 1
    assert max(chosen.values()) <= 1.5 * 400 / 8, chosen


def test_new_prompts_go_to_the_least_loaded_and_not_to_the_emptiest() -> None:
    """R83: one has an empty cache and a long queue, the other a full cache and nothing to do."""
    brain = brain_of("busy", "idle")
    draw = np.random.default_rng(83)
    for _ in range(200):
        holds(brain, "idle", draw.integers(0, 1 << 30, 20 * BLOCK, dtype=np.uint32))
    for _ in range(10):
        heavy = draw.integers(0, 1 << 30, 3000 * BLOCK, dtype=np.uint32)
        brain.decide(ask(heavy, pin=Target("busy")), 0.0)
    for _ in range(10):
        unique = draw.integers(0, 1 << 30, 20 * BLOCK, dtype=np.uint32)
        assert brain.decide(ask(unique), 1.0).worker == "idle"


def test_routers_that_found_their_workers_in_another_order_choose_alike() -> None:
    """One also saw a worker come back: what a router numbers its workers by decides nothing."""
    ids = [f"w{number}" for number in range(6)]
    one, other = brain_of(*ids), brain_of(*reversed(ids))
    other.remove_worker("w4")
    other.remove_worker("w1")
    for name in ("w4", "w1"):
        other.add_worker(Worker(id=name, model=MODEL, block_size=BLOCK))
    draw = np.random.default_rng(84)
    chosen = []
    for _ in range(40):
        request = ask(draw.integers(0, 1 << 30, 20 * BLOCK, dtype=np.uint32))
        chosen.append(one.decide(request, 0.0, book=False).worker)
        assert other.decide(request, 0.0, book=False).worker == chosen[-1]
    assert len(set(chosen)) == len(ids), "a choice of one is no agreement"
