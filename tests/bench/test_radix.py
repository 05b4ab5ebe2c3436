"""The bench of the prefix tree runs, here small; and the reference tree finds what ours does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from moonpool.bench import Settings, radix
from moonpool.bench.radix_reference import NAME, ReferenceTree
from moonpool.cache import RadixCache


def test_rows_of_both_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radix, "CACHED_TOKENS", 8 * 256)
    monkeypatch.setattr(radix, "PROMPT_TOKENS", (256,))
    monkeypatch.setattr(radix, "EVICTING_PROMPTS", (16,))
    monkeypatch.setattr(radix, "EVICTIONS", {"moonpool": 4, NAME: 2})
    rows = list(radix.rows(Settings(rounds=1)))
    assert {row["case"] for row in rows} == {
        "insert 256 tokens, the first half cached",
        "match 256 tokens, all cached",
        "match 256 tokens, the first half cached",
        "evict one page, 16 prompts",
    }
    assert [row["subject"] for row in rows] == [
        *["moonpool"] * 3,
        *[NAME] * 3,
        "moonpool",
        NAME,
    ]
    assert all(("reference_ratio" in row) == (row["subject"] == "moonpool") for row in rows)


def test_the_reference_finds_what_ours_does() -> None:
    draw = np.random.default_rng(1)
    ours, reference = RadixCache(2), ReferenceTree(2)
    for step in range(300):
        tokens = draw.integers(0, 2, 2 * int(draw.integers(1, 6)), np.int32)
        theirs = torch.from_numpy(tokens)
        with ours.match(tokens, keep=0) as lease:
            assert lease.tokens == len(reference.match(theirs))
        pages = np.arange(len(tokens) // 2, dtype=np.int32) + 10 * step
        insertion = ours.insert(tokens, pages)
        assert 2 * insertion.known == reference.insert(theirs, theirs)
        if step % 50 == 49:
            insertion.lease.release()
            del insertion
            assert len(reference.evict(10**6)) == 2 * len(ours.evict(10**6))
