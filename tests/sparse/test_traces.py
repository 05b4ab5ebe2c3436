"""Traces of choices: kept whole, and summed up as a plain count says."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from moonpool.core.errors import BadInput, BadModel, SegmentDamaged
from moonpool.sparse.decoder.conversation import record
from moonpool.sparse.decoder.weights import load
from moonpool.sparse.traces import (
    TopKTrace,
    hint_recall,
    load_trace,
    miss_ratio,
    packaged_trace,
    save_trace,
    step_overlap,
    summed_up,
    touched_share,
)
from tests.sparse.small_decoder import STEPS, TOKENS, TOP_K, spoken


def random_trace(seed: int, tokens: int = 70_000) -> TopKTrace:
    random = np.random.default_rng(seed)
    chosen = np.stack(
        [
            np.stack([np.sort(random.choice(60, 8, replace=False)) for _ in range(2)])
            for _ in range(12)
        ]
    ).astype(np.uint32)
    chosen[-1, 0, -1] = tokens - 1
    return TopKTrace(tokens, chosen, random.integers(0, 60, (2, 20)).astype(np.uint32))


def test_a_trace_keeps_what_was_chosen(tmp_path: Path) -> None:
    trace = random_trace(1)
    save_trace(tmp_path / "t.npz", trace)
    again = load_trace(tmp_path / "t.npz")
    assert again.tokens == trace.tokens
    assert np.array_equal(again.chosen, trace.chosen) and np.array_equal(again.hint, trace.hint)
    (tmp_path / "other").write_bytes(b"nothing")
    with pytest.raises(SegmentDamaged, match="no trace of choices"):
        load_trace(tmp_path / "other")
    save_trace(tmp_path / "t.npz", trace._replace(tokens=10))
    with pytest.raises(SegmentDamaged, match="outside its prefix of 10"):
        load_trace(tmp_path / "t.npz")


@pytest.mark.parametrize("rows", [8, 16, 24, 60])
def test_misses_are_those_of_a_plain_lru(rows: int) -> None:
    trace = random_trace(2, tokens=100)
    asked = missed = 0
    for layer in range(2):
        held: OrderedDict[int, None] = OrderedDict((p, None) for p in trace.chosen[0, layer])
        for step in trace.chosen[1:, layer].tolist():
            gone = [p for p in step if p not in held]
            asked, missed = asked + len(step), missed + len(gone)
            for p in [p for p in step if p in held] + gone:  # hits are used before room is made
                held[p] = None
                held.move_to_end(p)
            while len(held) > rows:
                held.popitem(last=False)
    assert miss_ratio(trace, rows) == missed / asked
    with pytest.raises(BadInput, match="smaller than a step of 8"):
        miss_ratio(trace, 7)


def test_overlap_touched_and_hint_are_counted() -> None:
    chosen = np.array([[[0, 1, 2, 3]], [[0, 1, 8, 9]], [[0, 1, 8, 9]]], np.uint32)
    trace = TopKTrace(12, chosen, np.array([[0, 3, 11, 2]], np.uint32))
    assert step_overlap(trace) == 0.75
    assert touched_share(trace) == 0.5
    assert (hint_recall(trace, 2), hint_recall(trace, 4)) == (0.5, 0.75)


def test_a_decoders_choices_are_recorded() -> None:
    said = spoken()
    trace, followed = record(said.weights, said.talk, TOP_K)
    assert trace.chosen.shape == (STEPS, said.weights.shape.layers, TOP_K)
    assert trace.tokens == TOKENS and trace.hint.shape == (3, 4 * TOP_K)
    assert np.array_equal(followed.logits, said.answer(said.local))
    again, _ = record(said.weights, said.talk, TOP_K)
    assert np.array_equal(again.chosen, trace.chosen)


@pytest.mark.parametrize(
    ("name", "overlap", "miss"),
    [("recall", 0.024, 0.976), ("smollm2-quest", 0.685, 0.315), ("smollm2-oracle", 0.584, 0.416)],
)
def test_the_traces_that_come_along(name: str, overlap: float, miss: float) -> None:
    """With the figures of docs/sparse.md."""
    summary = summed_up(packaged_trace(name))
    assert round(summary.overlap, 3) == overlap and round(summary.miss[0], 3) == miss
    assert summary.steps >= 32
    assert 0 < summary.overlap <= 1 and 0 < summary.touched < 1
    assert list(summary.miss) == sorted(summary.miss, reverse=True)


@pytest.mark.parametrize("kind", ["cut short", "hit"])
def test_whatever_damage_does_to_a_trace_it_is_said_to_be_damaged(
    tmp_path: Path, kind: str
) -> None:
    """Or that it is a trace: not every byte of a file matters."""
    chosen = np.tile(np.arange(0, 400, 4, dtype=np.uint32), (6, 2, 1))
    save_trace(tmp_path / "t.npz", TopKTrace(500, chosen, np.zeros((2, 0), np.uint32)))
    raw = (tmp_path / "t.npz").read_bytes()
    refused = 0
    for at in range(0, len(raw), 2):
        hit = bytearray(raw[:at] if kind == "cut short" else raw)
        if kind == "hit":
            hit[at] ^= 0x55
        (tmp_path / "d.npz").write_bytes(hit)
        try:
            load_trace(tmp_path / "d.npz")
        except SegmentDamaged:
            refused += 1
    assert refused > len(raw) // 4


def test_whatever_damage_does_to_weights_there_are_none(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "w.npz", shape=np.zeros(40, np.uint8), a=np.zeros(200))
    raw = (tmp_path / "w.npz").read_bytes()
    for at in range(0, len(raw), 2):
        for hit in (raw[:at], raw[:at] + bytes([raw[at] ^ 0x55]) + raw[at + 1 :]):
            (tmp_path / "d.npz").write_bytes(hit)
            with pytest.raises(BadModel):
                load(tmp_path / "d.npz")
