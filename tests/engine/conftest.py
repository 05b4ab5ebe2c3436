"""The tiny model, made once for all tests of the engine."""

from pathlib import Path

import pytest

from moonpool.engine.tokenizer import Tokenizer, load_tokenizer
from tests.engine.tiny import write_model

pytest.importorskip("torch", reason="the engine extra is not installed")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory with random weights and a byte-level tokenizer."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tokenizer(tiny: Path) -> Tokenizer:
    return load_tokenizer(tiny)
