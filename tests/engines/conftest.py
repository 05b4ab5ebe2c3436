"""Engines start when they are first asked for, are told apart by name, and end with their file."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.tiny import write_model
from tests.engines.skips import EXPECTED
from tests.engines.vllm_rig import MODEL_CHANGES, Engines, running_pool
from tests.faults.pool_rig import Rig


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without --engines nothing in this folder runs: it needs an environment of its own."""
    if config.getoption("--engines"):
        return
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    items[:] = [item for item in items if here not in item.path.parents]
    config.hook.pytest_deselected(items=mine)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """A skip that is not expected is a failure: this run is the one that must have the engines."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.nodeid not in EXPECTED:
        report.outcome = "failed"
        report.longrepr = f"skipped, and not in tests/engines/skips.py: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in Engines.summary():
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random little Llama of which any wrong key or value changes the answer."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny", **MODEL_CHANGES)


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """The pool that the engines of most tests share."""
    with running_pool() as rig:
        yield rig


@pytest.fixture(scope="module")
def engines(model: Path, rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Those of one file end with it: engines that wait take time and memory from others."""
    with Engines(model, rig.address, tmp_path_factory.mktemp("engines")) as engines:
        yield engines
