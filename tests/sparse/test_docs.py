"""The page's examples run, in order."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.tree import ROOT

PAGE = ROOT / "docs" / "sparse.md"


def test_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["out"].shape == (3, 656)
