"""Connections of a peer that come and go at awkward moments: none is lost without being closed, and
no rail is forgotten."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from moonpool import _core
from moonpool.core.errors import DeadlineExceeded
from moonpool.transfer.dialing import LineState
from moonpool.transfer.engine import Engine
from moonpool.transfer.keeper import Heartbeat
from moonpool.transfer.peer import Peer
from tests.transfer.conftest import stamped

LONG_S = 60.0


@pytest.fixture
def engine() -> Iterator[Engine]:
    with tempfile.TemporaryDirectory(prefix="mp-") as folder:
        with Engine(dir=folder, shared_memory=False, heartbeat_ms=0) as engine:
            yield engine


@pytest.fixture
def far() -> Iterator[_core.Endpoint]:
    endpoint = _core.Endpoint(0, b"")
    shared = endpoint.allocate(4096, "memory")
    memoryview(shared)[:] = stamped(4096).data
    yield endpoint
    endpoint.close()


@pytest.fixture
def peer(engine: Engine, far: _core.Endpoint) -> Peer:
    return engine.connect(f"127.0.0.1:{far.listen_tcp()}")


def test_a_rail_that_is_up_keeps_its_connection(engine: Engine, peer: Peer) -> None:
    """Another one would be put in its place, and nobody would close the first."""
    rails = peer.rails
    first = rails.lines[0].connection
    assert first is not None and first.alive
    other = engine.dial(peer.address, 10.0)
    rails.adopt(other)
    assert rails.lines[0].connection is first
    rails.lines[0].state = LineState.DIALLING  # a dial was under way as the first was adopted
    rails._dial(0)
    assert rails.lines[0].connection is first and first.alive
    other.close()


def test_a_connection_to_another_life_is_no_rail_of_this_one(engine: Engine, peer: Peer) -> None:
    stranger = _core.Endpoint(12345, b"")
    other = engine.dial(f"127.0.0.1:{stranger.listen_tcp()}", 10.0)
    rails = peer.rails
    rails.cut(peer.address, "the test cut it")
    rails.adopt(other)
    assert rails.lines[0].connection is None
    other.close()
    stranger.close()


def test_a_dial_that_breaks_in_an_unknown_way_is_tried_again(
    engine: Engine, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rails = peer.rails
    rails.cut(peer.address, "the test cut it")

    def broken(*_: object) -> None:
        raise ValueError("not of our tree")

    line = rails.lines[0]
    with monkeypatch.context() as patch:
        patch.setattr(engine, "dial", broken)
        line.due_s = 0.0
        assert line.dial(1.0)
        rails._dial(0)
    assert line.state is LineState.IDLE and "not of our tree" in line.why
    line.due_s = 0.0
    assert line.dial(1.0)
    rails._dial(0)
    assert line.up


def test_the_same_for_a_heartbeat(
    engine: Engine, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("not of our tree")

    heart = Heartbeat(engine, peer, peer.address)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "dial", broken)
        assert heart._line.dial(1.0)
        heart._dial()
    assert heart._line.state is LineState.IDLE
    assert not peer.hung


def test_a_rail_waits_for_a_thread_to_dial_it(
    engine: Engine, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that could not be had is no reason never to dial again."""

    class Nothing:
        def __init__(self, **_: object) -> None:
            pass

        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    rails, line = peer.rails, peer.rails.lines[0]
    rails.cut(peer.address, "the test cut it")
    line.due_s = 0.0
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", Nothing)
        rails.many = True  # else it is left to the next op
        rails.tend(1e9)
    assert line.state is LineState.IDLE and line.why == "can't start new thread"


def test_one_peer_that_breaks_the_keeper_keeps_it_from_no_other(
    engine: Engine, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = threading.Semaphore(0)

    def broken(now_s: float) -> None:
        looks.release()
        raise ValueError("this one cannot be looked after")

    monkeypatch.setattr(peer.rails, "tend", broken)
    for _ in range(3):
        assert looks.acquire(timeout=LONG_S)


def test_a_peer_that_answers_anew_hangs_no_more(peer: Peer) -> None:
    peer.fall_silent(peer.address, "no heartbeat")
    assert "no heartbeat" in repr(peer)
    peer.refresh()
    assert peer.alive and not peer.hung and not peer.silent


def test_a_link_that_was_left_is_not_taken_back(engine: Engine, peer: Peer) -> None:
    """It was asked what it offers, and while it answered another one came."""
    left = peer.link
    left.connection.close()
    peer.refresh()
    current = peer.link
    assert current is not left
    left.epoch += 1  # of another life of the peer than the one that answers now
    peer._install(left, fresh=False)
    assert peer.link is current and current.alive
    memory = engine.allocate(4096)
    assert engine.read(memory, None, peer.segment("memory"), None).wait()
    assert np.array_equal(memory.array, stamped(4096))


def test_one_thread_at_a_time_asks_what_a_peer_offers(peer: Peer) -> None:
    assert peer.link._asking.acquire(timeout=LONG_S)
    with pytest.raises(DeadlineExceeded, match="another thread"):
        peer.refresh(timeout=0.05)
    peer.link._asking.release()
    peer.refresh()
