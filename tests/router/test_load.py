"""Bookings, leases, learnt rates, sessions and guesses: what ends by itself, and when."""

from __future__ import annotations

import numpy as np
import pytest

from moonpool.core.errors import BadInput, NoWorker
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
from moonpool.router.guesses import Generations
from moonpool.router.learner import Learner
from moonpool.router.load import LoadBook
from moonpool.router.sessions import Sessions

TOKENS = np.arange(160, dtype=np.uint32)


def book_of(lease_s: float = 10.0, bookings_max: int = 100) -> LoadBook:
    book = LoadBook(lease_s, bookings_max)
    book.make_room(3)
    return book


def add(book: LoadBook, name: str, now: float = 0.0, place: int = 1) -> None:
    book.book(name, Target("w"), place, now, prompt_tokens=100, hit_tokens=0)


def test_reports_renew_the_lease() -> None:
    book = book_of()
    add(book, "a")
    add(book, "b")
    book.first_token("a", 8.0)
    assert [b.id for b in book.expire(10.0)] == ["b"]
    assert [b.id for b in book.expire(18.0)] == ["a"]
    assert (book.expired, len(book), book.prefill_tokens[1]) == (2, 0, 0)


def test_an_id_names_one_request() -> None:
    book = book_of()
    add(book, "a")
    with pytest.raises(BadInput, match="'a' exists"):
        add(book, "a")
    with pytest.raises(BadInput, match="positive"):
        LoadBook(0.0)


def test_bookings_are_bounded_and_the_oldest_goes() -> None:
    book = book_of(bookings_max=2)
    for number, name in enumerate("abc"):
        add(book, name, float(number))
    assert (book.get("a"), len(book), book.expired) == (None, 2, 1)
    book.free("b")
    add(book, "d", 3.0)
    add(book, "e", 4.0)
    assert book.get("c") is None


def test_a_target_that_goes_takes_its_bookings() -> None:
    book = book_of()
    add(book, "a", place=1)
    add(book, "b", place=2)
    assert [b.id for b in book.drop(1)] == ["a"]
    assert (book.booked_tokens[1], book.requests[2]) == (0, 1)


def test_reports_of_the_unknown_change_nothing() -> None:
    book = book_of()
    assert not book.output_blocks("x", 0.0)
    assert book.first_token("x", 0.0) is None
    book.prefills_elsewhere("x")
    assert book.free("x") is None


def learnt(observations: list[tuple[int, int, float, float]]) -> Learner:
    """(uncached, from the pool, booked at, first token at) on one target."""
    learner = Learner(1e-4, 1e-5, 2e-6)
    learner.make_room(2)
    book = LoadBook(1e9)
    book.make_room(2)
    for number, (uncached, pool, came, done) in enumerate(observations):
        prompt = uncached + pool
        name = str(number)
        booking = book.book(
            name, Target("w"), 1, came, prompt_tokens=prompt, hit_tokens=0, pool_tokens=pool
        )
        learner.first_token(booking, done)
    return learner


def test_a_rate_is_learnt_from_queues_as_from_idle_workers() -> None:
    queued = [(10_000, 0, 0.0, 5.0 * (i + 1)) for i in range(20)]
    assert learnt(queued).prefill_s[1] == pytest.approx(5e-4, rel=0.02)
    apart = [(10_000, 0, 100.0 * i, 100.0 * i + 5.0) for i in range(20)]
    assert learnt(apart).prefill_s[1] == pytest.approx(5e-4, rel=0.02)


def test_both_coefficients_are_told_apart() -> None:
    mixed = []
    for i in range(40):
        uncached, pool = (8000, 2000) if i % 2 else (1000, 20_000)
        mixed.append((uncached, pool, 100.0 * i, 100.0 * i + uncached * 3e-4 + pool * 4e-5))
    learner = learnt(mixed)
    assert learner.prefill_s[1] == pytest.approx(3e-4, rel=0.05)
    assert learner.transfer_s[1] == pytest.approx(4e-5, rel=0.05)


def test_prompts_of_one_step_count_together_and_nonsense_is_bounded() -> None:
    pairs = []
    for i in range(20):
        pairs += [(5000, 0, 100.0 * i, 100.0 * i), (5000, 0, 100.0 * i, 100.0 * i + 5.0)]
    assert learnt(pairs).prefill_s[1] == pytest.approx(5e-4, rel=0.05)
    assert learnt([(0, 0, 0.0, 5.0)]).prefill_s[1] == 1e-4
    assert learnt([(10_000, 0, 0.0, 1e9)] * 3).prefill_s[1] <= 0.1
    forgotten = learnt([(10_000, 0, 0.0, 5.0)])
    forgotten.forget(1)
    assert forgotten.prefill_s[1] == 1e-4


def test_a_stall_says_little_of_the_next_prompt() -> None:
    usual = [(1000, 0, 100.0 * i, 100.0 * i + 0.25) for i in range(14)]
    before = learnt(usual).prefill_s[1]
    stalled = learnt([*usual, (1000, 0, 1400.0, 1403.0)]).prefill_s[1]  # twelve times as long
    assert before < stalled < 1.3 * before
    slower = [(1000, 0, 1400.0 + 100 * i, 1403.0 + 100 * i) for i in range(200)]
    assert learnt([*usual, *slower]).prefill_s[1] == pytest.approx(3e-3, rel=0.05)


def test_who_was_not_asked_yet_counts_as_the_others() -> None:
    learner = Learner(1e-4, 1e-5, 2e-6)
    learner.make_room(2)
    book = book_of()

    def computed(name: str, place: int, begun: float, seconds: float) -> None:
        book.book(name, Target("w"), place, begun, prompt_tokens=1000, hit_tokens=0)
        done = book.first_token(name, begun + seconds)
        assert done is not None
        learner.first_token(done, begun + seconds)

    for number in range(40):
        computed(f"a{number}", 0, 10.0 * number, 0.8)
    learner.make_room(3)  # one more has come
    assert learner.prefill_s[0] == pytest.approx(8e-4, rel=0.1)
    assert learner.prefill_s[1] == learner.prefill_s[2] == learner.prefill_s[0]
    computed("b", 1, 500.0, 0.8)
    assert learner.prefill_s[1] == pytest.approx(learner.prefill_s[0], rel=0.1)
    computed("c", 2, 500.0, 0.2)  # its own as soon as it shows it
    assert learner.prefill_s[2] < 0.95 * learner.prefill_s[1]
    learner.forget(1)
    shown = learner.prefill_s[0] * learner.prefill_s[2]
    assert learner.prefill_s[1] == pytest.approx(shown**0.5)


def test_guesses_live_between_one_and_two_times_their_life() -> None:
    turns = Generations(10.0, (3, 4))
    assert turns.turn(0.0) == ()
    assert (turns.turn(9.9), turns.young) == ((), 3)
    assert (turns.turn(10.0), turns.young) == ((4,), 4)
    assert (turns.turn(20.0), turns.young) == ((3,), 3)
    assert turns.turn(50.0) == (4, 3)


def test_own_decisions_stand_in_for_events_until_they_are_old() -> None:
    brain = Brain(BrainConfig(guess_ttl_s=100.0))
    brain.add_worker(Worker(id="w", model="m", block_size=16, publishes_events=False))
    ask = RouteRequest(model="m", tokens=TOKENS)
    brain.decide(ask, 0.0)
    assert brain.decide(ask, 99.0, book=False).predicted_hit_tokens == 144
    assert brain.decide(ask, 250.0, book=False).predicted_hit_tokens == 0


def test_a_worker_that_should_publish_and_does_not_is_named() -> None:
    brain = Brain(BrainConfig(silent_after=3))
    brain.add_worker(Worker(id="w", model="m", block_size=16))
    for _ in range(3):
        brain.decide(RouteRequest(model="m", tokens=TOKENS), 0.0)
    assert "published no KV event" in brain.fleet.members["w"].problems["silent"]
    brain.apply_event("w", Cleared())
    assert not brain.fleet.members["w"].problems


def test_sessions_end_and_are_bounded() -> None:
    sessions = Sessions(10.0, 2)
    for number, name in enumerate("abc"):
        sessions.served(name, Target(name), float(number))
    assert sessions.target("a", 3.0) is None
    assert sessions.target("b", 3.0) == Target("b")
    sessions.expire(11.5)
    assert len(sessions) == 1
    sessions.forget_worker("c")
    assert len(sessions) == 0
    sessions.expire(99.0)


def brain_of(affinity: str) -> Brain:
    brain = Brain(BrainConfig(affinity=affinity))  # type: ignore[arg-type]
    for name in "ab":
        brain.add_worker(Worker(id=name, model="m", block_size=16, labels={"zone": name}))
    return brain


def test_soft_affinity_gives_way_to_load_and_hard_does_not() -> None:
    for affinity, expected in (("soft", "b"), ("hard", "a"), ("off", "b")):
        brain = brain_of(affinity)
        ask = RouteRequest(model="m", tokens=TOKENS, session="s", pin=Target("a"))
        brain.decide(ask, 0.0)
        again = RouteRequest(model="m", tokens=TOKENS + np.uint32(999), session="s")
        near = brain.decide(again, 0.0, book=False)
        if affinity != "off":
            assert (near.worker, near.reason) == ("a", "session")
        for number in range(60):
            other = np.arange(160, dtype=np.uint32) + np.uint32(10_000 * (number + 1))
            brain.decide(RouteRequest(model="m", tokens=other, pin=Target("a")), 0.0)
        assert brain.decide(again, 0.0, book=False).worker == expected


def test_a_hard_session_whose_worker_is_busy_or_gone_goes_elsewhere() -> None:
    brain = brain_of("hard")
    ask = RouteRequest(model="m", tokens=TOKENS, session="s")
    first = brain.decide(ask, 0.0).worker
    brain.mark_busy(first, until=5.0)
    assert brain.decide(ask, 1.0, book=False).worker != first
    assert brain.decide(ask, 6.0, book=False).worker == first
    brain.remove_worker(first)
    assert brain.decide(ask, 6.0).worker != first


def test_labels_lists_taints_and_preferences() -> None:
    brain = brain_of("off")
    brain.add_worker(Worker(id="c", model="m", block_size=16, taints=frozenset({"gpu-test"})))

    def worker(**fields: object) -> str:
        ask = RouteRequest(model="m", tokens=TOKENS, **fields)  # type: ignore[arg-type]
        return brain.decide(ask, 0.0, book=False).worker

    assert worker(labels={"zone": "b"}) == "b"
    assert worker(allowed=frozenset({"a"})) == "a"
    assert worker(preferred={"zone=b": 1.0}) == "b"
    assert worker(preferred={"zone=b": -1.0}) == "a"
    assert worker(pin=Target("c"), tolerates=frozenset({"gpu-test"})) == "c"
    with pytest.raises(NoWorker, match="taints"):
        worker(pin=Target("c"))
    with pytest.raises(NoWorker, match="'z' is not registered"):
        worker(pin=Target("z"))


def test_a_prediction_is_checked_against_what_the_worker_had() -> None:
    brain = brain_of("off")
    brain.apply_event("a", Cleared())
    decision = brain.decide(RouteRequest(model="m", tokens=TOKENS), 0.0)
    brain.free(decision.booking_id, 1.0, hit_tokens=16)
    assert (brain.predicted_tokens, brain.actual_tokens) == (0, 16)


def test_peers_can_bring_what_they_hold() -> None:
    brain = Brain(BrainConfig(peers_transfer=True))
    for name in "ab":
        brain.add_worker(Worker(id=name, model="m", block_size=16))
    ask = RouteRequest(model="m", tokens=TOKENS)
    hashes = [int(h) for h in prefix_hashes(TOKENS, 16, prefix_seed("m"))]
    brain.apply_event("a", Stored(hashes[:5]))
    scores = brain.decide(ask, 0.0, book=False).scores
    assert [(s.hit_tokens, s.pool_tokens) for s in scores] == [(80, 0), (0, 80)]


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"id": ""}, "needs an id"),
        ({"id": "w", "ranks": 0}, "ranks"),
        ({"id": "w", "block_size": -1}, "block_size"),
    ],
)
def test_workers_that_make_no_sense(fields: dict[str, object], match: str) -> None:
    with pytest.raises(BadInput, match=match):
        Worker(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [["x"], [1.5], [-1], [2**32], [[1, 2]]])
def test_tokens_that_are_none(tokens: list[object]) -> None:
    with pytest.raises(BadInput, match="token"):
        brain_of("off").decide(RouteRequest(model="m", tokens=tokens), 0.0)  # type: ignore[arg-type]


def test_a_request_with_nothing_to_route_by() -> None:
    with pytest.raises(BadInput, match="tokens, or hashes"):
        brain_of("off").decide(RouteRequest(model="m"), 0.0)


def test_a_million_tokens_are_routed() -> None:
    ask = RouteRequest(model="m", tokens=np.zeros(1_000_000, np.uint32))
    assert brain_of("off").decide(ask, 0.0).prompt_tokens == 1_000_000


def test_blocks_under_way_are_counted_once() -> None:
    """An engine tells of blocks while it computes the prompt."""
    book, places = LoadBook(10.0), np.array([1])
    book.make_room(2)

    def book_at(name: str, cached: float) -> None:
        target = Target("w")
        book.book(
            name,
            target,
            1,
            0.0,
            prompt_tokens=128,
            hit_tokens=0,
            cached_blocks=cached,
            new_blocks=8,
        )

    def taken(cached: float) -> float:
        return float(book.taken_blocks(places, np.array([cached]))[0])

    assert taken(3) == 3
    book_at("a", 3)
    assert [taken(n) for n in (3, 7, 11, 12)] == [11, 11, 11, 12]
    book_at("b", 7)
    assert taken(7) == 19
    book.first_token("a", 1.0)
    assert taken(11) == 19, "the other is still to come"
    book.free("b")
    assert taken(11) == 11, "it never came"
    book_at("c", 11)
    assert taken(11) == 19
