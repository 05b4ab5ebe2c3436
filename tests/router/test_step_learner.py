"""What a block adds to a step, learnt for each worker, and what leaves it as it is."""

from __future__ import annotations

import numpy as np
import pytest

from moonpool.router import Brain, BrainConfig, RouteRequest, SecondsCost, Target, Worker
from moonpool.router.load import Booking
from moonpool.router.step_learner import StepLearner

START = 2e-6
BASE_S = 0.01


def learner_of(places: int = 2, start: float = START) -> StepLearner:
    learner = StepLearner(start)
    learner.make_room(places)
    return learner


def booking_at(place: int) -> Booking:
    return Booking(f"b{place}", Target("w"), place, 100, 0, 0, 0.0, 1e9, 0.0)


def answer(
    learner: StepLearner,
    block_s: float,
    *,
    place: int = 0,
    reports: int = 200,
    span: float = 1000.0,
    noise: float = 0.0,
    strays: float = 0.0,
    seed: int = 1,
    quiet: bool = True,
    begin: float = 0.0,
) -> float:
    """One answer, 16 tokens a report, while the load goes up and down; what is learnt of it."""
    random = np.random.default_rng(seed)
    booking, now, before = booking_at(place), begin, 2000.0
    for number in range(reports):
        held = 2000.0 + span * np.sin(number / 10)
        step = BASE_S + block_s * (before + held) / 2
        step *= max(0.1, 1 + noise * random.normal())
        step *= 20 if random.random() < strays else 1
        now, before = now + 16 * step, held
        learner.grown(booking, now, 16, held, quiet)
    return float(learner.decode_block_s[place])


@pytest.mark.parametrize("block_s", [1e-7, 1e-6, 2e-5, 1e-4])
def test_a_rate_is_learnt_whatever_was_configured(block_s: float) -> None:
    assert answer(learner_of(), block_s) == pytest.approx(block_s, rel=0.1)


def test_two_workers_are_told_apart() -> None:
    learner = learner_of(3)
    answer(learner, 5e-7, place=0, noise=0.02)
    answer(learner, 3e-5, place=2, noise=0.02)
    assert learner.decode_block_s.tolist() == pytest.approx([5e-7, START, 3e-5], rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_strays_weigh_little(seed: int) -> None:
    learnt = answer(learner_of(), 2e-5, reports=600, noise=0.02, strays=0.05, seed=seed)
    assert learnt == pytest.approx(2e-5, rel=0.2), f"seed {seed}"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("span", "noise"), [(0.0, 0.1), (20.0, 0.3)])
def test_noise_and_an_even_load_leave_the_configured_value(
    span: float, noise: float, seed: int
) -> None:
    learnt = answer(learner_of(), 1e-5, span=span, noise=noise, seed=seed)
    assert learnt == pytest.approx(START, rel=0.3), f"seed {seed}"


def test_a_worker_that_becomes_another_is_believed() -> None:
    learner = learner_of()
    answer(learner, 1e-6, reports=600)
    assert answer(learner, 4e-5, reports=1000, begin=1e4) == pytest.approx(4e-5, rel=0.2)


def test_the_first_observations_change_nothing() -> None:
    assert answer(learner_of(), 1e-4, reports=16) == START, "of 16 reports 15 have one before"
    assert answer(learner_of(), 1e-4, reports=17) != START


def test_a_step_beside_a_prompt_tells_nothing() -> None:
    assert answer(learner_of(), 1e-4, quiet=False) == START
    learner, booking = learner_of(), booking_at(0)
    for number in range(100):
        learner.prompt_computed(0, number + 0.5)
        learner.grown(booking, float(number + 1), 16, 1000.0 * (number % 3), True)
    assert learner.decode_block_s[0] == START


def test_an_answer_that_stood_still_tells_nothing() -> None:
    learner, booking = learner_of(), booking_at(0)
    for number in range(100):
        learner.grown(booking, 16.0 * number, 16, 1000.0 * (number % 3), True)
    assert learner.decode_block_s[0] == START


def test_the_same_steps_count_once() -> None:
    """Forty answers beside each other for ten reports: nine observations, so nothing yet."""
    learner = learner_of()
    bookings = [booking_at(0) for _ in range(40)]
    for round_number in range(10):
        for number, booking in enumerate(bookings):
            now = round_number + number / 100
            learner.grown(booking, now, 16, 1000.0 * (round_number % 3), True)
    assert learner.decode_block_s[0] == START


@pytest.mark.parametrize("tokens", [1e-9, 0.5, 16, 1e15])
def test_nonsense_is_bounded(tokens: float) -> None:
    learner, booking = learner_of(), booking_at(0)
    random = np.random.default_rng(2)
    now = 0.0
    for _ in range(500):
        now += float(random.choice([0.0, 1e-9, 1e-3, 10.0]))
        learner.grown(booking, now, tokens, float(random.choice([0.0, 1e9])), True)
    assert START / 100 <= learner.decode_block_s[0] <= START * 100


def test_none_configured_none_learnt() -> None:
    assert answer(learner_of(start=0.0), 1e-4) == 0.0


def test_room_keeps_what_is_learnt_and_a_worker_takes_it_along() -> None:
    learner = learner_of(1)
    learnt = answer(learner, 2e-5)
    learner.make_room(4)
    assert learner.decode_block_s.tolist() == [learnt, START, START, START]
    learner.forget(0)
    assert learner.decode_block_s[0] == START
    fresh = answer(learner_of(), 1e-4, reports=40, begin=1e4)
    assert answer(learner, 1e-4, reports=40, begin=1e4) == fresh, "something is left of the sums"


def brain_of(*ids: str, config: BrainConfig | None = None) -> Brain:
    brain = Brain(config)
    for worker_id in ids:
        brain.add_worker(Worker(id=worker_id, model="m", block_size=16))
    return brain


def stream(brain: Brain, worker: str, block_s: float) -> None:
    """Answers of 200 blocks on one worker, one after the other."""
    place, now = brain.fleet.members[worker].places[0], 0.0
    for number in range(3):
        ask = RouteRequest(model="m", tokens=[number] * 160, pin=Target(worker))
        booking = brain.decide(ask, now).booking_id
        now += 1.0
        brain.first_token(booking, now)
        for _ in range(200):
            now += 16 * 10 * (BASE_S + block_s * (brain.load.decode_blocks[place] + 5))
            assert brain.output_block(booking, now, 10)
        brain.free(booking, now)


def test_the_brain_learns_from_output_blocks_and_forgets_with_the_worker() -> None:
    brain = brain_of("quick", "slow")
    stream(brain, "quick", 5e-7)
    stream(brain, "slow", 3e-5)
    quick, slow = (brain.fleet.members[name].places[0] for name in ("quick", "slow"))
    learnt = brain.learner.decode_block_s
    assert (learnt[quick], learnt[slow]) == pytest.approx((5e-7, 3e-5), rel=0.2)
    brain.remove_worker("slow")
    assert brain.learner.decode_block_s[slow] == START
    assert brain.learner.decode_block_s[quick] == pytest.approx(5e-7, rel=0.2)


@pytest.mark.parametrize("native", [True, False])
def test_a_decision_counts_what_is_learnt(native: bool) -> None:
    """Of two workers that hold as many blocks, the one that they slow down less; on both paths."""
    brain = brain_of("a", "b", config=BrainConfig(temperature=0.0))
    for worker in "ab":
        ask = RouteRequest(model="m", tokens=np.arange(16_000, dtype=np.uint32), pin=Target(worker))
        brain.first_token(brain.decide(ask, 0.0).booking_id, 1.0)
    shape = {"tokens": [7] * 160} if native else {"hashes": [1], "prompt_tokens": 160}
    question = RouteRequest(model="m", **shape)
    even = brain.decide(question, 1.0, book=False).scores
    brain.learner.decode_block_s[brain.fleet.members["a"].places[0]] = 2e-5
    dear = {s.worker: s.cost for s in brain.decide(question, 1.0, book=False).scores}
    assert dear["b"] == even[1].cost == even[0].cost
    assert dear["a"] - dear["b"] == pytest.approx(1000 * (2e-5 - START))


def test_with_nothing_told_a_block_costs_what_is_configured() -> None:
    brain = brain_of("a", "b", config=BrainConfig(cost=SecondsCost(decode_block_s=1e-3)))
    ask = RouteRequest(model="m", tokens=[1] * 160, pin=Target("a"))
    brain.first_token(brain.decide(ask, 0.0).booking_id, 0.0)
    scores = brain.decide(RouteRequest(model="m", tokens=[2] * 160), 0.0, book=False).scores
    assert scores[0].cost - scores[1].cost == pytest.approx(10 * 1e-3)
