"""The bench of scale with few objects: its nodes hold what the master says, and are heard again."""

from __future__ import annotations

import numpy as np
import pytest

from moonpool.bench import Settings, scale
from moonpool.bench.scale_nodes import KEY_BYTES, keys_of
from moonpool.bench.scale_pool import ScalePool
from moonpool.pool import messages as m
from moonpool.pool.columns import unpack_keys


def test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "OBJECTS", (6_000,))
    monkeypatch.setattr(scale, "NODES", (1, 7))
    rows = list(scale.rows(Settings(rounds=1)))
    assert [row["nodes"] for row in rows] == [1, 7]
    assert all(row["ok"] for row in rows)
    assert all(float(str(row["evict_us_per_victim"])) > 0 for row in rows)


def test_keys_are_the_numbers_own() -> None:
    keys = unpack_keys(keys_of(np.arange(5000, dtype=np.int64)))
    assert len(set(keys)) == 5000 and {len(key) for key in keys} == {KEY_BYTES}


def test_a_new_master_hears_what_was_put_and_not_what_was_evicted() -> None:
    pool = ScalePool(1000, 4)
    for start in range(1, 2001, 50):
        pool.put(np.arange(start, start + 50, dtype=np.int64))
    pool.heartbeats()
    asked = m.Exists(keys_of(np.arange(1, 2001, dtype=np.int64)))
    before = pool.ask(asked, m.Existence)[0].found
    pool.start(2)
    assert pool.ask(asked, m.Existence)[0].found == before
    assert 0 < sum(before) <= 1000
    assert sum(node.agent.usage()["sealed"] for node in pool.nodes) == sum(before)
