"""The tiny model, made once for all tests of the engine; engines on it, and a pool for them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the engine extra is not installed")

import moonpool
from moonpool.engine.tokenizer import Tokenizer, load_tokenizer
from tests.engine.sides import Side
from tests.engine.tiny import write_model


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory with random weights and a byte-level tokenizer."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tokenizer(tiny: Path) -> Tokenizer:
    return load_tokenizer(tiny)


@pytest.fixture
def sides(tiny: Path) -> Iterator[Callable[..., Side]]:
    made: list[Side] = []

    def make(pool: moonpool.Pool | None = None, pages: int = 200, **changes: object) -> Side:
        made.append(Side(tiny, pool, pages, **changes))
        return made[-1]

    yield make
    for side in made:
        side.close()


@pytest.fixture
def pool() -> Iterator[moonpool.Pool]:
    with moonpool.Pool.local("32MiB") as made:
        yield made
