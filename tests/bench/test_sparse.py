"""The sparse bench on a small prefix: every case, every row checked; no figure is judged."""

import numpy as np

from moonpool.bench.runner import Settings, rows_of
from moonpool.bench.sparse_parts import Trace, is_stamped, stamped
from moonpool.sparse import SparseLayout


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
            steady = rows[f"4096-{size}-{transport}-steady-1024"]
            assert steady["local_bytes"] == steady["local_bytes_formula"]


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
