"""What the sparse bench is judged by."""

from bench.sparse_targets import judge, table

from moonpool.bench.runner import Row

RESIDENT: Row = {"first_step_ratio": 24.0, "full_of_limit": 0.7, "batch1_step_ratio": 1.02}
ROWS: list[Row] = [
    {"bench": "sparse", "case": "16384-656-shm-resident", **RESIDENT},
    {"bench": "sparse", "case": "131072-656-shm-resident", **RESIDENT},
    {"bench": "sparse", "case": "131072-656-tcp-resident", **RESIDENT},
    {"bench": "sparse", "case": "131072-656-shm-fetched", "first_step_ratio": 4.9},
    {"bench": "sparse", "case": "131072-656-shm-pipelined", "first_step_ratio": 5.2},
    {
        "bench": "sparse",
        "case": "131072-656-shm-threads-2",
        "threads": 2,
        "first_step_ratio": 26.0,
        "first_step_ratio_fetched": 4.8,
    },
    {
        "bench": "sparse",
        "case": "131072-656-tcp-hint-smollm2-quest",
        "hint_gain": 1.1,
        "hint_gain_in_line": 0.9,
    },
    {
        "bench": "sparse",
        "case": "131072-656-shm-steady-4096",
        "buffer_rows": 4096,
        "top_k": 2048,
        "steady_ratio": 0.4,
    },
    {
        "bench": "sparse",
        "case": "131072-656-shm-steady-2048",
        "buffer_rows": 2048,
        "top_k": 2048,
        "steady_ratio": 3.0,
    },
    {
        "bench": "sparse",
        "case": "131072-656-shm-recorded-4096-smollm2-quest",
        "trace": "smollm2-quest",
        "buffer_rows": 4096,
        "top_k": 2048,
        "steady_ratio": 1.4,
    },
    {
        "bench": "sparse",
        "case": "131072-656-shm-recorded-8192-smollm2-quest",
        "trace": "smollm2-quest",
        "buffer_rows": 8192,
        "top_k": 2048,
        "steady_ratio": 0.1,
    },
]


def test_only_the_longest_prefix_is_judged_each_figure_by_its_own_target() -> None:
    judged = judge(ROWS)
    assert [(one.transport, one.figure, one.reached) for one in judged] == [
        ("shm", "first_step_ratio", True),
        ("shm", "full_of_limit", False),
        ("shm", "batch1_step_ratio", None),
        ("tcp", "first_step_ratio", False),  # 25 are wanted there
        ("tcp", "full_of_limit", False),
        ("tcp", "batch1_step_ratio", None),
        ("shm", "first_step_ratio, keys fetched", False),
        ("shm", "first_step_ratio, keys a layer ahead", True),
        ("shm", "first_step_ratio, 2 threads each", True),
        ("shm", "first_step_ratio_fetched, 2 threads each", False),
        ("tcp", "hint_gain, smollm2-quest", None),
        ("tcp", "hint_gain_in_line, smollm2-quest", None),
        ("shm", "steady_ratio, 4096 rows", True),
        ("shm", "steady_ratio, 4096 rows of smollm2-quest", False),
    ]
    assert judge([]) == []


def test_the_table_shows_what_was_missed() -> None:
    lines = table(judge(ROWS)).splitlines()
    assert "at least 20" in lines[2] and lines[2].split("|")[-2].strip() == "yes"
    assert lines[3].split("|")[-2].strip() == "**no**"
    assert "at most 1.3" in lines[-1]
