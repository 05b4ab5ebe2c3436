"""Costs: Dynamo's formula by its own examples, ours in seconds, and the choice among equals."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from moonpool.core.errors import BadConfig
from moonpool.router import (
    Brain,
    BrainConfig,
    Cleared,
    DynamoCost,
    RouteRequest,
    SecondsCost,
    Stored,
    Target,
    Worker,
    prefix_hashes,
    prefix_seed,
)
from moonpool.router.choose import cheapest, drawn, rendezvous
from moonpool.router.cost import Facts

KEYS = np.array([1, 2, 3], np.uint64)


def facts(**columns: object) -> Facts:
    """Three targets, blocks of 16, a prompt of 160 tokens, nothing cached and no load."""
    nothing = np.zeros(3)
    base: dict[str, object] = {
        "prompt_tokens": 160,
        "output_tokens": 0,
        "priority": 0,
        "block_size": np.full(3, 16.0),
        "prefill_s": np.full(3, 1e-3),
        "transfer_s": np.full(3, 1e-4),
        "new_blocks": np.full(3, 10.0),
        "filled": np.ones(3),
    }
    values = dict.fromkeys(Facts._fields, nothing) | base
    for name, value in columns.items():
        values[name] = np.array(value, float) if isinstance(value, list) else value
    return Facts(**values)  # type: ignore[arg-type]


# Dynamo's formula computed by hand; test_dynamo_decisions.py has what it really decided.
BY_HAND = [
    # device tokens, prefill booked, decode blocks -> cost by target
    ([0, 0, 0], [0, 0, 0], [0, 0, 0], [20.0, 20.0, 20.0]),
    ([160, 80, 0], [0, 0, 0], [0, 0, 0], [10.0, 15.0, 20.0]),
    ([160, 80, 0], [320, 0, 0], [0, 0, 0], [30.0, 15.0, 20.0]),
    ([160, 0, 0], [0, 0, 0], [15, 0, 2], [25.0, 20.0, 22.0]),
    ([160, 0, 0], [160, 160, 0], [0, 3, 0], [20.0, 33.0, 20.0]),
]


@pytest.mark.parametrize(("device", "prefill", "decode", "expected"), BY_HAND)
def test_dynamos_formula_by_hand(
    device: list[float], prefill: list[float], decode: list[float], expected: list[float]
) -> None:
    seen = facts(device_tokens=device, prefill_tokens=prefill, decode_blocks=decode)
    assert DynamoCost().costs(seen).tolist() == pytest.approx(expected)


def test_dynamos_further_terms() -> None:
    seen = facts(
        device_tokens=[160, 0, 0],
        host_tokens=[0, 160, 0],
        pool_tokens=[0, 0, 160],
        prefill_tokens=[160, 0, 0],
        requests=[0, 1, 0],
    )
    model = DynamoCost(
        overlap_score_credit_decay=1.0,
        shared_cache_multiplier=0.5,
        decode_active_request_weight=2.0,
        prefill_load_scale=2.0,
    )
    # excess of the first: 10 blocks of 10 -> its credit is halved: 2 x (20 - 5) + 10
    assert model.costs(seen).tolist() == pytest.approx([40.0, 2 * 2.5 + 10 + 2, 2 * 5 + 10])
    untracked = DynamoCost(track_prefill_tokens=False).costs(seen)
    assert untracked.tolist() == pytest.approx([10.0, 12.5, 20.0])


def test_dynamos_taints_bound_what_they_change() -> None:
    costs = DynamoCost().costs(facts(preferred=[0.0, 100.0, -100.0]))
    assert costs.tolist() == pytest.approx([20.0, 20 / np.e, 20 * np.e])


def test_seconds_weigh_own_work_and_add_what_waits() -> None:
    seen = facts(
        device_tokens=[160, 0, 0],
        pool_tokens=[0, 160, 0],
        prefill_tokens=[1600, 0, 0],
        decode_blocks=[0, 0, 1000],
        decode_block_s=[0, 0, 1e-5],
    )
    model = SecondsCost(locality=4)
    assert model.costs(seen).tolist() == pytest.approx([1.6, 4 * 0.016, 4 * 0.16 + 0.01])


def test_a_slow_pool_costs_no_more_than_computing_again() -> None:
    seen = facts(pool_tokens=[160, 0, 160], transfer_s=[1.0, 1.0, 1e-6])
    costs = SecondsCost().costs(seen)
    assert costs[0] == pytest.approx(costs[1])
    assert costs[2] < costs[1] / 100


def test_priority_lets_the_own_wait_count_for_more() -> None:
    held_but_busy = {"device_tokens": [160, 0, 0], "prefill_tokens": [400, 0, 0]}
    model = SecondsCost(locality=4)
    assert model.costs(facts(**held_but_busy)).argmin() == 0
    assert model.costs(facts(**held_but_busy, priority=3)).argmin() == 1


def test_the_emptier_cache_costs_less() -> None:
    """By the whole prompt, whatever of it is held: a held prefix counts as before."""
    seen = facts(filled=[1, 0.5, 0.25], device_tokens=[160, 0, 0])
    costs = SecondsCost(locality=4).costs(seen)
    assert costs.tolist() == pytest.approx([4 * 0.16, (4 + 2) * 0.16, (4 + 1) * 0.16])
    all_full = SecondsCost(locality=4).costs(facts())
    assert all_full.tolist() == pytest.approx([4 * 0.16] * 3)


def test_twelve_sessions_fill_two_caches_of_six_evenly() -> None:
    """The one is slower, so that it always has a prompt waiting when the next one comes."""
    brain, draw = Brain(), np.random.default_rng(1)
    for name in ("slow", "quick"):
        brain.add_worker(Worker(id=name, model="m", block_size=16, kv_blocks_max=6 * 74))
        brain.apply_event(name, Cleared())
    chosen: list[str] = []
    running: dict[str, tuple[str, list[int]]] = {}
    for number in range(12):
        tokens = new_prompt(draw)
        decision = brain.decide(RouteRequest(model="m", tokens=tokens), float(number))
        chosen.append(decision.worker)
        hashes = prefix_hashes(tokens, 16, prefix_seed("m")).tolist()
        done = running.get("slow") if decision.worker == "slow" else (decision.booking_id, hashes)
        if decision.worker == "slow":
            running["slow"] = decision.booking_id, hashes
        if done:
            brain.apply_event(decision.worker, Stored(done[1]))
            brain.free(done[0], number + 0.5)
    assert chosen.count("slow") == 6


@pytest.mark.parametrize(
    ("changes", "heard", "filled"),
    [({"kv_blocks_max": 100}, True, 0.4), ({}, True, 1), ({"kv_blocks_max": 100}, False, 1)],
)
def test_fill_is_known_of_who_tells(changes: dict[str, int], heard: bool, filled: float) -> None:
    """How much it holds, and what: twenty blocks, and as many booked. Others count as full."""
    brain = Brain()
    for name, more in (("a", changes), ("known", {"kv_blocks_max": 100})):
        brain.add_worker(Worker(id=name, model="m", block_size=16, **more))  # type: ignore[arg-type]
    brain.apply_event("known", Stored(range(1, 41)))
    if heard:
        brain.apply_event("a", Stored(range(1, 21)))
    booking = RouteRequest(model="m", tokens=[7] * 320, pin=Target("a"))
    brain.decide(booking, 0.0)
    ask = RouteRequest(model="m", tokens=np.arange(160, dtype=np.uint32))
    scores = {score.worker: score for score in brain.decide(ask, 0.0, book=False).scores}
    token_s, a = brain.config.prefill_s, scores["a"]
    waits = a.prefill_tokens * token_s + a.decode_blocks * brain.config.cost.decode_block_s
    assert a.prefill_tokens == 320
    assert a.cost - waits == pytest.approx(8 * 160 * token_s * (1 + filled))
    assert scores["known"].cost == pytest.approx(8 * 160 * token_s * 1.4)


def test_all_count_as_full_once_the_index_has_evicted() -> None:
    """What it counts as held is too little then."""
    brain = Brain(BrainConfig(index_bytes_max=1 << 20))
    brain.add_worker(Worker(id="a", model="m", block_size=16, kv_blocks_max=1 << 20))
    draw = np.random.default_rng(0)
    while not brain.index.evicted:
        brain.apply_event("a", Stored(draw.integers(1, 1 << 63, 1024, dtype=np.uint64).tolist()))
    ask = RouteRequest(model="m", tokens=np.arange(160, dtype=np.uint32))
    cost = brain.decide(ask, 0.0, book=False).scores[0].cost
    assert cost == pytest.approx(8 * 160 * brain.config.prefill_s)


def two_that_took(first_s: float, second_s: float) -> Brain:
    """Each has computed eight prompts of 1,024 tokens, one after the other."""
    brain = Brain()
    for name in ("first", "second"):
        brain.add_worker(Worker(id=name, model="m", block_size=16))
    draw = np.random.default_rng(0)
    for number in range(8):
        for name, seconds in (("first", first_s), ("second", second_s)):
            ask = RouteRequest(model="m", tokens=new_prompt(draw), pin=Target(name))
            booking = brain.decide(ask, 10.0 * number).booking_id
            brain.first_token(booking, 10.0 * number + seconds)
            brain.free(booking, 10.0 * number + seconds)
    return brain


def new_prompt(draw: np.random.Generator) -> npt.NDArray[np.uint32]:
    return draw.integers(0, 1 << 30, 1024, dtype=np.uint32)


@pytest.mark.parametrize("others_waiting", [0, 1])
def test_who_seems_a_little_faster_does_not_get_every_new_prefix(others_waiting: int) -> None:
    """Its cache would hold them all and that of the other none."""
    brain, draw = two_that_took(0.3, 0.2), np.random.default_rng(1)
    rates = brain.learner.prefill_s.max() / brain.learner.prefill_s[brain.learner.prefill_s > 0]
    assert rates.max() > 1.3
    chosen, waiting = [], []
    for number in range(12):
        decision = brain.decide(RouteRequest(model="m", tokens=new_prompt(draw)), 100.0 + number)
        chosen.append(decision.worker)
        waiting.append(decision.booking_id)
        if len(waiting) > others_waiting:
            brain.free(waiting.pop(0), 100.5 + number)
    assert chosen.count("first") == chosen.count("second")


def test_who_is_much_slower_gets_what_the_faster_has_a_queue_for() -> None:
    brain, draw = two_that_took(0.05, 0.4), np.random.default_rng(1)
    chosen = [
        brain.decide(RouteRequest(model="m", tokens=new_prompt(draw)), 100.0).worker
        for _ in range(18)
    ]
    assert set(chosen[:4]) == {"first"}
    assert 1 <= chosen.count("second") <= 4


def test_the_native_sum_is_the_models() -> None:
    """Tokens go through the core's route, the same hashes through the facts."""
    tokens = np.arange(1600, dtype=np.uint32)
    hashes = prefix_hashes(tokens, 16, prefix_seed("m"))
    brain = Brain()
    for number in range(4):
        brain.add_worker(Worker(id=f"w{number}", model="m", block_size=16))
        brain.apply_event(f"w{number}", Stored(hashes[: number * 20].tolist()))
    brain.apply_event("w1", Stored(hashes[20:50].tolist(), int(hashes[19]), tier=1))
    brain.apply_pool_events([Stored(hashes[:70].tolist())])
    brain.decide(RouteRequest(model="m", tokens=[1, 2, 3] * 100, pin=Target("w2")), 0.0)
    ask = RouteRequest(model="m", tokens=tokens)
    given = RouteRequest(model="m", hashes=hashes, prompt_tokens=1600)
    native = brain.decide(ask, 0.0, book=False).scores
    plain = brain.decide(given, 0.0, book=False).scores
    assert [s.cost for s in native] == pytest.approx([s.cost for s in plain])
    assert [s._replace(cost=0.0) for s in native] == [s._replace(cost=0.0) for s in plain]
    assert [s.pool_tokens for s in native] == [1120, 320, 480, 160]
    assert native[1].hit_tokens - native[1].device_tokens == 480


def test_dynamo_counts_shared_blocks_once() -> None:
    brain = Brain(BrainConfig(cost=DynamoCost()))
    brain.add_worker(Worker(id="a", model="m", block_size=16))
    place = brain.fleet.members["a"].places[0]
    tokens = np.arange(160, dtype=np.uint32)
    first = brain.decide(RouteRequest(model="m", tokens=tokens), 0.0)
    second = brain.decide(RouteRequest(model="m", tokens=np.append(tokens, 7)), 0.0)
    assert brain.load.decode_blocks[place] == 10  # a block that is filled in part has no hash
    brain.free(first.booking_id, 0.0)
    assert brain.load.decode_blocks[place] == 10
    brain.free(second.booking_id, 0.0)
    assert brain.load.decode_blocks[place] == 0


def test_equal_costs_go_to_the_least_booked_then_by_rendezvous() -> None:
    costs = np.array([2.0, 1.0, 1.0])
    assert cheapest(costs, np.array([0.0, 9.0, 5.0]), KEYS, 1) == 2
    assert cheapest(costs, np.array([0.0, 0.0, 0.0]), KEYS, 1) in (1, 2)
    chosen = {cheapest(costs, np.zeros(3), KEYS, salt) for salt in range(40)}
    assert chosen == {1, 2}
    assert rendezvous(5, 1) != rendezvous(5, 2)


def test_temperature_spreads_by_cost_and_never_to_the_busy() -> None:
    costs = np.array([1.0, 2.0, np.inf])
    draws = [drawn(costs, 0.5, draw) for draw in np.linspace(0, 0.999, 200)]
    assert draws.count(0) / 200 == pytest.approx(1 / (1 + np.exp(-2)), abs=0.02)
    assert set(draws) == {0, 1}
    assert drawn(np.full(2, np.inf), 1.0, 0.9) == 1
    assert drawn(np.full(2, 3.0), 1.0, 0.1) == 0


def test_a_configuration_that_makes_no_sense() -> None:
    with pytest.raises(BadConfig, match="lease_s"):
        BrainConfig(lease_s=0)
    with pytest.raises(BadConfig, match="temperature"):
        BrainConfig(temperature=-1)
