"""Indexers against brute force; ties and ends as promised; keys through a real prefix."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.core.errors import BadInput
from moonpool.sparse import SparseLayout, SparsePool
from moonpool.sparse.indexers import (
    DsaIndexer,
    DsaQuery,
    OracleIndexer,
    QuestIndexer,
    RecencyIndexer,
    choose,
    top_positions,
)
from moonpool.sparse.indexers.dsa import E4M3, to_e4m3

SIZE = 32


@given(
    scores=st.lists(st.integers(-3, 3), min_size=1, max_size=60),
    top_k=st.integers(1, 70),
)
def test_top_k_is_brute_force_with_ties_by_lower_position(scores: list[int], top_k: int) -> None:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    expected = sorted(order[:top_k])
    assert top_positions(np.array(scores, np.float32), top_k).tolist() == expected


def test_scores_that_mean_nothing_are_refused() -> None:
    with pytest.raises(BadInput):
        top_positions(np.zeros((2, 2)), 1)
    with pytest.raises(BadInput):
        top_positions(np.zeros(2), 0)
    with pytest.raises(BadInput, match="not a number"):
        top_positions(np.array([1, np.nan]), 1)


@settings(max_examples=40, deadline=None)
@given(tokens=st.integers(1, 200), seed=st.integers(0, 99))
def test_dsa_scores_are_the_published_formula(tokens: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    indexer = DsaIndexer(SIZE)
    index = indexer.encode(random.normal(size=(tokens, SIZE)) * 10)
    keys = indexer.decode(index, tokens)
    query = DsaQuery(
        random.normal(size=(4, SIZE)).astype(np.float32), random.random(4).astype(np.float32)
    )
    expected = [
        sum(float(w) * max(0.0, float(q @ key)) for q, w in zip(*query, strict=True))
        for key in keys
    ]
    assert np.allclose(indexer.scores(query, index, tokens), expected, rtol=1e-4, atol=1e-3)


def test_e4m3_rounds_to_the_nearest_code() -> None:
    finite = E4M3[~np.isnan(E4M3)]
    assert (finite.max(), finite.min()) == (448, -448)
    assert np.array_equal(E4M3[to_e4m3(finite)], finite)
    values = np.random.default_rng(0).normal(size=3000).astype(np.float32) * 100
    nearest = np.abs(finite[None, :] - values.clip(-448, 448)[:, None]).min(axis=1)
    assert np.allclose(np.abs(E4M3[to_e4m3(values)] - values.clip(-448, 448)), nearest)


@settings(max_examples=40, deadline=None)
@given(tokens=st.integers(1, 300), seed=st.integers(0, 99))
def test_quest_never_scores_a_page_below_its_best_token(tokens: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    keys = random.normal(size=(tokens, SIZE)).astype(np.float32)
    query = random.normal(size=SIZE).astype(np.float32)
    indexer = QuestIndexer(SIZE)
    scores = indexer.scores(query, indexer.encode(keys), tokens)
    assert len(scores) == tokens
    assert np.all(scores >= keys @ query - 1e-3)
    for page in range(0, tokens, 64):
        assert len(set(scores[page : page + 64].tolist())) == 1


def test_the_oracle_is_exact_and_recency_is_newest_and_first() -> None:
    random = np.random.default_rng(5)
    keys = random.normal(size=(150, SIZE)).astype(np.float32)
    heads = random.normal(size=(3, SIZE)).astype(np.float32)
    oracle = OracleIndexer(SIZE)
    expected = np.sort(np.argsort(-(keys @ heads.T).max(axis=1), kind="stable")[:20])
    assert choose(oracle, heads, oracle.encode(keys), 150, 20).tolist() == expected.tolist()
    chosen = choose(RecencyIndexer(sinks=2), None, np.zeros(0, np.uint8), 100, 5)
    assert chosen.tolist() == [0, 1, 97, 98, 99]


@pytest.mark.parametrize("kind", ["dsa", "quest", "oracle"])
def test_keys_travel_through_a_prefix(tmp_path: Path, kind: str) -> None:
    """What an indexer chooses from keys that were stored is what it chooses from its own."""
    indexer: Any = {
        "dsa": DsaIndexer(SIZE),
        "quest": QuestIndexer(SIZE),
        "oracle": OracleIndexer(SIZE),
    }[kind]
    random = np.random.default_rng(1)
    keys = random.normal(size=(300, SIZE)).astype(np.float32)
    heads = random.normal(size=(4, SIZE)).astype(np.float32)
    query = DsaQuery(heads, np.ones(4, np.float32)) if kind == "dsa" else heads
    index = indexer.encode(keys)
    layout = SparseLayout(1, 16, indexer.index_bytes)
    with SparsePool.create(tmp_path / "pool", layout, 300) as pool:
        with pool.writer("p", 300) as writer:
            writer.put(0, 0, np.zeros((300, 16), np.uint8), index)
            writer.seal(300)
        with pool.reader("p") as reader:
            ((_, stored),) = reader.load_index()
            chosen = choose(indexer, query, stored, 300, 40)
            assert chosen.tolist() == choose(indexer, query, index, 300, 40).tolist()
            assert choose(indexer, query, stored, 300, 999).tolist() == list(range(300))


def test_queries_and_keys_of_another_shape_are_refused() -> None:
    with pytest.raises(BadInput, match="no DSA query"):
        DsaIndexer(SIZE).scores(
            DsaQuery(np.ones((2, 8), np.float32), np.ones(2, np.float32)),
            np.zeros(64 * 36, np.uint8),
            64,
        )
    for indexer in (QuestIndexer(SIZE), OracleIndexer(SIZE)):
        with pytest.raises(BadInput, match="does not fit keys"):
            indexer.scores(np.ones(8), np.zeros(0, np.uint8), 1)
        with pytest.raises(BadInput, match="pages of"):
            indexer.scores(np.ones(SIZE), np.zeros(5, np.uint8), 64)
    with pytest.raises(BadInput, match="no whole number"):
        QuestIndexer(10)
