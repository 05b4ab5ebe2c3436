"""`moonpool bench`: rows as lines or as a table."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool.bench import Row, Settings
from moonpool.bench.runner import make_row
from moonpool.cli import bench, main

ROWS = [
    make_row("store", "get 1 KiB", 3, {"p50_us": 1.5, "gb_per_s": 0.25, "ok": True}),
    make_row("store", "get 2 KiB", 3, {"ops_per_s": 123456.7, "ok": True}),
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Settings]]:
    calls: list[tuple[str, Settings]] = []

    def rows_of(what: str, settings: Settings) -> Iterator[Row]:
        calls.append((what, settings))
        yield from ROWS

    monkeypatch.setattr(bench, "rows_of", rows_of)
    return calls


def test_json_is_one_object_a_row(
    asked: list[tuple[str, Settings]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "store", "--full", "--rounds", "3", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS
    assert asked == [("store", Settings(rounds=3, full=True))]


def test_without_a_name_it_measures_everything(asked: list[tuple[str, Settings]]) -> None:
    assert main(["bench"]) == 0
    assert asked == [("all", Settings())]


def test_sigterm_ends_it_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does: what a bench has started is taken down."""
    ended: list[bool] = []

    def rows_of(what: str, settings: Settings) -> Iterator[Row]:
        try:
            signal.raise_signal(signal.SIGTERM)
            yield from ROWS
        finally:
            ended.append(True)

    monkeypatch.setattr(bench, "rows_of", rows_of)
    assert main(["bench", "store"]) == 130
    assert ended


def test_the_table_shows_case_and_figures(
    asked: list[tuple[str, Settings]], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["bench", "store"])
    out = capsys.readouterr().out
    assert "store: get 1 KiB" in out and "1.5" in out and "123,500" in out


def test_bytes_that_were_wrong_fail_the_bench(
    asked: list[tuple[str, Settings]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROWS[0], "ok", False)
    assert main(["bench", "store"]) == 1


def test_any_trace_is_routed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two conversations of two turns, before one worker with room for all of it."""
    lines = [
        {"timestamp": 1000 * i, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        for i, ids in enumerate([[1, 2], [3, 4], [1, 2, 5], [3, 4, 6]])
    ]
    file = tmp_path / "mini.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["--trace", str(file), "--workers", "1", "--blocks", "16", "--json"]
    assert main(["bench", "router", *words]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (row,) = [row for row in rows if row["bench"] == "router"]
    assert (row["case"], row["requests"]) == (f"{file}-1x16", 4)
    assert (row["token_hit_ratio"], row["work_imbalance"]) == (0.4, 1.0)


def test_an_unknown_bench_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "stor"]) == 2
    assert "Did you mean 'store'?" in capsys.readouterr().err
