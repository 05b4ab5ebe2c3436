"""The brain: the cheapest target, what is booked on it, and who may not be chosen."""

import numpy as np
import pytest

from moonpool.core.errors import BadInput, NoWorker, RequestTooLarge, WorkersBusy
from moonpool.router import (
    Brain,
    BrainConfig,
    Cleared,
    RouteRequest,
    Stored,
    Target,
    Worker,
    prefix_hashes,
    prefix_seed,
)

MODEL = "m"
TOKENS = np.arange(160, dtype=np.uint32)
HASHES = prefix_hashes(TOKENS, 16, prefix_seed(MODEL))


def brain_of(*ids: str, config: BrainConfig | None = None, **fields: object) -> Brain:
    brain = Brain(config)
    for worker_id in ids:
        brain.add_worker(Worker(id=worker_id, model=MODEL, block_size=16, **fields))  # type: ignore[arg-type]
    return brain


def ask(**fields: object) -> RouteRequest:
    return RouteRequest(**({"model": MODEL, "tokens": TOKENS} | fields))  # type: ignore[arg-type]


def test_a_request_goes_where_its_prefix_lies() -> None:
    brain = brain_of("a", "b", "c")
    brain.apply_event("b", Stored(HASHES.tolist()[:6]))
    decision = brain.decide(ask(), 0.0)
    assert (decision.worker, decision.predicted_hit_tokens) == ("b", 96)
    assert [s.hit_tokens for s in decision.scores] == [0, 96, 0]


def test_a_backlog_moves_it_elsewhere() -> None:
    brain = brain_of("a", "b")
    brain.apply_event("a", Stored(HASHES.tolist()[:6]))
    for number in range(40):
        other = np.arange(number * 1000, number * 1000 + 160, dtype=np.uint32)
        brain.decide(ask(tokens=other, pin=Target("a")), 0.0)
    assert brain.decide(ask(), 0.0).worker == "b"


def test_of_a_prompt_held_whole_the_last_block_is_computed_again() -> None:
    brain = brain_of("a")
    brain.apply_event("a", Stored(HASHES.tolist()))
    assert brain.decide(ask(), 0.0).predicted_hit_tokens == 144


def test_a_decision_is_a_prediction_until_events_tell() -> None:
    brain = brain_of("a", "b")
    first = brain.decide(ask(), 0.0)
    brain.free(first.booking_id, 1.0)
    second = brain.decide(ask(), 2.0)
    assert second.worker == first.worker
    assert second.predicted_hit_tokens == 144


def test_the_life_of_a_booking() -> None:
    brain = brain_of("a")
    booking = brain.decide(ask(), 0.0).booking_id
    place = brain.fleet.members["a"].places[0]
    assert brain.load.prefill_tokens[place] == 160
    assert brain.first_token(booking, 1.0)
    assert not brain.first_token(booking, 1.0)
    assert brain.load.prefill_tokens[place] == 0
    assert brain.output_block(booking, 1.0)
    assert brain.load.decode_blocks[place] == 11
    assert brain.free(booking, 2.0) is not None
    assert brain.free(booking, 2.0) is None
    assert (brain.load.decode_blocks[place], brain.load.requests[place]) == (0, 0)


def test_a_booking_nobody_reports_on_ends_by_its_lease() -> None:
    brain = brain_of("a", config=BrainConfig(lease_s=10.0))
    booking = brain.decide(ask(), 0.0).booking_id
    assert brain.tick(9.9) == []
    assert [b.id for b in brain.tick(10.0)] == [booking]
    assert brain.load.requests.sum() == 0


def test_a_question_books_nothing() -> None:
    brain = brain_of("a", "b")
    assert brain.decide(ask(), 0.0, book=False).booking_id == ""
    assert brain.load.requests.sum() == 0
    assert len(brain.index) == 0


def test_nobody_to_send_it_to() -> None:
    with pytest.raises(NoWorker, match="no worker is registered"):
        Brain().decide(ask(), 0.0)
    with pytest.raises(NoWorker, match="'other'"):
        brain_of("a").decide(ask(model="other"), 0.0)


def test_busy_workers_are_passed_over_until_they_are_not() -> None:
    brain = brain_of("a", "b", config=BrainConfig(busy_requests=1))
    first, second = brain.decide(ask(), 0.0), brain.decide(ask(), 0.0)
    assert first.worker != second.worker
    with pytest.raises(WorkersBusy) as refused:
        brain.decide(ask(), 0.0)
    assert refused.value.retry_after_s == 1.0
    brain.free(first.booking_id, 0.0)
    assert brain.decide(ask(), 0.0).worker == first.worker


def test_a_request_no_context_holds() -> None:
    brain = brain_of("a", context_tokens_max=100)
    with pytest.raises(RequestTooLarge, match="100 tokens"):
        brain.decide(ask(), 0.0)


def test_an_empty_prompt_goes_to_the_least_loaded() -> None:
    brain = brain_of("a", "b")
    first = brain.decide(ask(), 0.0)
    assert brain.decide(ask(tokens=[]), 0.0).worker != first.worker


def test_a_removed_worker_takes_everything_with_it() -> None:
    brain = brain_of("a", "b")
    brain.apply_event("a", Stored(HASHES.tolist()))
    brain.decide(ask(session="s"), 0.0)
    assert brain.remove_worker("a")
    assert not brain.remove_worker("a")
    assert brain.load.requests.sum() == 0
    assert len(brain.index) == 0
    assert brain.decide(ask(session="s"), 0.0).worker == "b"


def test_events_of_the_unknown_are_refused() -> None:
    brain = brain_of("a")
    with pytest.raises(BadInput, match="'z'"):
        brain.apply_event("z", Cleared())
    with pytest.raises(BadInput, match="number 3"):
        brain.apply_event("a", Cleared(rank=3))


def test_a_long_prompt_is_split_over_prefill_and_decode() -> None:
    brain = Brain()
    brain.add_worker(Worker(id="p", role="prefill", model=MODEL, block_size=16))
    brain.add_worker(Worker(id="d", role="decode", model=MODEL, block_size=16))
    short = brain.decide(ask(), 0.0)
    assert (short.worker, short.prefill) == ("d", None)
    long = brain.decide(ask(tokens=np.arange(4096, dtype=np.uint32) + 7), 0.0)
    assert long.prefill is not None
    assert (long.worker, long.prefill.worker) == ("d", "p")
    assert long.prefill.booking_id == f"{long.booking_id}/prefill"


@pytest.mark.parametrize(
    ("tokens", "held", "split"),
    [
        (96, 0, False),  # short
        (320, 0, True),
        (1600, 1280, False),  # 320 uncached, but most of it is here
        (1600, 1120, True),  # 480 uncached: too many to compute here
        (1600, 1536, False),
    ],
)
def test_what_is_mostly_cached_is_prefilled_where_it_is(
    tokens: int, held: int, split: bool
) -> None:
    brain = Brain(BrainConfig(remote_prefill_tokens=100, remote_prefill_ratio=0.7))
    brain.add_worker(Worker(id="p", role="prefill", model=MODEL, block_size=16))
    brain.add_worker(Worker(id="d", role="decode", model=MODEL, block_size=16))
    prompt = np.arange(tokens, dtype=np.uint32)
    hashes = prefix_hashes(prompt, 16, prefix_seed(MODEL))
    brain.apply_event("d", Stored(hashes[: held // 16].tolist()))
    assert (brain.decide(ask(tokens=prompt), 0.0).prefill is not None) == split
