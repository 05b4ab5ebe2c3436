"""Pictures of the sparse bench: the figures they show are those of the rows."""

from pathlib import Path

import pytest
from bench.sparse_charts import buffers, first_steps, points, what_ifs, write_all

from moonpool.bench.runner import Row

ROWS: list[Row] = [
    {"bench": "sparse", "case": f"{tokens}-{size}-{transport}-{kind}", "layers": 10, **figures}
    for tokens, ratio in ((16384, 4.0), (131072, 30.0))
    for size in (656, 1152)
    for transport in ("shm", "tcp")
    for kind, figures in (
        ("resident", {"first_step_ratio": ratio + size, "step_s": 0.02}),
        ("fetched", {"first_step_ratio": 5.0}),
        ("steady-4096", {"buffer_rows": 4096, "step_s": 0.008}),
        ("steady-2048", {"buffer_rows": 2048, "step_s": 0.012}),
    )
]
MODEL: list[Row] = [
    {
        "bench": "sparse-model",
        "case": "what-if-nic-400",
        "throughput_ratio": 1.5,
        "ttft_ratio": 4.4,
        "tbt_ratio": 1.3,
    }
]


def test_bars_are_the_rows_figures() -> None:
    found = points([*ROWS, {"bench": "store", "case": "a-b-c-d"}])
    bars = first_steps(found, "resident")
    assert bars.places == ["16K", "128K"]
    assert bars.series["tcp, 1152 B"] == [1156.0, 1182.0]
    assert len(bars.series) == 4
    steady = buffers(found)
    assert steady.places == ["none", "2048", "4096"]
    assert steady.series["shm, 656 B"] == pytest.approx([2000, 1200, 800])  # us a layer
    assert what_ifs(MODEL).series == {"throughput": [1.5], "ttft": [4.4], "tbt": [1.3]}


def test_pictures_are_written_for_what_there_are_rows_of(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert write_all([], tmp_path) == []
    names = [path.name for path in write_all([*ROWS, *MODEL], tmp_path)]
    assert names == [
        "sparse-first-step-resident.png",
        "sparse-first-step-fetched.png",
        "sparse-buffer.png",
        "sparse-model.png",
    ]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)
