"""The table and the picture of a run's rows."""

import json
from pathlib import Path

import pytest
from bench.rows import Row, name_of
from bench.transfer_chart import SHAPES, SUBJECTS, draw, figure_of, main, table


def row(subject: str, case: str, **figures: object) -> Row:
    names = {"bench": "transfer", "case": case, "subject": subject, "version": "1", "rounds": 1}
    return {**names, "ok": True, **figures}


def test_cases_are_those_that_the_subjects_print() -> None:
    _, ours, _, nixl, _, _, mooncake, _ = SUBJECTS
    assert ours.case(*SHAPES[1]) == "shm-read-32x4096"
    assert nixl.case(*SHAPES[1]) == "cma read 32 x 4 KiB"
    assert mooncake.case(*SHAPES[3]) == "tcp read 1 MiB"


def test_wrong_bytes_and_what_is_missing_are_a_dash() -> None:
    rows = [
        row("moonpool", "shm-read-1x4096", p50_us=3.0, gb_per_s=1.5, cpu_s_per_gb=0.25),
        row("mooncake", "tcp read 4 KiB", p50_us=9.0, gb_per_s=9.0) | {"ok": False},
    ]
    by_name = {name_of(one): one for one in rows}
    assert figure_of(by_name, SUBJECTS[1], SHAPES[0], "p50_us") == 3.0
    assert figure_of(by_name, SUBJECTS[6], SHAPES[0], "p50_us") is None
    lines = table(by_name).splitlines()
    assert len(lines) == 2 + len(SUBJECTS) and "3 / 1.5 / 0.25" in lines[3]
    assert "9" not in lines[8]


def test_the_command_reads_rows_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    rows = [row("nixl", "cma read 1 MiB", p50_us=v, gb_per_s=5.0, cpu_s_per_gb=0.2) for v in (1, 3)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    picture = tmp_path / "deep" / "transfer.png"
    monkeypatch.setattr(
        "sys.argv", ["chart", str(tmp_path / "rows.jsonl"), "--picture", str(picture)]
    )
    assert main() == 0 and picture.read_bytes().startswith(b"\x89PNG")
    assert "2 / 5 / 0.2" in capsys.readouterr().out
    draw({}, tmp_path / "empty.png")
