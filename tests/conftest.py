"""For all tests: property tests never fail on time, and print how to replay a failure."""

import pytest
from hypothesis import settings

settings.register_profile("moonpool", deadline=None, print_blob=True)
settings.load_profile("moonpool")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds", type=int, default=300, help="seeds a seeded simulation runs (make soak: 10000)"
    )
    parser.addoption("--seed", type=int, default=1, help="the one seed that `-k one_seed` replays")
    parser.addoption("--engines", action="store_true", help="run tests/engines (make test-engines)")
