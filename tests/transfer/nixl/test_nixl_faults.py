"""What NIXL itself has no answer to: late, cancelled, stopped, dead and restarted peers. However an
op ends, not a byte of the caller's memory is touched afterwards."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from moonpool.core.errors import Cancelled, Closed, DeadlineExceeded, PeerRestarted, Unreachable
from moonpool.transfer.base import OpState
from moonpool.transfer.engine import Engine
from moonpool.transfer.nixl import transport
from moonpool.transfer.segment import Segment
from tests.transfer.conftest import stamped, state_of
from tests.transfer.nixl.conftest import Start, needs_nixl
from tests.transfer.owner import BIG_BYTES, BIG_SEED, RAW_BYTES, RAW_SEED, Owner, wait_until

pytestmark = [needs_nixl, pytest.mark.faults]

BIG, RAW = stamped(BIG_BYTES, BIG_SEED), stamped(RAW_BYTES, RAW_SEED)
LONG_S = 60.0


@pytest.fixture
def tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """UCX's own TCP: a stopped peer leaves NIXL waiting for ever."""
    monkeypatch.setenv("UCX_TLS", "tcp")


def is_quiet(owner: Owner, memory: Any, engine: Engine, spare: Any = None) -> bool:
    """Nothing arrives any more, though the peer wakes up and sends what it has to send, and though
    `engine` goes on with reads of `spare`, another peer's: NIXL moves bytes while it is looked at.
    """
    memory.array[:] = 1
    owner.resume()
    # An answer over its other door says that it had time to run.
    with Engine(heartbeat_ms=0) as other:
        wait_until(lambda: _answers(other, owner))
    mine = Segment(np.zeros(RAW_BYTES, np.uint8), name="mine")
    for _ in range(0 if spare is None else 20):
        op = engine.read(mine, None, spare, None, transport="nixl", deadline=LONG_S)
        assert op.wait(LONG_S) and op.result.ok and np.array_equal(mine.array, RAW)
        time.sleep(0.01)
    return bool((memory.array == 1).all())


def _answers(engine: Engine, owner: Owner) -> bool:
    try:
        engine.connect(owner.address).close()
    except Unreachable:
        # UCX may have ended the process: then nothing can come of it either.
        return not owner.runs
    return True


def test_a_deadline_passes(tcp: None, start: Start, engine: Engine) -> None:
    owner, other = start(), start()
    big = engine.connect(owner.address, rails=[]).segment("big")
    raw = engine.connect(other.address, rails=[]).segment("raw")
    memory = engine.allocate(BIG_BYTES)
    op = engine.read(memory, None, big, None, transport="nixl", deadline=0)
    assert state_of(op) is OpState.EXPIRED
    owner.stop()
    op = engine.read(memory, None, big, None, transport="nixl", deadline=0.2)
    assert op.wait() and state_of(op) is OpState.EXPIRED and isinstance(op.error, DeadlineExceeded)
    assert is_quiet(owner, memory, engine, raw)


def test_cancelling_ends_it(tcp: None, start: Start, engine: Engine) -> None:
    owner, other = start(), start()
    big = engine.connect(owner.address, rails=[]).segment("big")
    raw = engine.connect(other.address, rails=[]).segment("raw")
    memory = engine.allocate(BIG_BYTES)
    owner.stop()
    op = engine.read(memory, None, big, None, transport="nixl", deadline=LONG_S)
    assert not op.wait(0.05)
    assert op.cancel() and op.wait(LONG_S)
    assert state_of(op) is OpState.CANCELLED and isinstance(op.error, Cancelled)
    assert is_quiet(owner, memory, engine, raw)


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_stopped_peer_is_given_up(ucx: str, kind: str, start: Start, engine: Engine) -> None:
    owner, other = start(), start()
    peer, spare = (engine.connect(one.address, rails=[]) for one in (owner, other))
    big, raw, memory = peer.segment("big"), spare.segment("raw"), engine.allocate(BIG_BYTES)
    owner.stop()
    move = engine.read if kind == "read" else engine.write
    op = move(memory, None, big, None, transport="nixl", deadline=LONG_S)
    assert op.wait(LONG_S)
    if ucx == "tcp":
        assert op.state is OpState.FAILED and isinstance(op.error, Unreachable)
    # One process can read the memory of another that is stopped: it may just have been done.
    if state_of(op) is OpState.FAILED:
        assert op.result.retryable
        wait_until(lambda: bool(peer.hung))
        op = move(memory, None, big, None, transport="nixl", deadline=LONG_S)
        assert isinstance(op.error, Unreachable) and "hangs" in str(op.error)
    # What else the engine does goes on, on a fresh agent.
    assert is_quiet(owner, memory, engine, raw)


@pytest.fixture
def patient(folder: str) -> Iterator[Engine]:
    """An engine that gives no peer up."""
    with Engine(dir=folder, nixl=True, heartbeat_ms=0) as engine:
        yield engine


def test_others_ops_survive_the_end_of_an_agent(
    tcp: None, start: Start, patient: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = patient
    monkeypatch.setattr(transport, "_DRAIN_S", 0.0)  # as if theirs took longer than that
    owner, other = start(), start()
    big, theirs = (engine.connect(one.address, rails=[]).segment("big") for one in (owner, other))
    stuck, memory = engine.allocate(BIG_BYTES), engine.allocate(BIG_BYTES)
    # Two that take turns, so that one of them is under way whenever the agent goes.
    halves = [slice(0, BIG_BYTES // 2), slice(BIG_BYTES // 2, BIG_BYTES)]
    prepared = [
        engine.prepare("read", memory, at, theirs, at, transport="nixl", deadline=LONG_S)
        for at in [(half.start, BIG_BYTES // 2) for half in halves]
    ]
    owner.stop()
    ops = [one.post() for one in prepared]
    for _ in range(5):
        lost = engine.read(stuck, None, big, None, transport="nixl", deadline=0.1)
        ended = False
        while not ended:
            ended = lost.done()
            for turn, half in enumerate(halves):
                assert ops[turn].wait(LONG_S) and ops[turn].result.ok
                assert np.array_equal(memory.array[half], BIG[half])
                memory.array[half] = 0
                ops[turn] = prepared[turn].post()
        assert state_of(lost) is OpState.EXPIRED


def test_a_killed_peer_is_an_error_and_its_heir_another(
    ucx: str, start: Start, engine: Engine
) -> None:
    owner = start()
    peer = engine.connect(owner.address, rails=[])
    big, memory = peer.segment("big"), engine.allocate(BIG_BYTES)
    prepared = engine.prepare("read", memory, None, big, None, transport="nixl", deadline=LONG_S)
    ops = [prepared.post()]
    assert ops[0].wait() and ops[0].result.ok
    memory.array[:] = 0
    ops.append(prepared.post())
    owner.kill()
    while ops[-1].wait(LONG_S) and ops[-1].result.ok:
        ops.append(prepared.post())
    assert isinstance(ops[-1].error, Unreachable)
    for op in ops[:-1]:
        assert op.state is OpState.DONE
    memory.array[:] = 1
    heir = start(port=owner.port)
    assert heir.epoch != owner.epoch
    op = prepared.post()
    assert op.wait(LONG_S) and isinstance(op.error, PeerRestarted)
    assert (memory.array == 1).all()
    op = engine.read(memory, None, peer.segment("big"), None, transport="nixl")
    assert op.wait() and op.result.ok and np.array_equal(memory.array, BIG)


def test_closing_the_engine_ends_what_hangs(tcp: None, folder: str, start: Start) -> None:
    owner = start()
    with Engine(dir=folder, nixl=True) as engine:
        big = engine.connect(owner.address, rails=[]).segment("big")
        memory = engine.allocate(BIG_BYTES)
        owner.stop()
        op = engine.read(memory, None, big, None, transport="nixl", deadline=LONG_S)
        assert not op.done()
    assert state_of(op) is OpState.FAILED and isinstance(op.error, (Closed, Unreachable))
    assert is_quiet(owner, memory, engine)


def test_closing_a_segment_ends_what_hangs(tcp: None, start: Start, engine: Engine) -> None:
    owner, other = start(), start()
    big = engine.connect(owner.address, rails=[]).segment("big")
    raw = engine.connect(other.address, rails=[]).segment("raw")
    memory = engine.allocate(BIG_BYTES)
    owner.stop()
    op = engine.read(memory, None, big, None, transport="nixl", deadline=LONG_S)
    memory.close()
    assert state_of(op) is OpState.CANCELLED
    assert is_quiet(owner, memory, engine, raw)
