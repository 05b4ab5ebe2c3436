"""What a step does: batching, reuse, preemption, refusal, abort. Each step ends with a whole check
of the cache."""

from pathlib import Path

import pytest

from moonpool.core.errors import BadInput, EngineBusy
from moonpool.engine.disagg import Handing, Wish
from moonpool.engine.request import Request
from tests.engine.steps import BLOCK, CHUNK, Answers, core_of, greedy, prompt_of


def alone(tiny: Path, requests: list[Request]) -> list[list[int]]:
    """What each request gets from an engine of its own."""
    return [Answers(core_of(tiny)).ask(request) for request in requests]


def test_a_second_time_whole_chunks_are_reused(tiny: Path) -> None:
    answers = Answers(core_of(tiny))
    first = answers.ask(greedy(prompt_of(100)))
    second = answers.ask(greedy(prompt_of(100)))
    assert first == second
    assert [step.reuse.local_tokens for step in answers.last.values()] == [0, 96]
    assert answers.core.figures()["computed_tokens"] == 100 + 4


@pytest.mark.parametrize("length", [1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_the_last_token_is_always_computed(tiny: Path, length: int) -> None:
    answers = Answers(core_of(tiny))
    answers.ask(greedy(prompt_of(length)))
    answers.ask(greedy(prompt_of(length)))
    reused = answers.last[2].reuse.local_tokens
    assert reused == (length - 1) // CHUNK * CHUNK


def test_what_single_steps_computed_is_not_reused(tiny: Path) -> None:
    answers = Answers(core_of(tiny))
    prompt = prompt_of(CHUNK + 5)
    answer = answers.ask(greedy(prompt, 2 * CHUNK))
    answers.ask(greedy(prompt + answer))
    assert answers.last[2].reuse.local_tokens == CHUNK


def test_requests_beside_each_other_get_what_they_get_alone(tiny: Path) -> None:
    requests = [greedy(prompt_of(20 + 13 * i, seed=i), 6 + i) for i in range(7)]
    answers = Answers(core_of(tiny))
    numbers = []
    for request in requests:
        numbers.append(answers.add(request))
        answers.step()
    answers.run()
    assert [answers.tokens[number] for number in numbers] == alone(tiny, requests)


def test_a_prefix_computed_twice_at_once_is_kept_once(tiny: Path) -> None:
    core = core_of(tiny)
    answers = Answers(core)
    numbers = [answers.add(greedy(prompt_of(100))) for _ in range(3)]
    answers.run()
    assert answers.tokens[numbers[0]] == answers.tokens[numbers[1]] == answers.tokens[numbers[2]]
    assert core.cache.tree.cached_pages == 96 // BLOCK
    assert core.cache.counts.rewritten_pages > 0


def test_salts_share_nothing(tiny: Path) -> None:
    answers = Answers(core_of(tiny))
    answers.ask(greedy(prompt_of(70)))
    answers.ask(greedy(prompt_of(70), salt="a"))
    assert answers.last[2].reuse.tokens == 0


def test_an_end_token_ends_the_answer(tiny: Path) -> None:
    answers = Answers(core_of(tiny))
    whole = answers.ask(greedy(prompt_of(40), 20))
    end = whole[7]
    ended = answers.ask(greedy(prompt_of(40), 20, end_ids=frozenset([end])))
    assert ended == whole[: whole.index(end) + 1]
    assert [step.finish for step in answers.last.values()] == ["length", "stop"]


def test_the_context_ends_the_answer(tmp_path: Path) -> None:
    from tests.engine.tiny import write_model

    short = write_model(tmp_path / "short", max_position_embeddings=64)
    answers = Answers(core_of(short))
    assert len(answers.ask(greedy(prompt_of(60), 100))) == 4
    assert answers.last[1].finish == "length"


def test_a_seed_gives_the_same_answer_whoever_else_is_served(tiny: Path) -> None:
    def drawn(seed: int | None) -> Request:
        return Request(prompt=prompt_of(30), max_tokens=12, temperature=1.5, seed=seed)

    answers = Answers(core_of(tiny))
    first = answers.ask(drawn(3))
    numbers = [answers.add(drawn(seed)) for seed in (1, 3, 2)]
    answers.run()
    again = [answers.tokens[number] for number in numbers]
    assert again[1] == first and again[0] != first != again[2]
    assert answers.ask(drawn(None)) != answers.ask(drawn(None))


def test_preemption_changes_no_token(tiny: Path) -> None:
    requests = [
        Request(prompt=prompt_of(40, seed=i), max_tokens=60, temperature=1.0, seed=i)
        for i in range(5)
    ]
    core = core_of(tiny, pages=20, reserve_percent=0)
    answers = Answers(core)
    numbers = [answers.add(request) for request in requests]
    answers.run()
    assert core.cache.counts.preempted > 0
    assert [answers.tokens[number] for number in numbers] == alone(tiny, requests)
    assert core.cache.allocator.free_pages + core.cache.tree.cached_pages == 20


def test_who_has_no_page_waits_when_nobody_can_give_one(tiny: Path) -> None:
    """Both answers' pages are being sent: they are taken from neither."""
    core = core_of(tiny, pages=4, reserve_percent=0)
    answers = Answers(core)
    requests = [greedy(prompt_of(20, seed=i), 40) for i in range(2)]
    numbers = [answers.add(request) for request in requests]
    answers.step()
    first, second = jobs = list(core.scheduler.running)
    for job in jobs:
        job.handing = Handing(job, Wish(f"t{job.number}"), 0)
        job.handing.begun = True
    for _ in range(40):
        answers.step()
    assert [len(job.sequence) for job in jobs] == [33, 33] and core.step(0.0)
    first.handing = second.handing = None
    answers.run()
    assert [answers.tokens[number] for number in numbers] == alone(tiny, requests)


def test_out_of_pages_waits_and_then_is_served(tiny: Path) -> None:
    core = core_of(tiny, pages=6, reserve_percent=100)
    answers = Answers(core)
    numbers = [answers.add(greedy(prompt_of(60, seed=i), 8)) for i in range(3)]
    answers.step()
    assert core.figures()["running"] == 1 and core.figures()["waiting"] == 2
    answers.run()
    assert all(answers.last[number].finish == "length" for number in numbers)


def test_out_of_pages_for_too_long_is_refused(tiny: Path) -> None:
    answers = Answers(core_of(tiny, pages=6, reserve_percent=100, queue_ms=2000))
    first = answers.add(greedy(prompt_of(60), 20))
    late = answers.add(greedy(prompt_of(60, seed=1), 20))
    answers.step()
    answers.now = 2.5
    answers.run()
    assert answers.last[first].finish == "length"
    refused = answers.last[late]
    assert refused.finish == "busy" and isinstance(refused.error, EngineBusy)
    assert refused.error.retryable and refused.error.retry_after_s >= 1.0
    assert "no pages for 60 tokens within 2.5 s" in str(refused.error)


def test_a_full_queue_refuses(tiny: Path) -> None:
    answers = Answers(core_of(tiny, queue_max=2))
    answers.add(greedy(prompt_of(5)))
    answers.add(greedy(prompt_of(5)))
    with pytest.raises(EngineBusy, match="2 requests are waiting"):
        answers.add(greedy(prompt_of(5)))
    answers.run()
    answers.ask(greedy(prompt_of(5)))


@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_abort_frees_its_pages(tiny: Path, steps: int) -> None:
    core = core_of(tiny)
    answers = Answers(core)
    number = answers.add(greedy(prompt_of(100), 50))
    for _ in range(steps):
        answers.step()
    core.abort(number)
    core.abort(number)
    answers.step()
    assert answers.last[number].finish == "abort" and core.is_idle
    assert core.cache.allocator.free_pages + core.cache.tree.cached_pages == 200
    core.abort(999)


def test_a_short_prompt_does_not_wait_for_a_long_one(tiny: Path) -> None:
    answers = Answers(core_of(tiny))
    long = answers.add(greedy(prompt_of(1000)))
    answers.step()
    short = answers.add(greedy(prompt_of(20, seed=1), 1))
    while short not in answers.last:
        answers.step()
    assert long not in answers.last
    assert answers.core.figures()["computed_tokens"] < 1000 / 2


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (greedy([]), "at least one token"),
        (greedy([5], 0), "max_tokens is at least 1"),
        (greedy([5, 320]), "token 320 is none of this model's 320"),
        (greedy([-1]), "token -1"),
        (greedy([5] * 2048), "takes 2048 for prompt and answer"),
        (greedy([5] * 320), "has pages for 320"),
        (Request(prompt=[5], top_p=2.0), "top_p"),
    ],
)
def test_what_can_never_be_served(tiny: Path, request_: Request, says: str) -> None:
    core = core_of(tiny, pages=20)
    with pytest.raises(BadInput, match=says):
        core.add(request_, 0.0)
    assert core.is_idle
