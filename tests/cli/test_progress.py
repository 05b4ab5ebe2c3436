"""Progress bars are for terminals only."""

import sys

import pytest

from moonpool.cli.progress import progress


def test_without_a_terminal_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("replaying", 3) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_the_bar_is_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("replaying", 3) as advance:
        advance(3)
    out, err = capsys.readouterr()
    assert out == ""
    assert "replaying" in err and "3/3" in err
