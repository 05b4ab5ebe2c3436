"""Passes beside each other: who waits for whom, and what rests on a pass that fails."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from moonpool.engine.model.lanes import Ahead, Lanes, PassFailed
from moonpool.engine.passes import Pass
from tests.engine.sides import Side
from tests.engine.steps import CHUNK, greedy, prompt_of

WAIT_S = 30.0


def test_each_lane_computes_by_itself() -> None:
    before = torch.get_num_threads()
    lanes = Lanes(2)
    met = threading.Barrier(2)

    def threads() -> int:
        met.wait(WAIT_S)
        return int(torch.get_num_threads())

    assert lanes.run([threads, threads]) == [1, 1]
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert torch.get_num_threads() == before and later == [before]
    lanes.close()


def test_more_passes_than_lanes_end_all_the_same() -> None:
    lanes = Lanes(2)
    ahead = [Ahead() for _ in range(7)]

    def compute(number: int) -> int:
        for layer in range(5):
            if number:
                ahead[number - 1].wait_layer(layer)
            ahead[number].layer_done(layer)
        ahead[number].end()
        return number

    assert lanes.run([lambda n=n: compute(n) for n in range(7)]) == list(range(7))  # type: ignore[misc]
    lanes.close()


class Broken:
    """A watch of a pass that fails at its second layer."""

    def before(self, layer: int) -> None:
        if layer == 1:
            raise KeyError("broken")

    def after(self, layer: int) -> None:
        pass


def test_what_rests_on_a_failed_pass_fails(sides: Callable[..., Side]) -> None:
    runner = sides(threads=2).core.runner
    table, prompt = np.arange(4, dtype=np.int32), prompt_of(2 * CHUNK)
    first = Pass(prompt[:CHUNK], runner.span(table, 0, CHUNK), Broken(), last=False)
    second = Pass(prompt[CHUNK:], runner.span(table, CHUNK, 2 * CHUNK), None, last=True, follows=0)
    broken, rests = runner.prefill_beside([first, second])
    assert isinstance(broken, KeyError) and isinstance(rests, PassFailed)


@pytest.mark.parametrize(("threads", "alone"), [(1, 1), (2, 4), (4, 8)])
def test_a_step_takes_a_chunk_a_lane_and_two_for_one_who_is_alone(
    sides: Callable[..., Side], threads: int, alone: int
) -> None:
    side = sides(threads=threads)
    side.answers.add(greedy(prompt_of(12 * CHUNK)))
    side.answers.step()
    assert side.figure("computed_tokens") == alone * CHUNK
    side.answers.add(greedy(prompt_of(12 * CHUNK, seed=1)))
    side.answers.step()
    assert side.figure("computed_tokens") == (alone + threads) * CHUNK


def test_prompts_beside_each_other_in_lanes_get_what_they_get_alone(
    sides: Callable[..., Side],
) -> None:
    """Also the same prompt twice: one of them ends on the other's pages."""
    prompts = [prompt_of(100 + 40 * seed, seed) for seed in range(3)]
    want = [sides(threads=2).ask(prompt)[0] for prompt in prompts]
    side = sides(threads=2)
    numbers = [side.answers.add(greedy(prompt, 4)) for prompt in [*prompts, *prompts]]
    side.answers.run()
    assert [side.answers.tokens[number] for number in numbers] == [*want, *want]
