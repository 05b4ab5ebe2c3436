"""`moonpool demo` on the first requests of its trace."""

import json
from pathlib import Path

import pytest

from moonpool.cli import main
from moonpool.cli.replay import plot
from moonpool.core.errors import missing_extra
from moonpool.planner import traces

pytestmark = pytest.mark.faults


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    short = traces.load("conversation").head(100)
    monkeypatch.setattr(traces, "load", lambda name: short)


def test_it_ends_with_a_picture_a_table_and_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert main(["demo", "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (tmp_path / "out" / "replay.png").stat().st_size > 0
    assert any(line.startswith("hit tokens ") for line in lines)
    assert lines[-1].startswith("100 chat requests went through a pool of 2 nodes in ")
    assert lines[-1].endswith("every byte that was read was checked, with no error.")


def test_without_matplotlib_it_names_the_extra_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None:
        raise missing_extra("--plot", "plot")

    monkeypatch.setattr(plot, "require_matplotlib", absent)
    assert main(["demo", "--out", str(tmp_path / "out"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["requests"] == 100
    assert "moonpool[plot]" in err
    assert not (tmp_path / "out").exists()
