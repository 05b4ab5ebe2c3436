"""What a connection finds at the other end: engines, other endpoints, and pages that lie."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from moonpool import _core
from moonpool.core.errors import BadFrame
from moonpool.core.host import host_id
from moonpool.transfer.engine import Engine
from moonpool.transfer.info_page import PAGE_NAME, EngineInfo, InfoPage
from tests.transfer.conftest import stamped


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="mp-") as path:
        yield path


@pytest.fixture
def engine(folder: str) -> Iterator[Engine]:
    with Engine(dir=folder) as engine:
        yield engine


@pytest.fixture
def endpoint() -> Iterator[_core.Endpoint]:
    """A bare endpoint that shares one region; what it says of itself is up to the test."""
    endpoint = _core.Endpoint(0, b"")
    shared = endpoint.allocate(4096, "memory")
    memoryview(shared)[:] = stamped(4096).data
    yield endpoint
    endpoint.close()


def say(endpoint: _core.Endpoint, info: EngineInfo) -> InfoPage:
    page = InfoPage()
    page.publish(info)
    endpoint.register(page.memory, PAGE_NAME)
    return page


def address_of(endpoint: _core.Endpoint) -> str:
    return f"127.0.0.1:{endpoint.listen_tcp()}"


def why_not_shm(engine: Engine, endpoint: _core.Endpoint) -> str:
    """Connects, reads everything over TCP, and returns why it was not shared memory."""
    peer = engine.connect(address_of(endpoint))
    memory = engine.allocate(4096)
    op = engine.read(memory, None, peer.segment("memory"), None)
    assert op.wait() and op.check().transport == "tcp"
    assert np.array_equal(memory.array, stamped(4096))
    return {choice.transport: choice.why for choice in engine.explain(peer.segment("memory"))}[
        "shm"
    ]


def test_an_endpoint_that_is_no_engine_is_read_over_tcp(
    engine: Engine, endpoint: _core.Endpoint
) -> None:
    assert why_not_shm(engine, endpoint) == "the peer is no engine"


def test_another_host(engine: Engine, endpoint: _core.Endpoint) -> None:
    say(endpoint, EngineInfo(host="elsewhere", pid=1, unix_path="/tmp/x"))
    assert why_not_shm(engine, endpoint) == "the peer runs on another host"


def test_no_unix_socket(engine: Engine, endpoint: _core.Endpoint) -> None:
    say(endpoint, EngineInfo(host=host_id(), pid=1))
    assert why_not_shm(engine, endpoint) == "the peer listens on no UNIX socket"


def test_a_socket_out_of_reach(engine: Engine, endpoint: _core.Endpoint, folder: str) -> None:
    say(endpoint, EngineInfo(host=host_id(), pid=1, unix_path=f"{folder}/gone"))
    assert "out of reach" in why_not_shm(engine, endpoint)


def test_a_socket_of_somebody_else(engine: Engine, endpoint: _core.Endpoint, folder: str) -> None:
    other = _core.Endpoint(0, b"")
    other.listen_unix(f"{folder}/other")
    say(endpoint, EngineInfo(host=host_id(), pid=1, unix_path=f"{folder}/other"))
    assert "another process" in why_not_shm(engine, endpoint)
    other.close()


def test_a_page_that_stays_damaged_refuses_the_peer(
    engine: Engine, endpoint: _core.Endpoint
) -> None:
    page = say(endpoint, EngineInfo(host="h", pid=1))
    page.memory[20] ^= 1
    with pytest.raises(BadFrame):
        engine.connect(address_of(endpoint))


def test_over_a_unix_address(engine: Engine, folder: str) -> None:
    with Engine(dir=folder) as owner:
        theirs = owner.allocate(4096, "memory")
        theirs.array[:] = stamped(4096)
        owner.listen()
        [path] = Path(folder).glob("*.sock")
        peer = engine.connect(f"unix:{path}")
        memory = engine.allocate(4096)
        for transport in ("shm", "tcp"):
            memory.array[:] = 0
            op = engine.read(memory, None, peer.segment("memory"), None, transport=transport)
            assert op.wait() and op.check().transport == transport
            assert np.array_equal(memory.array, theirs.array)


def test_segments_that_come_and_go(engine: Engine, folder: str) -> None:
    with Engine(dir=folder) as owner:
        peer = engine.connect(owner.listen())
        first = owner.allocate(4096, "memory")
        first.array[:] = 1
        old = peer.segment("memory")
        assert peer.offers(old) == ("local", "shm", "tcp")
        first.close()
        owner.allocate(4096, "memory").array[:] = 2
        peer.refresh()
        memory = engine.allocate(4096)
        for transport in ("local", "shm", "tcp"):
            op = engine.read(memory, None, peer.segment("memory"), None, transport=transport)
            assert op.wait() and op.check() and memory.array[0] == 2
        gone = engine.read(memory, None, old, None)
        assert gone.wait() and not gone.result.ok
