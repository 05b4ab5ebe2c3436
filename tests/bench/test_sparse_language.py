"""A language model's choices on a text: every indexer beside dense attention, on the tiny model."""

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

from moonpool.bench.sparse_language import main
from moonpool.sparse.traces import load_trace
from tests.engine.tiny import write_model


def test_each_indexer_beside_dense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters = random.Random(1)
    text = tmp_path / "text"
    text.write_text("".join(letters.choice("abcdefgh ") for _ in range(300)))
    model = write_model(tmp_path / "tiny")
    asked = ["--tokens", "250", "--steps", "5", "--top-k", "32", "--traces", str(tmp_path)]
    assert main(["--model", str(model), "--text", str(text), *asked]) == 0
    rows = {row["case"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(rows) == ["dense", "quest", "oracle", "recency"]
    assert rows["dense"]["same_best"] == 1 and rows["dense"]["nats"] > 0
    for case in ("quest", "oracle", "recency"):
        trace = load_trace(tmp_path / f"tiny-{case}.npz")
        assert trace.tokens == 255 and trace.chosen.shape == (5, 3 * 2, 32)
        assert trace.hint.shape == (6, 4 * 32)
        assert rows[case]["summary"]["overlap"] > 0
        newest = trace.chosen[:, :, -1]
        assert newest.tolist() == [[250 + step] * 6 for step in range(5)]


def test_a_text_that_is_too_short_is_said(tmp_path: Path) -> None:
    from moonpool.bench.sparse_language import Plan, compare
    from moonpool.core.errors import BadInput
    from moonpool.engine.model.weights import load

    with pytest.raises(BadInput, match="the text has 10 tokens, 22 are wanted"):
        compare(load(write_model(tmp_path / "tiny")), range(10), Plan(16, 5, 16))
