"""Answers over chosen tokens: dense to the bit while all are chosen, the indexers' choice beyond,
and prompts as ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import moonpool
from moonpool.core.errors import BadConfig
from moonpool.engine import Engine
from moonpool.engine.model.attention.base import Span
from moonpool.engine.model.attention.sdpa import SdpaAttention
from moonpool.engine.model.attention.sparse import SCORERS, SparseDecoding
from moonpool.engine.request import Reuse
from tests.engine.sides import Side, same
from tests.engine.steps import BLOCK, CHUNK, config_of, greedy, prompt_of
from tests.engine.tiny import write_model

INDEXERS = sorted(SCORERS)
F32 = torch.float32


@pytest.mark.parametrize("indexer", INDEXERS)
@pytest.mark.parametrize("length", [CHUNK - 1, 60, 160])
def test_with_all_tokens_chosen_an_answer_is_dense_to_the_bit(
    sides: Callable[..., Side], indexer: str, length: int
) -> None:
    prompt = prompt_of(length)
    dense = sides().ask(prompt)
    sparse = sides(sparse=indexer, top_k=length + 4).ask(prompt)
    assert sparse[0] == dense[0] and same(sparse[1], dense[1])


@pytest.mark.parametrize("indexer", INDEXERS)
def test_with_fewer_it_is_not(sides: Callable[..., Side], indexer: str) -> None:
    """The first logits are the prompt's, computed densely; the next ones are approximate."""
    prompt = prompt_of(160)
    dense = sides().ask(prompt)
    sparse = sides(sparse=indexer, top_k=2 * BLOCK).ask(prompt)
    assert torch.equal(sparse[1][0], dense[1][0])
    assert not same(sparse[1], dense[1])


@pytest.mark.parametrize("indexer", INDEXERS)
def test_blocks_are_shared_with_dense_engines(
    sides: Callable[..., Side], pool: moonpool.Pool, indexer: str
) -> None:
    """Wherever a prompt's blocks came from, a sparse answer has the same bits; and a dense engine
    may read what a sparse one stored."""
    prompt = prompt_of(200)
    alone = sides(sparse=indexer, top_k=3 * BLOCK).ask(prompt)
    writer = sides(pool, sparse=indexer, top_k=3 * BLOCK)
    writer.ask(prompt)
    writer.settle()
    reader = sides(pool, sparse=indexer, top_k=3 * BLOCK).ask(prompt)
    assert reader[2] == Reuse(pool_tokens=6 * CHUNK)
    assert reader[0] == alone[0] and same(reader[1], alone[1])
    dense = sides(pool).ask(prompt)
    assert dense[2] == Reuse(pool_tokens=6 * CHUNK) and same(dense[1], sides().ask(prompt)[1])


@pytest.mark.parametrize("indexer", INDEXERS)
def test_who_else_is_served_and_what_was_in_the_pages_changes_nothing(
    sides: Callable[..., Side], indexer: str
) -> None:
    """Few pages, so that later prompts and answers lie where earlier ones were, whose bounds were
    known; answers of several pages, which become full one after the other."""
    prompts = [prompt_of(100 + 7 * n, n) for n in range(6)]
    busy = sides(pages=16, sparse=indexer, top_k=2 * BLOCK)
    for prompt in prompts:
        alone = sides(sparse=indexer, top_k=2 * BLOCK).answers.ask(greedy(prompt, 60))
        assert busy.answers.ask(greedy(prompt, 60)) == alone
    assert busy.figure("evicted_pages") > 0


class World:
    """Pages of one layer with a sequence of `tokens` tokens in them, and what attends to it."""

    size, kv_heads, heads, dim = 16, 2, 4, 32

    def __init__(self, indexer: str, top_k: int, tokens: int = 100) -> None:
        random = torch.Generator().manual_seed(tokens)
        shape = (16, 1, 2, self.size, self.kv_heads, self.dim)
        self.storage = torch.randn(shape, generator=random).half().float()
        self.q = torch.randn((1, self.heads, self.dim), generator=random).half().float()
        self.new = torch.randn((1, self.kv_heads, self.dim), generator=random).half().float()
        order = torch.randperm(16, generator=random)
        self.span = Span(order[: -(-tokens // self.size)], tokens - 1, tokens)
        self.sparse = SparseDecoding(self.storage, F32, indexer, top_k)
        self.chosen: list[np.ndarray[tuple[int, ...], np.dtype[np.uint32]]] = []
        self.sparse.on_choice = lambda layer, positions: self.chosen.append(positions)

    def keys(self, head: int) -> torch.Tensor:
        return self.storage[self.span.pages, 0, 0].flatten(0, 1)[: self.span.end, head]

    def step(self) -> torch.Tensor:
        return self.sparse.plan([self.span], 1)(0, self.q, self.new, self.new)

    def group(self, head: int) -> torch.Tensor:
        size = self.heads // self.kv_heads
        return self.q[0, head * size : (head + 1) * size]


def test_quest_takes_the_pages_with_the_best_bounds() -> None:
    world = World("quest", 48)
    world.step()
    for head in range(world.kv_heads):
        pages = world.keys(head)[:96].view(6, world.size, world.dim)
        low, high = pages.amin(dim=1), pages.amax(dim=1)
        ends = torch.maximum(world.group(head)[:, None] * low, world.group(head)[:, None] * high)
        order = ends.sum(dim=2).amax(dim=0).argsort(descending=True).tolist()
        # 4 tokens are in the newest page: two whole pages and 12 tokens of a third.
        want = {t for page in order[:2] for t in range(page * 16, page * 16 + 16)}
        want |= set(range(order[2] * 16, order[2] * 16 + 12)) | set(range(96, 100))
        assert set(world.chosen[0][head].tolist()) == want


def test_oracle_takes_the_largest_products() -> None:
    world = World("oracle", 48)
    world.step()
    for head in range(world.kv_heads):
        best = (world.keys(head)[:96] @ world.group(head).T).amax(dim=1)
        want = {*best.argsort(descending=True)[:44].tolist(), *range(96, 100)}
        assert set(world.chosen[0][head].tolist()) == want


def test_recency_takes_sinks_and_the_newest() -> None:
    world = World("recency", 48)
    world.step()
    assert world.chosen[0][0].tolist() == [*range(4), *range(56, 100)]


@pytest.mark.parametrize("indexer", INDEXERS)
def test_only_what_was_chosen_is_attended_to(indexer: str) -> None:
    """What was not chosen may be anything; an answer is dense attention over the chosen."""
    world = World(indexer, 48)
    got = world.step()
    left = np.setdiff1d(np.arange(100), world.chosen[0].reshape(-1))
    for token in left.tolist():
        world.storage[world.span.pages[token // 16], 0, 1, token % 16] = torch.nan
    assert torch.equal(world.step(), got)
    alone = []
    for head in range(world.kv_heads):
        at = torch.from_numpy(world.chosen[0][head].astype(np.int64))
        values = world.storage[world.span.pages, 0, 1].flatten(0, 1)[:100, head][at]
        scores = world.group(head) @ world.keys(head)[at].T / world.dim**0.5
        alone.append(torch.softmax(scores, dim=-1) @ values)
    assert torch.allclose(got.view(world.heads, world.dim), torch.cat(alone), atol=1e-5)


def test_a_page_that_was_computed_anew_is_looked_at_anew() -> None:
    world = World("quest", 32)
    world.step()
    prompts = world.sparse.prefill(SdpaAttention(world.storage, world.heads, F32))
    best = world.chosen[0][0][0] // 16  # the page that head 0 liked best
    others = Span(world.span.pages[best : best + 1], 0, 16)
    nothing = torch.zeros((16, world.kv_heads, world.dim))
    prompts.plan([others], 16)(0, torch.zeros((16, world.heads, world.dim)), nothing, nothing)
    world.step()
    fresh = SparseDecoding(world.storage, F32, "quest", 32)
    fresh.on_choice = world.sparse.on_choice
    fresh.plan([world.span], 1)(0, world.q, world.new, world.new)
    assert np.array_equal(world.chosen[1], world.chosen[2])
    assert not np.array_equal(world.chosen[0], world.chosen[1])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sparse": "quest"}, "engine.top_k = 0 is less than a page"),
        ({"sparse": "quest", "top_k": BLOCK - 1}, "the newest page is always attended to"),
        ({"top_k": 64}, "engine.top_k = 64 needs engine.sparse"),
        ({"sparse": "oracle", "top_k": 64, "device": "cuda"}, "works on the CPU"),
        ({"sparse": "quest", "top_k": 96, "block_size": 96, "chunk_tokens": 96}, "does not fit"),
    ],
    ids=["no-k", "small-k", "no-indexer", "cuda", "pages"],
)
def test_what_cannot_be_is_said(tiny: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadConfig, match=says):
        Engine.load(tiny, config_of(**changes))


def test_an_engine_says_how_it_answers(tiny: Path) -> None:
    with Engine.load(tiny, config_of(sparse="quest", top_k=64)) as engine:
        assert engine.attention.startswith("quest, 64 tokens a step; prompts sdpa")


@pytest.fixture(scope="module")
def float32(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield write_model(tmp_path_factory.mktemp("models") / "wide", dtype="float32")


def test_another_type_is_dense_to_the_bit_too(float32: Path) -> None:
    one, other = Side(float32), Side(float32, sparse="quest", top_k=500)
    assert same(one.ask(prompt_of(150))[1], other.ask(prompt_of(150))[1])
    one.close()
    other.close()
