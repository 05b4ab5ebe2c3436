"""Two real processes: shared memory and TCP, and a peer that hangs, dies or comes back as another.

Each test starts the peer it needs; what it holds is described in owner.py.
"""

import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from moonpool.core.errors import BadInput, DeadlineExceeded, PeerRestarted, Unreachable
from moonpool.transfer.base import BlockStatus, OpState
from moonpool.transfer.engine import Engine
from moonpool.transfer.peer import Peer
from tests.transfer.conftest import stamped, state_of
from tests.transfer.owner import (
    BLOCK,
    KV_BYTES,
    KV_SEED,
    RAW_BYTES,
    RAW_SEED,
    Owner,
    wait_until,
)
from tests.transfer.test_bytes_property import block_lists

pytestmark = pytest.mark.faults

KV, RAW = stamped(KV_BYTES, KV_SEED), stamped(RAW_BYTES, RAW_SEED)


@pytest.fixture(scope="module")
def steady(folder: str) -> Iterator[Owner]:
    """A peer that no test harms."""
    with Owner(folder) as owner:
        yield owner


@pytest.fixture
def owner(folder: str) -> Iterator[Owner]:
    with Owner(folder) as owner:
        yield owner


@pytest.fixture
def engine(folder: str) -> Iterator[Engine]:
    with Engine(dir=folder, connect_timeout_ms=10_000) as engine:
        yield engine


def lose(owner: Owner, peer: Peer) -> None:
    owner.kill()
    wait_until(lambda: not peer.alive)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_blocks_by_id(steady: Owner, engine: Engine, transport: str) -> None:
    peer, memory = engine.connect(steady.address), engine.allocate(16 * BLOCK)
    near = memory.blocks(BLOCK)
    op = engine.read(near, [3, 0], peer.layout("kv-blocks"), [255, 9], transport=transport)
    assert op.wait() and op.check().transport == transport
    assert np.array_equal(memory.array[3 * BLOCK : 4 * BLOCK], KV[255 * BLOCK :])
    assert np.array_equal(memory.array[:BLOCK], KV[9 * BLOCK : 10 * BLOCK])
    assert not memory.array[BLOCK : 3 * BLOCK].any()


def test_shared_memory_is_preferred_and_registered_memory_goes_over_tcp(
    steady: Owner, engine: Engine
) -> None:
    peer, memory = engine.connect(steady.address), engine.allocate(RAW_BYTES)
    assert peer.transports == ("shm", "tcp") and peer.epoch == steady.epoch
    assert engine.explain(peer.segment("kv"))[0].transport == "shm"
    assert engine.explain(peer.segment("raw"))[0].transport == "tcp"
    op = engine.read(memory, None, peer.segment("raw"), None)
    assert op.wait() and op.check().transport == "tcp"
    assert np.array_equal(memory.array, RAW)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(blocks=block_lists(nbytes=20_000))
def test_any_block_list_gives_the_reference_bytes(
    steady: Owner, engine: Engine, transport: str, blocks: list[tuple[int, int, int]]
) -> None:
    peer = engine.connect(steady.address)
    memory = engine.register(stamped(20_000, 1))
    want = memory.array.copy()
    for place, source, size in blocks:
        want[place : place + size] = KV[source : source + size]
    to, start, length = np.array(blocks, dtype=np.uint64).reshape(-1, 3).T
    kv = peer.segment("kv")
    op = engine.read(memory, (to, length), kv, (start, length), transport=transport)
    assert op.wait() and op.check().nbytes == int(length.sum())
    assert np.array_equal(memory.array, want)
    peer.close()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_writes_arrive_and_are_visible_over_the_other_transport(
    owner: Owner, engine: Engine, transport: str
) -> None:
    peer, memory = engine.connect(owner.address), engine.register(stamped(BLOCK, 3))
    op = engine.write(
        memory.blocks(100), [0, 5], peer.segment("kv").blocks(100), [7, 2], transport=transport
    )
    assert op.wait() and op.check().nbytes == 200
    want = KV.copy()
    want[700:800], want[200:300] = memory.array[:100], memory.array[500:600]
    for way in ("shm", "tcp"):
        whole = engine.allocate(KV_BYTES)
        assert engine.read(whole, None, peer.segment("kv"), None, transport=way).wait()
        assert np.array_equal(whole.array, want)


def test_read_only_memory_cannot_be_written(steady: Owner, engine: Engine) -> None:
    peer, memory = engine.connect(steady.address), engine.allocate(10)
    with pytest.raises(BadInput, match="read-only"):
        engine.write(memory, None, peer.segment("raw"), (0, 10))


def test_map_is_in_place_where_memory_is_shared_else_a_copy(steady: Owner, engine: Engine) -> None:
    peer = engine.connect(steady.address)
    with peer.map(peer.layout("kv-blocks"), 5) as view:
        assert (view.transport, view.copied, view.data.readonly) == ("shm", False, True)
        assert view.data == KV[5 * BLOCK : 6 * BLOCK].data
    with peer.map("raw", (10, 20)) as view:
        assert (view.transport, view.copied, view.data.readonly) == ("tcp", True, True)
        assert view.data == RAW[10:30].data


def test_without_shared_memory_everything_goes_over_tcp(steady: Owner, folder: str) -> None:
    with Engine(dir=folder, shared_memory=False) as engine:
        peer, memory = engine.connect(steady.address), engine.allocate(KV_BYTES)
        assert peer.transports == ("tcp",)
        shm = engine.read(memory, None, peer.segment("kv"), None, transport="shm")
        assert shm.state is OpState.FAILED and "switched off" in str(shm.error)
        assert engine.read(memory, None, peer.segment("kv"), None).wait()
        assert np.array_equal(memory.array, KV)


def test_a_stopped_peer_serves_shared_memory(owner: Owner, engine: Engine) -> None:
    peer, memory = engine.connect(owner.address), engine.allocate(KV_BYTES)
    owner.stop()
    op = engine.read(memory, None, peer.segment("kv"), None)
    assert op.wait() and op.check().transport == "shm"
    assert np.array_equal(memory.array, KV)
    with peer.map("kv", (0, 5)) as view:
        assert view.data == KV[:5].data


def test_a_stopped_peer_expires_tcp_which_is_quiet_then(owner: Owner, engine: Engine) -> None:
    peer, memory = engine.connect(owner.address), engine.allocate(KV_BYTES)
    owner.stop()
    op = engine.read(memory, None, peer.segment("kv"), None, transport="tcp", deadline=0.2)
    assert op.wait() and state_of(op) is OpState.EXPIRED
    assert isinstance(op.error, DeadlineExceeded)
    assert op.result.status.tolist() == [BlockStatus.EXPIRED]
    owner.resume()
    # The answer comes now, and a later one behind it: the expired op's bytes must go nowhere.
    other = engine.allocate(BLOCK)
    later = engine.read(other, None, peer.segment("kv"), (0, BLOCK), transport="tcp")
    assert later.wait() and later.result.ok
    assert not memory.array.any()


def test_a_stopped_peer_is_not_waited_for_when_connecting(owner: Owner, engine: Engine) -> None:
    owner.stop()
    with pytest.raises(DeadlineExceeded):
        engine.connect(owner.address, timeout=0.1)


def test_a_stopped_peer_s_op_can_be_cancelled(owner: Owner, engine: Engine) -> None:
    peer, memory = engine.connect(owner.address), engine.allocate(BLOCK)
    owner.stop()
    op = engine.read(memory, None, peer.segment("kv"), (0, BLOCK), transport="tcp")
    assert not op.wait(0.05) and state_of(op) is OpState.POSTED
    assert op.cancel() and op.wait() and state_of(op) is OpState.CANCELLED
    owner.resume()
    memory.close()
    assert not memory.array.any()


def test_closing_memory_ends_what_moves_into_it(owner: Owner, engine: Engine) -> None:
    peer, memory = engine.connect(owner.address), engine.allocate(BLOCK)
    owner.stop()
    ops = [
        engine.read(memory, None, peer.segment("kv"), (0, BLOCK), transport="tcp") for _ in range(3)
    ]
    memory.close()
    assert [op.state for op in ops] == [OpState.CANCELLED] * 3
    owner.resume()
    other = engine.allocate(BLOCK)
    assert engine.read(other, None, peer.segment("kv"), (0, BLOCK), transport="tcp").wait()
    assert not memory.array.any()


def test_many_ops_in_flight(steady: Owner, engine: Engine) -> None:
    peer, memory = engine.connect(steady.address), engine.allocate(KV_BYTES)
    near, far = memory.blocks(BLOCK), peer.layout("kv-blocks")
    ops = [engine.read(near, i, far, i, transport="tcp") for i in range(far.count)]
    assert all(op.wait() and op.result.ok for op in ops)
    assert np.array_equal(memory.array, KV)


def test_a_peer_killed_under_an_op_fails_it(owner: Owner, engine: Engine) -> None:
    peer, memory = engine.connect(owner.address), engine.allocate(BLOCK)
    owner.stop()
    op = engine.read(memory, None, peer.segment("kv"), (0, BLOCK), transport="tcp")
    owner.kill()
    assert op.wait() and state_of(op) is OpState.FAILED
    assert isinstance(op.error, Unreachable) and op.result.retryable


@pytest.mark.parametrize("transport", ["shm", "tcp", None])
def test_a_dead_peer_fails_later_ops(owner: Owner, engine: Engine, transport: str | None) -> None:
    peer, memory = engine.connect(owner.address), engine.allocate(BLOCK)
    kv = peer.segment("kv")
    lose(owner, peer)
    op = engine.read(memory, None, kv, (0, BLOCK), transport=transport)
    assert op.wait() and state_of(op) is OpState.FAILED and isinstance(op.error, Unreachable)
    with pytest.raises(Unreachable):
        peer.map(kv, (0, 1))
    assert engine.stats()["lost_peers"] == 1


def test_a_view_outlives_its_owner(owner: Owner, engine: Engine) -> None:
    peer = engine.connect(owner.address)
    view = peer.map("kv", (0, BLOCK))
    lose(owner, peer)
    peer.close()
    assert view.data == KV[:BLOCK].data


def test_a_restarted_peer_needs_new_descriptors(folder: str, owner: Owner, engine: Engine) -> None:
    peer, memory = engine.connect(owner.address), engine.allocate(BLOCK)
    old = peer.segment("kv")
    lose(owner, peer)
    with Owner(folder, owner.port) as again:
        op = engine.read(memory, None, old, (0, BLOCK))
        assert op.wait() and state_of(op) is OpState.FAILED and isinstance(op.error, PeerRestarted)
        assert not memory.array.any() and not op.result.retryable
        assert peer.epoch == again.epoch != owner.epoch and peer.alive
        new = engine.read(memory, None, peer.segment("kv"), (0, BLOCK))
        assert new.wait() and new.check().transport == "shm"
        assert np.array_equal(memory.array, KV[:BLOCK])
        with pytest.raises(PeerRestarted):
            peer.map(old, (0, 1))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_cut_connection_is_made_again(steady: Owner, engine: Engine, transport: str) -> None:
    peer, memory = engine.connect(steady.address), engine.allocate(BLOCK)
    kv = peer.segment("kv")
    peer.connection.close()
    wait_until(lambda: not peer.alive)
    ops = [engine.read(memory, None, kv, (0, BLOCK), transport=transport) for _ in range(3)]
    assert all(op.wait() and op.check().transport == transport for op in ops)
    assert peer.alive and np.array_equal(memory.array, KV[:BLOCK])


def test_a_peer_nobody_answers_for_expires_ops_at_their_deadline(
    owner: Owner, engine: Engine
) -> None:
    peer, memory = engine.connect(owner.address), engine.allocate(BLOCK)
    kv = peer.segment("kv")
    owner.stop()
    peer.connection.close()
    wait_until(lambda: not peer.alive)
    start_s = time.monotonic()
    op = engine.read(memory, None, kv, (0, BLOCK), deadline=0.1)
    assert state_of(op) is OpState.QUEUED
    assert op.wait() and state_of(op) in (OpState.EXPIRED, OpState.FAILED)
    assert time.monotonic() - start_s >= 0.09


def test_a_cancelled_op_that_waits_for_its_peer_never_posts(owner: Owner, engine: Engine) -> None:
    peer, memory = engine.connect(owner.address), engine.allocate(BLOCK)
    kv = peer.segment("kv")
    owner.stop()
    peer.connection.close()
    wait_until(lambda: not peer.alive)
    op = engine.read(memory, None, kv, (0, BLOCK))
    assert op.cancel() and state_of(op) is OpState.CANCELLED
    owner.resume()
    wait_until(lambda: peer.alive)
    assert not memory.array.any()


def test_what_the_peer_adds_later_is_found(steady: Owner, engine: Engine) -> None:
    peer = engine.connect(steady.address)
    with pytest.raises(BadInput, match="Did you mean 'kv'"):
        peer.segment("kvv")
    with pytest.raises(BadInput, match="Did you mean 'kv-blocks'"):
        peer.layout("kv-block")
