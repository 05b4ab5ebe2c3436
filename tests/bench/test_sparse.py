"""The sparse bench on a small prefix: every case, every row checked; no figure is judged."""

import numpy as np
import pytest

from moonpool.bench.runner import Settings, rows_of
from moonpool.bench.sparse_parts import Trace, is_stamped, stamped
from moonpool.bench.sparse_traces import WARM_STEPS, RecordedSteps
from moonpool.sparse import SparseLayout
from moonpool.sparse.model.observed import observations
from moonpool.sparse.traces import packaged_trace

COSTS = ("touch_ns", "private_touch_ns", "call_us", "position_ns")


def test_every_case_checks_its_rows() -> None:
    found = list(rows_of("sparse", Settings(rounds=1, tokens=4096, layers=2)))
    rows = {str(row["case"]): row for row in found[1:]}
    assert all(row["ok"] is True for row in rows.values())
    for size in (656, 1152):
        for transport in ("shm", "tcp"):
            resident = rows[f"4096-{size}-{transport}-resident"]
            assert resident["layers"] == 2
            assert resident["full_bytes"] == 2 * 4096 * size
            assert resident["step_bytes"] == 2 * 512 * size
            assert float(str(resident["first_step_ratio"])) > 0
            assert f"4096-{size}-{transport}-fetched" in rows
            assert float(str(resident["full_fastest_s"])) <= float(str(resident["full_s"]))
            beside = rows[f"4096-{size}-{transport}-pipelined"]
            assert beside["ceiling"] == pytest.approx(1 + size / 132, rel=1e-3)
            steady = rows[f"4096-{size}-{transport}-steady-1024"]
            assert steady["local_bytes"] == steady["local_bytes_formula"]
            assert f"4096-{size}-{transport}-recorded-128-recall" in rows
            assert rows[f"4096-{size}-shm-threads-2"]["threads"] == 2
            assert set(COSTS) <= set(rows[f"4096-{size}-machine-costs"])
            hint = rows[f"4096-{size}-{transport}-hint-recall"]
            assert 0 < float(str(hint["hint_recall"])) < 1
    # The model finds what was measured beside each time: five and more for each size and transport.
    assert len(observations(found[1:])) == 2 * 2 * 5
    trace = rows["trace"]
    assert trace["tokens"] == 1024 and trace["top_k"] == 16
    for transport in ("shm", "tcp"):
        moved = [
            float(str(rows[f"{transport}-buffer-{times}k"]["pool_bytes_a_token"]))
            for times in range(5)
        ]
        assert moved == sorted(moved, reverse=True)
        assert float(str(rows[f"{transport}-union-4"]["rows_ratio"])) > 1
        for case in ("hint", "keys-ahead"):
            assert f"{transport}-{case}" in rows


def test_the_trace_misses_what_was_published() -> None:
    trace = Trace(layers=1, tokens=65536, top_k=2048)
    held = [2048, 4096, 8192]
    missed = np.zeros(3)
    for _ in range(20):
        before = trace.stacks[0].copy()
        wanted = trace.step()[0]
        assert len(np.unique(wanted)) == 2048
        for i, rows in enumerate(held):  # LRU holds what was used last
            missed[i] += np.count_nonzero(~np.isin(wanted, before[:rows])) / 2048 / 20
    assert np.allclose(missed, [0.30, 0.134, 0.067], atol=0.003)


def test_a_stamp_tells_rows_apart() -> None:
    layout = SparseLayout(2, 656)
    rows = stamped(layout, 1, [5, 6])
    assert is_stamped(layout, 1, [5, 6], rows)
    assert not is_stamped(layout, 0, [5, 6], rows)
    assert not is_stamped(layout, 1, [6, 5], rows)
    rows[1, 300] ^= 1
    assert not is_stamped(layout, 1, [5, 6], rows)


def test_recorded_steps_come_back_as_they_were_recorded() -> None:
    """A traced position is four rows here; as many come back, in a buffer of one step's rows."""
    trace = packaged_trace("recall")
    steps = RecordedSteps(trace, layers=5, tokens=4 * trace.tokens + 5, top_k=4 * trace.top_k + 3)
    assert steps.fits and steps.top_k == 4 * trace.top_k
    assert len(steps.recent(10**6)[0]) == 4 * len(np.unique(trace.chosen[:WARM_STEPS, 0]))
    held, asked = steps.recent(steps.top_k), steps.step()
    for layer in range(4):
        last, now = trace.chosen[WARM_STEPS - 1, layer], trace.chosen[WARM_STEPS, layer]
        assert len(np.unique(held[layer])) == len(np.unique(asked[layer])) == steps.top_k
        assert len(np.intersect1d(held[layer], asked[layer])) == 4 * len(np.intersect1d(last, now))
    # A layer more than was traced begins elsewhere in the trace.
    assert len(np.intersect1d(asked[0], asked[4])) < steps.top_k / 2
    assert not RecordedSteps(trace, 1, trace.tokens - 1, trace.top_k).fits
    assert not RecordedSteps(trace, 1, trace.tokens, trace.top_k - 1).fits
