"""Rows of the sparse model: whatever it computes says that it is simulated."""

import json
from pathlib import Path

import pytest

from moonpool.bench.runner import Settings, rows_of
from moonpool.core.errors import BadInput
from tests.sparse.model.test_observed import machine


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in machine()))
    return path


def test_every_figure_says_simulated(measured: Path) -> None:
    found = list(rows_of("sparse-model", Settings(measured=str(measured))))[1:]
    constants = [row for row in found if str(row["case"]).startswith("constant-")]
    assert constants and all(row["source"] for row in constants)
    computed = [row for row in found if row not in constants]
    assert {row["subject"] for row in computed} == {"simulated"}
    cases = {str(row["case"]): row for row in computed}
    for name in ("as-published", "nic-400", "fp8-rows", "layerwise", "nic-400-fp8-layerwise"):
        assert f"what-if-{name}" in cases
    assert cases["validation-shm"]["within"] is True
    assert cases["validation-tcp"]["predicted"] == 20
    assert cases["validation-tcp-medians"]["predicted_within"] == 20
    assert cases["validation-131072-656-shm-resident-step"]["error"] == pytest.approx(0, abs=1e-6)
    for tokens in (32768, 65536, 131072):
        assert "published" in cases[f"held-out-{tokens}: largest throughput gain"]


def test_a_file_of_something_else_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for text, told in (("no json", "cannot be read as rows"), ("[1]\n", "no JSON object")):
        path.write_text(text)
        with pytest.raises(BadInput, match=told):
            list(rows_of("sparse-model", Settings(measured=str(path))))
    with pytest.raises(BadInput, match="cannot be read as rows"):
        list(rows_of("sparse-model", Settings(measured=str(tmp_path / "none"))))
