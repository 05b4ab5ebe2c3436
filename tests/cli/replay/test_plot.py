"""The picture of a replay."""

import builtins
from pathlib import Path
from typing import Any

import pytest

from moonpool.cli.replay import plot
from moonpool.core.errors import MissingExtra
from moonpool.planner.replay import Window


def test_it_is_a_png_in_a_new_folder(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "new" / "replay.png"
    plot.draw([Window(10, 0.1, 0.1, 2.0), Window(20, 0.5, 0.3, 3.0)], "a title", path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"moonpool\[plot\]"):
        plot.require_matplotlib()
