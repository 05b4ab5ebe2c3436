"""Real NIXL between two processes, over what UCX takes by itself on one host (one process reads the
other's memory, "cma") and over UCX's own TCP. Skipped where NIXL is not installed."""

from collections.abc import Callable, Iterator

import pytest

from moonpool.transfer.engine import Engine
from moonpool.transfer.nixl import installed
from tests.transfer.owner import Owner

INSTALLED = installed()

needs_nixl = pytest.mark.skipif(not INSTALLED, reason="NIXL is not installed: make test-nixl")

Start = Callable[..., Owner]


@pytest.fixture(params=["cma", "tcp"])
def ucx(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of UCX's transports carries the bytes; before any engine is made."""
    if request.param == "tcp":
        monkeypatch.setenv("UCX_TLS", "tcp")
    return str(request.param)


@pytest.fixture
def start(folder: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Makes peers with NIXL, each in a process of its own, and ends them."""
    monkeypatch.setenv("OWNER_NIXL", "1")
    owners = list[Owner]()

    def make(**how: object) -> Owner:
        owners.append(Owner(folder, hosts=["127.0.0.2"], **how))  # type: ignore[arg-type]
        return owners[-1]

    yield make
    for owner in owners:
        owner.resume()
        with owner:
            pass


@pytest.fixture
def engine(folder: str) -> Iterator[Engine]:
    with Engine(dir=folder, nixl=True, connect_timeout_ms=10_000) as engine:
        yield engine
