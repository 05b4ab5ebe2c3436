"""For all tests: a real etcd; property tests never fail on time and print how to replay."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from moonpool.bench.etcd_server import EtcdServers

_PREFIXES = itertools.count(1)

settings.register_profile("moonpool", deadline=None, print_blob=True)
settings.load_profile("moonpool")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seeds", type=int, default=300, help="seeds a seeded simulation runs (make soak: 10000)"
    )
    parser.addoption("--seed", type=int, default=1, help="the one seed that `-k one_seed` replays")
    parser.addoption("--engines", action="store_true", help="run tests/engines (make test-engines)")


@pytest.fixture(scope="session")
def _etcd_servers() -> Iterator[EtcdServers]:
    from moonpool.bench.etcd_server import EtcdServers

    with EtcdServers() as servers:
        yield servers


@pytest.fixture
def etcd(_etcd_servers: EtcdServers) -> str:
    """'etcd://127.0.0.1:PORT/PREFIX' of a real etcd; each test has a prefix of its own."""
    return _etcd_servers.url(f"test-{next(_PREFIXES)}")


@pytest.fixture
def etcd_members() -> Iterator[EtcdServers]:
    """A real etcd of three members of this test's own, to be killed and stopped."""
    from moonpool.bench.etcd_server import EtcdServers

    with EtcdServers(3) as servers:
        yield servers
