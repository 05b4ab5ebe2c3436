"""The nixl transport between two processes: bytes, sums, prepared lists, who is told what."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from moonpool import _core
from moonpool.core.errors import BadConfig, BadInput, TooManyOps, TransferError, Unreachable
from moonpool.transfer.base import OpState
from moonpool.transfer.engine import Engine
from moonpool.transfer.nixl.pieces import Far
from moonpool.transfer.peer import Peer
from tests.transfer.conftest import stamped
from tests.transfer.nixl.conftest import Start, needs_nixl
from tests.transfer.owner import (
    BIG_BYTES,
    BIG_SEED,
    BLOCK,
    KV_BYTES,
    KV_SEED,
    RAW_BYTES,
    RAW_SEED,
    wait_until,
)
from tests.transfer.test_bytes_property import block_lists

pytestmark = needs_nixl

BIG, RAW = stamped(BIG_BYTES, BIG_SEED), stamped(RAW_BYTES, RAW_SEED)


def connected(engine: Engine, start: Start) -> Peer:
    return engine.connect(start().address, rails=[])


def test_blocks_both_ways(ucx: str, start: Start, engine: Engine) -> None:
    big = connected(engine, start).segment("big")
    mine = engine.allocate(BIG_BYTES)
    ids = np.arange(64)
    near, far = mine.blocks(BLOCK), big.blocks(BLOCK)
    op = engine.read(near, ids, far, ids[::-1], transport="nixl")
    assert op.wait() and op.check().transport == "nixl" and op.result.nbytes == 64 * BLOCK
    want = BIG[: 64 * BLOCK].reshape(64, BLOCK)[::-1]
    assert np.array_equal(mine.array[: 64 * BLOCK].reshape(64, BLOCK), want)
    assert op.result.crc is not None
    assert op.result.crc.tolist() == [_core.crc32c(block) for block in want]
    mine.array[:] = stamped(BIG_BYTES, 21)
    # All of it: cut into pieces on the way.
    op = engine.write(mine, None, big, None, transport="nixl", priority=1)
    assert op.wait() and op.check().transport == "nixl"
    mine.array[:] = 0
    op = engine.read(mine, None, big, None, transport="tcp")
    assert op.wait() and op.result.ok and np.array_equal(mine.array, stamped(BIG_BYTES, 21))


@given(blocks=block_lists(RAW_BYTES))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_blocks(start: Start, engine: Engine, blocks: list[tuple[int, int, int]]) -> None:
    if not engine._peers:
        connected(engine, start)
        engine.allocate(KV_BYTES, "mine")
    raw, mine = engine._peers[0].segment("raw"), engine.segments["mine"]
    mine.array[:] = stamped(KV_BYTES, KV_SEED)
    want = mine.array.copy()
    for near, far, length in blocks:
        want[near : near + length] = RAW[far : far + length]
    near_at, far_at, lengths = (np.array([one[i] for one in blocks], np.uint64) for i in range(3))
    op = engine.read(mine, (near_at, lengths), raw, (far_at, lengths), transport="nixl")
    assert op.wait() and op.result.ok
    assert np.array_equal(mine.array, want)


def test_it_is_taken_before_tcp_and_after_shared_memory(start: Start, engine: Engine) -> None:
    peer = connected(engine, start)
    raw, kv = peer.segment("raw"), peer.segment("kv")
    assert peer.offers(raw) == ("nixl", "tcp") and peer.offers(kv) == ("shm", "nixl", "tcp")
    assert peer.transports == ("shm", "nixl", "tcp")
    op = engine.read(engine.allocate(RAW_BYTES), None, raw, None)
    assert op.wait() and op.result.ok and op.transport == "nixl"
    first, *_ = engine.explain(raw)
    assert first.transport == "nixl" and first.usable and first.why == "both ends have it"
    assert engine.stats()["ops"]["nixl"]["DONE"] == 1


def test_a_peer_without_it_is_reached_otherwise(
    start: Start, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OWNER_NIXL")
    peer = connected(engine, start)
    raw, memory = peer.segment("raw"), engine.allocate(RAW_BYTES)
    op = engine.read(memory, None, raw, None, transport="nixl")
    assert isinstance(op.error, TransferError) and "off at the peer" in str(op.error)
    op = engine.read(memory, None, raw, None)
    assert op.wait() and op.result.ok and op.transport == "tcp"


def test_prepared_lists_are_posted_again(start: Start, engine: Engine) -> None:
    big = connected(engine, start).segment("big")
    ids, mine = np.arange(16), engine.allocate(16 * BLOCK)
    prepared = engine.prepare(
        "write", mine.blocks(BLOCK), ids, big.blocks(BLOCK), ids[::-1], transport="nixl"
    )
    far, seen = big.blocks(BLOCK), engine.allocate(16 * BLOCK)
    assert engine.nixl is not None
    handles = list[object]()
    for turn in range(3):
        mine.array[:] = stamped(16 * BLOCK, turn)
        op = prepared.post()
        assert op.wait() and op.check().transport == "nixl"
        (lists,) = engine.nixl._mover._kept.values()  # type: ignore[union-attr]
        handles += lists.handles.values()
        check = engine.read(seen.blocks(BLOCK), None, far, ids[::-1], transport="tcp")
        assert check.wait() and np.array_equal(seen.array, mine.array)
    assert len(handles) == 3 and len(set(handles)) == 1
    mine.array[:] = 7
    assert prepared.post([3, 5]).wait()
    check = engine.read(seen.blocks(BLOCK), None, far, ids[::-1], transport="tcp")
    assert check.wait()
    blocks = seen.array.reshape(16, BLOCK)
    assert [number for number in range(16) if (blocks[number] == 7).all()] == [3, 5]
    mine.close()  # it remembers its ops
    del prepared, op
    gc.collect()
    wait_until(lambda: not engine.nixl._mover._kept)  # type: ignore[union-attr]


@pytest.mark.parametrize("direct", [False, True])
def test_files(engine: Engine, tmp_path: Path, direct: bool) -> None:
    """NIXL's POSIX back end: blocks of a file that this process opened, by `transport="nixl"`."""
    mine, ids = engine.allocate(BIG_BYTES), np.arange(64)
    try:
        file = engine.open_file(tmp_path / "blocks", BIG_BYTES, create=True, direct=direct)
    except BadInput:
        pytest.skip("no direct I/O in this file system")
    mine.array[:] = BIG
    op = engine.write(mine, None, file, None, transport="nixl")
    assert op.wait() and op.check().transport == "nixl"
    assert np.array_equal(np.fromfile(tmp_path / "blocks", np.uint8), BIG)
    near, far = mine.blocks(BLOCK), file.blocks(BLOCK)
    prepared = engine.prepare("read", near, ids, far, ids[::-1], transport="nixl")
    for _ in range(2):
        mine.array[:] = 0
        op = prepared.post()
        assert op.wait() and op.result.ok and op.result.crc is not None
        want = BIG[: 64 * BLOCK].reshape(64, BLOCK)[::-1]
        assert np.array_equal(mine.array[: 64 * BLOCK].reshape(64, BLOCK), want)
    file.close()
    # Its descriptor's number may be the next one's.
    with engine.open_file(tmp_path / "other", 2 * BLOCK, create=True) as other:
        op = engine.write(near, 5, other.blocks(BLOCK), 1, transport="nixl")
        assert op.wait() and op.result.ok
        mine.array[:BLOCK] = 0
        os.truncate(tmp_path / "other", BLOCK)
        op = engine.read(near, 0, other.blocks(BLOCK), 1, transport="nixl")
        assert op.wait() and isinstance(op.error, Unreachable) and not mine.array[:BLOCK].any()
    assert (tmp_path / "blocks").read_bytes() == BIG.tobytes()


def test_what_nobody_registered_cannot_be_reached(start: Start, engine: Engine) -> None:
    peer = connected(engine, start)
    with pytest.raises(BadInput, match="offers no segment 'private'"):
        peer.segment("private")
    raw, mine = peer.segment("raw"), engine.allocate(RAW_BYTES)
    with pytest.raises(BadInput, match="not a ndarray"):
        engine.read(np.zeros(8, np.uint8), None, raw, None)  # type: ignore[arg-type]
    for ids in ([16], [-1]):
        with pytest.raises(BadInput):
            engine.read(mine.blocks(4096), [0], raw.blocks(4096), ids, transport="nixl")
    with pytest.raises(BadInput, match="read-only"):
        engine.write(mine, None, raw, None, transport="nixl")
    # Past our own checks: NIXL's look at the same lists.
    info = peer.nixl
    assert info is not None and engine.nixl is not None
    mover = engine.nixl._mover
    assert mover is not None
    mover.make_ready(engine.read(mine, None, raw, None, transport="nixl").transfer, info)
    rows = np.array([[mine.array.ctypes.data, 8, 0]], np.uint64)
    with pytest.raises(TransferError, match="not registered at both ends"):
        mover.agent.once("read", rows, np.array([[4096, 8, 0]], np.uint64), Far(info.agent, 0))


def test_segments_that_come_and_go(folder: str, engine: Engine) -> None:
    """Memory of a closed segment is kept while a peer is there that may know its address."""
    with Engine(dir=folder, nixl=True) as owner:
        array = stamped(1 << 16, 3)
        before = sys.getrefcount(array)
        first = owner.register(array, "first")
        peer = engine.connect(owner.listen())
        assert peer.offers(peer.segment("first")) == ("local", "nixl", "tcp")
        second = owner.register(stamped(1 << 16, 4), "second")
        mine = engine.allocate(1 << 16)
        op = engine.read(mine, None, peer.segment("second"), None, transport="nixl")
        assert op.wait() and op.result.ok and np.array_equal(mine.array, second.array)
        assert owner.nixl is not None
        gone = peer.segment("first")
        first.close()
        del first
        assert owner.nixl.offering.withdrawn_bytes == 1 << 16 and sys.getrefcount(array) > before
        peer.refresh()
        assert "first" not in peer.segments
        op = engine.read(mine, None, gone, None, transport="nixl")
        assert op.wait() and op.state is OpState.FAILED and "not registered" in str(op.error)
        peer.close()
        wait_until(lambda: owner.stats()["endpoint"]["connections_open"] == 0)
        owner.register(stamped(8), "third")
        assert owner.nixl.offering.withdrawn_bytes == 0
        del gone
        gc.collect()
        assert sys.getrefcount(array) == before


def test_too_many_ops_are_refused(
    folder: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    owner = start()
    with Engine(dir=folder, nixl=True, queue_ops_max=2, heartbeat_ms=0) as engine:
        raw = engine.connect(owner.address, rails=[]).segment("raw")
        owner.stop()
        memory = engine.allocate(4 * RAW_BYTES)
        parts = [(i * RAW_BYTES, RAW_BYTES) for i in range(3)]
        ops = [
            engine.read(memory, part, raw, None, transport="nixl", deadline=60) for part in parts
        ]
        assert isinstance(ops[2].error, TooManyOps)
        assert [op.done() for op in ops[:2]] == [False, False]


def test_it_listens_on_loopback_without_a_token(engine: Engine) -> None:
    sockets = {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
    assert listening and all(address.startswith("0100007F:") for address in listening)


def test_a_ucx_that_cannot_start_is_one_line(folder: str) -> None:
    code = "import sys; from moonpool.transfer import Engine; Engine(dir=sys.argv[1], nixl=True)"
    command = [sys.executable, "-c", code, folder]
    bad = subprocess.run(
        command, env=os.environ | {"UCX_TLS": "nonsense"}, capture_output=True, text=True
    )
    assert bad.returncode == 1 and bad.stderr.splitlines()[-1].startswith(
        f"{BadConfig.__module__}.BadConfig: transfer.nixl: NIXL has no UCX that works here"
    )


def test_a_process_ends_well_and_prints_nothing(folder: str) -> None:
    """With UCX's modules for cards that are not here, it would end with SIGSEGV."""
    code = (
        "import sys; from moonpool.transfer import Engine\n"
        "engine = Engine(dir=sys.argv[1], nixl=True)\n"
        "if len(sys.argv) > 2: engine.close()"
    )
    for close in ([], ["close"]):
        command = [sys.executable, "-c", code, folder, *close]
        run = subprocess.run(command, capture_output=True, text=True)
        assert (run.returncode, run.stdout) == (0, ""), run.stderr
