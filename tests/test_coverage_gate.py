"""The gate's own arithmetic; `make check` runs the gate itself."""

from pathlib import Path

import pytest

from tests.coverage_gate import Covered, covered_of, files_of


def test_percentages() -> None:
    summary = {
        "num_statements": 40,
        "covered_lines": 39,
        "num_branches": 8,
        "covered_branches": 6,
        "percent_covered": 93.75,
    }
    row = covered_of("a.py", summary)
    assert (row.line_percent, row.branch_percent) == (97.5, 75.0)


def test_nothing_to_cover_is_covered() -> None:
    assert Covered("a.py", 0, 0, 0, 0).branch_percent == 100.0


def test_a_pattern_that_names_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    assert files_of(["*.py"], tmp_path) == ["a.py"]
    with pytest.raises(SystemExit, match="matches no file"):
        files_of(["*.py", "b/*.py"], tmp_path)
