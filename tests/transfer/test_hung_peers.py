"""A peer that is stopped or cut off in mid-transfer: an error long before the op's deadline, and
not a byte of the caller's memory touched afterwards, whatever the peer does when it wakes.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from moonpool.core.errors import BadConfig, Unreachable
from moonpool.transfer.base import OpState
from moonpool.transfer.engine import Engine
from moonpool.transfer.peer import Peer
from moonpool.transfer.segment import Segment
from tests.transfer.conftest import stamped, state_of
from tests.transfer.owner import BIG_BYTES, BIG_SEED, BLOCK, Owner, wait_until
from tests.transfer.proxy import Proxy

pytestmark = pytest.mark.faults

BIG, MINE = stamped(BIG_BYTES, BIG_SEED), stamped(BIG_BYTES, 10)
# The ops could wait for so long: what ends them is the heartbeat.
LONG_S = 60.0


@pytest.fixture
def owner(folder: str) -> Iterator[Owner]:
    with Owner(folder, hosts=["127.0.0.2"]) as owner:
        yield owner


@pytest.fixture
def engine(folder: str) -> Iterator[Engine]:
    with Engine(dir=folder, deadline_ms=600_000) as engine:
        yield engine


def start(engine: Engine, peer: Peer, kind: str, memory: Segment, rails: int) -> Any:
    move = engine.read if kind == "read" else engine.write
    op = move(memory, None, peer.segment("big"), None, deadline=LONG_S, transport="tcp")
    assert op.transport == "tcp" and len(peer.rails.lines) == rails
    return op


@pytest.mark.parametrize("rails", [1, 2])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_stopped_peer_s_ops_end_and_are_quiet(
    owner: Owner, engine: Engine, kind: str, begun: bool, rails: int
) -> None:
    peer = engine.connect(owner.address, rails=owner.addresses[1:rails])
    wait_until(lambda: all(line.up for line in peer.rails.lines))
    memory = engine.allocate(BIG_BYTES) if kind == "read" else engine.register(MINE.copy())
    if not begun:
        owner.stop()
    op = start(engine, peer, kind, memory, rails)
    if begun and kind == "read":
        wait_until(lambda: bool(memory.array.any()))
    if begun:
        owner.stop()
    # Begun, it may just have been faster.
    if not (begun and op.wait(0) and op.result.ok):
        assert op.wait(LONG_S) and (begun or state_of(op) is OpState.FAILED)
        if state_of(op) is OpState.FAILED:
            assert isinstance(op.error, Unreachable) and op.result.retryable
    wait_until(lambda: bool(peer.hung))
    assert "no heartbeat within 1000 ms" in peer.hung and peer.hung in repr(peer)
    # Another one does not even wait, and shared memory needs nobody to answer.
    late = engine.read(engine.allocate(BLOCK), None, peer.segment("big"), (0, BLOCK))
    assert late.state is OpState.FAILED and "hangs" in str(late.error)
    assert engine.read(engine.allocate(BLOCK), None, peer.segment("kv"), (0, BLOCK)).result.ok
    stamp = stamped(BIG_BYTES, 99)
    memory.array[:] = stamp
    owner.resume()
    wait_until(lambda: not peer.hung)
    there = engine.allocate(BIG_BYTES)
    assert engine.read(there, None, peer.segment("big"), None).wait()
    if kind == "read":
        assert np.array_equal(memory.array, stamp) and np.array_equal(there.array, BIG)
    else:
        # What left before the end is ours of then; what is ours of now never left.
        assert ((there.array == BIG) | (there.array == MINE)).all()


def test_a_peer_killed_while_it_hangs_is_lost(owner: Owner, engine: Engine) -> None:
    peer = engine.connect(owner.address)
    kv = peer.segment("kv")
    owner.stop()
    wait_until(lambda: bool(peer.hung))
    owner.kill()
    wait_until(lambda: not peer.hung)
    op = engine.read(engine.allocate(BLOCK), None, kv, (0, BLOCK))
    assert op.wait() and state_of(op) is OpState.FAILED and isinstance(op.error, Unreachable)
    assert "hangs" not in str(op.error)


def test_a_peer_cut_off_without_a_word_hangs_and_comes_back(owner: Owner, engine: Engine) -> None:
    with Proxy(owner.address) as proxy:
        peer = engine.connect(proxy.address, rails=[])
        far = peer.segment("big")
        wait_until(lambda: bool(peer.spare()))
        proxy.hold()
        memory = engine.allocate(BLOCK)
        op = engine.read(memory, None, far, (0, BLOCK), deadline=LONG_S)
        assert op.wait(LONG_S) and state_of(op) is OpState.FAILED and not memory.array.any()
        proxy.release()
        wait_until(lambda: not peer.hung)
        again = engine.read(memory, None, far, (0, BLOCK))
        assert again.wait() and again.check() and np.array_equal(memory.array, BIG[:BLOCK])


def test_one_silent_address_is_a_lost_rail_and_no_hang(owner: Owner, engine: Engine) -> None:
    with Proxy(owner.addresses[1]) as proxy:
        peer = engine.connect(proxy.address, rails=[owner.address])
        wait_until(lambda: len(peer.spare()) == 2)
        far, memory = peer.segment("big"), engine.allocate(BLOCK)
        proxy.hold()
        op = engine.read(memory, None, far, (0, BLOCK), deadline=LONG_S)
        assert op.wait(LONG_S) and op.check() and np.array_equal(memory.array, BIG[:BLOCK])
        assert not peer.hung and peer.alive
        proxy.release()
        wait_until(lambda: all(line.up for line in peer.rails.lines))


def test_without_heartbeats_only_deadlines_end_ops(owner: Owner, folder: str) -> None:
    with Engine(dir=folder, heartbeat_ms=0) as engine:
        peer = engine.connect(owner.address, rails=[])
        owner.stop()
        op = engine.read(
            engine.allocate(BLOCK), None, peer.segment("big"), (0, BLOCK), deadline=1.5
        )
        assert op.wait() and state_of(op) is OpState.EXPIRED and not peer.hung


def test_a_patience_without_room_for_an_answer_is_refused() -> None:
    with pytest.raises(BadConfig, match="leaves no time for an answer"):
        Engine(heartbeat_ms=500, hang_ms=1000)
