"""The bench of eviction policies says what the planner's replay finds."""

from __future__ import annotations

import pytest

from moonpool.bench import Settings, policies
from moonpool.planner.policy_replay import replay_policy
from moonpool.planner.traces import load
from moonpool.pool.eviction import POLICIES, policy_named


def test_a_row_for_each_policy_trace_and_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "REQUESTS_MAX", 100)
    monkeypatch.setattr(policies, "BLOCKS_FULL", (300,))
    rows = {row["case"]: row for row in policies.rows(Settings(full=True))}
    assert len(rows) == 2 * len(POLICIES) * 2
    requests = load("synthetic").head(100).requests
    expected = replay_policy(requests, policy_named("arc", 300), ends_only=True)
    row = rows["arc, synthetic, 300 blocks, ends of chains"]
    assert row["prefix_hit_blocks"] == expected.prefix_hit_blocks > 0
