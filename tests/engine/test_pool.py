"""Engines over pools: what is loaded and stored when, and whose pages are whose meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import moonpool
from moonpool.core.sections import MasterConfig
from moonpool.engine.request import Reuse
from moonpool.pool.cluster import Cluster
from tests.engine.sides import Side, looked_up, node_of, same
from tests.engine.steps import greedy, prompt_of


def test_what_a_pool_lost_is_stored_again(sides: Callable[..., Side], pool: moonpool.Pool) -> None:
    writer, reader = sides(pool), sides(pool)
    writer.ask(prompt_of(100))
    writer.settle()
    assert pool.remove_prefix("mp1/") == 6
    assert writer.ask(prompt_of(150)[:100] + prompt_of(60, 1))[2] == Reuse(local_tokens=96)
    writer.settle()
    assert reader.ask(prompt_of(100))[2] == Reuse(pool_tokens=96)


def test_the_same_prompt_twice_at_once(sides: Callable[..., Side], pool: moonpool.Pool) -> None:
    writer, reader = sides(pool), sides(pool)
    want = sides().ask(prompt_of(100))[0]
    numbers = [writer.answers.add(greedy(prompt_of(100), 4)) for _ in range(3)]
    writer.answers.run()
    writer.settle()
    assert [writer.answers.tokens[number] for number in numbers] == [want] * 3
    got = reader.ask(prompt_of(100))
    assert got[0] == want and got[2] == Reuse(pool_tokens=96)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_abort_while_blocks_are_on_their_way(
    sides: Callable[..., Side], pool: moonpool.Pool, steps: int
) -> None:
    writer, reader = sides(pool), sides(pool)
    writer.ask(prompt_of(333))
    writer.settle()
    number = reader.answers.add(greedy(prompt_of(333), 4))
    for _ in range(steps):
        reader.answers.step()
    reader.core.abort(number)
    assert reader.answers.last[number].finish == "abort"
    reader.settle()
    reader.answers.run()
    cache = reader.core.cache
    assert cache.allocator.free_pages + cache.tree.cached_pages == 200
    assert cache.tree.protected_pages == 0


def test_pages_that_are_being_written_are_given_to_nobody(
    sides: Callable[..., Side], pool: moonpool.Pool
) -> None:
    """An aborted job keeps its pages until the engine has heard that its load left them."""
    writer, reader = sides(pool), sides(pool)
    writer.ask(prompt_of(100))
    writer.settle()
    number = looked_up(reader, prompt_of(100))
    core = reader.core
    core._hear()
    (job,) = core.scheduler.admit()
    core._begin(job)
    assert job.load is not None
    core.abort(number)
    assert core.cache.allocator.free_pages == 200 - 6
    reader.settle()
    assert core.cache.allocator.free_pages == 200 and core.is_idle


def test_preemption_with_a_pool(sides: Callable[..., Side], pool: moonpool.Pool) -> None:
    prompts = [prompt_of(100, seed) for seed in range(4)]
    want = [sides().ask(prompt)[0] for prompt in prompts]
    writer = sides(pool)
    for prompt in prompts:
        writer.ask(prompt)
    writer.settle()
    small = sides(pool, pages=17, reserve_percent=0)
    numbers = [small.answers.add(greedy(prompt, 40)) for prompt in prompts]
    small.answers.run()
    assert [small.answers.tokens[number][:4] for number in numbers] == want
    assert small.core.cache.counts.preempted > 0
    assert small.figure("pool_tokens") > 0


def test_a_far_pool_sends_whole_blocks(
    sides: Callable[..., Side], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONPOOL_CLIENT_SHARED_MEMORY", "false")
    want = sides().ask(prompt_of(200))
    with (
        Cluster(MasterConfig(port=0, nodes_expected=1), [node_of(tmp_path)]) as cluster,
        moonpool.connect(cluster.address) as far,
    ):
        writer, reader = sides(far), sides(far)
        writer.ask(prompt_of(200))
        writer.settle()
        got = reader.ask(prompt_of(200))
        assert got[2] == Reuse(pool_tokens=192) and same(got[1], want[1])
        writer.close()
        reader.close()


def test_a_load_that_is_not_worth_it_is_not_made(
    sides: Callable[..., Side], pool: moonpool.Pool
) -> None:
    writer, reader = sides(pool), sides(pool)
    writer.ask(prompt_of(100))
    writer.settle()
    assert reader.core.link is not None
    reader.core.link.cost.loaded(1, 100.0)
    reader.core.link.cost.computed(100, 0.001)
    assert reader.ask(prompt_of(100))[2] == Reuse()
    assert reader.figure("pool_not_worth") == 1 and reader.figure("pool_blocks_loaded") == 0
