"""Prepared transfers: posted again and again, in part, with everything checked once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from moonpool.core.errors import BadInput, Closed, PeerRestarted
from moonpool.transfer import Engine, Op, OpState, Prepared, Segment, Transfer
from tests.transfer.conftest import stamped
from tests.transfer.owner import BLOCK, KV_BYTES, KV_SEED, Owner

NBYTES = 16 * 4096


class Ends(NamedTuple):
    engine: Engine
    mine: Segment
    far: Any
    far_bytes: Any
    via: str


@pytest.fixture(params=["local", "shm", "tcp", "file"])
def ends(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Ends]:
    via = str(request.param)
    with Engine(dir=str(tmp_path / "one")) as owner, Engine(dir=str(tmp_path / "two")) as engine:
        mine = engine.allocate(NBYTES)
        if via == "file":
            path = tmp_path / "blocks"
            file = engine.open_file(path, NBYTES, create=True)
            yield Ends(engine, mine, file, lambda: np.fromfile(path, np.uint8), via)
            return
        kv = owner.allocate(NBYTES, "kv")
        far: Any = kv if via == "local" else engine.connect(owner.listen()).segment("kv")
        yield Ends(engine, mine, far, lambda: kv.array, via)


def test_posted_again_and_again(ends: Ends) -> None:
    here, there = ends.mine.blocks(4096), ends.far.blocks(4096)
    ids = np.arange(16)
    prepared = ends.engine.prepare("write", here, ids, there, ids[::-1], transport=ends.via)
    assert isinstance(prepared, Prepared) and len(prepared) == 16 and prepared.nbytes == NBYTES
    for turn in range(3):
        ends.mine.array[:] = stamped(NBYTES, turn)
        op = prepared.post()
        assert op.wait() and op.check().transport == ends.via
        want = stamped(NBYTES, turn).reshape(16, 4096)[::-1].reshape(-1)
        assert np.array_equal(ends.far_bytes(), want)


def test_posted_in_part(ends: Ends) -> None:
    before = np.array(ends.far_bytes()).reshape(16, 4096)
    ends.mine.array[:] = stamped(NBYTES, 5)
    whole = np.arange(16)
    prepared = ends.engine.prepare(
        "write", ends.mine.blocks(4096), whole, ends.far.blocks(4096), whole, transport=ends.via
    )
    op = prepared.post([3, 14])
    assert op.wait() and op.check().nbytes == 2 * 4096
    before[[3, 14]] = stamped(NBYTES, 5).reshape(16, 4096)[[3, 14]]
    assert np.array_equal(ends.far_bytes(), before.reshape(-1))
    for which, words in (([16], "outside"), ([-1], "outside"), ([2, 2], "twice"), ([0.5], "dtype")):
        with pytest.raises(BadInput, match=words):
            prepared.post(which)


def test_a_deadline_for_one_post(ends: Ends) -> None:
    prepared = ends.engine.prepare("read", ends.mine, None, ends.far, None, transport=ends.via)
    assert prepared.post(deadline=0).state is OpState.EXPIRED
    op = prepared.post()
    assert op.wait() and op.state is OpState.DONE
    with pytest.raises(BadInput, match="deadline"):
        prepared.post(deadline=-1)


def test_closed_ends(ends: Ends) -> None:
    prepared = ends.engine.prepare("read", ends.mine, None, ends.far, None)
    ends.mine.close()
    with pytest.raises(Closed):
        prepared.post()


def test_checked_when_prepared() -> None:
    with Engine() as engine:
        one, two = engine.allocate(NBYTES), engine.allocate(NBYTES)
        with pytest.raises(BadInput, match="'read' or a 'write'"):
            engine.prepare("move", one, None, two, None)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="outside"):
            engine.prepare("read", one, (0, 1), two, (NBYTES, 1))
        with pytest.raises(BadInput, match="unknown transport"):
            engine.prepare("read", one, None, two, None, transport="pigeon")


def test_not_twice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine() as engine:
        one, two = engine.allocate(NBYTES), engine.allocate(NBYTES)
        prepared = engine.prepare("read", one, None, two, None)
        running: list[Op] = []

        def post(transfer: Transfer, via: str | None) -> Op:
            running.append(Op(transfer, "slow"))
            return running[-1]

        monkeypatch.setattr(engine, "post", post)
        prepared.post()
        with pytest.raises(BadInput, match="runs still"):
            prepared.post()
        running[0].settle(OpState.DONE)
        prepared.post()
        assert len(running) == 2


@pytest.mark.faults
def test_a_restarted_peer_invalidates_what_was_prepared(tmp_path: Path) -> None:
    with Engine(dir=str(tmp_path), connect_timeout_ms=10_000) as engine:
        mine = engine.allocate(KV_BYTES)
        with Owner(str(tmp_path)) as owner:
            peer = engine.connect(owner.address)
            prepared = engine.prepare("read", mine, None, peer.segment("kv"), None)
            op = prepared.post()
            assert op.wait() and op.check().ok
            assert np.array_equal(mine.array, stamped(KV_BYTES, KV_SEED))
            port = owner.port
        with Owner(str(tmp_path), port):
            mine.array[:] = 9
            peer.refresh()
            op = prepared.post()
            assert op.wait() and isinstance(op.error, PeerRestarted)
            assert (mine.array == 9).all()
            fresh = engine.prepare(
                "read", mine.blocks(BLOCK), None, peer.layout("kv-blocks"), None
            ).post()
            assert fresh.wait() and fresh.check().ok
