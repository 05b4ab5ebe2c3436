"""Whole blocks over TCP in one native step: the same bytes, lists and refusals as the long way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from moonpool import _core
from moonpool.core.errors import BadInput, Closed, DeadlineExceeded, TransferError, Unreachable
from moonpool.transfer import Engine, Op, OpState, Segment
from moonpool.transfer.base import BlockStatus
from moonpool.transfer.block_op import BlockOp
from moonpool.transfer.segment import RemoteSegment
from tests.transfer.conftest import stamped, state_of
from tests.transfer.proxy import Proxy

BLOCK, COUNT = 512, 64


class Pair(NamedTuple):
    owner: Engine
    engine: Engine
    theirs: Segment
    far: RemoteSegment
    near: Segment


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Engine(shared_memory=False) as owner, Engine(shared_memory=False) as engine:
        theirs = owner.allocate(BLOCK * COUNT, "kv")
        theirs.array[:] = stamped(BLOCK * COUNT, 7)
        far = engine.connect(owner.listen()).segment("kv")
        near = engine.allocate(BLOCK * COUNT)
        near.array[:] = stamped(BLOCK * COUNT, 8)
        yield Pair(owner, engine, theirs, far, near)


def begin(pair: Pair, kind: str, here: Any, there: Any, **how: Any) -> Op:
    near, far = pair.near.blocks(BLOCK), pair.far.blocks(BLOCK)
    how.setdefault("transport", "tcp")
    if kind == "read":
        return pair.engine.read(near, here, far, there, **how)
    return pair.engine.write(near, here, far, there, **how)


def rows(segment: Segment) -> Any:
    return segment.array.reshape(COUNT, BLOCK)


@pytest.mark.parametrize("kind", ["read", "write"])
@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.uint32])
def test_blocks_go_where_the_long_way_puts_them(pair: Pair, kind: str, dtype: Any) -> None:
    here, there = np.array([3, 9, 0], dtype), np.array([60, 1, 2], dtype)
    dst, src = (pair.near, pair.theirs) if kind == "read" else (pair.theirs, pair.near)
    to, start = (here, there) if kind == "read" else (there, here)
    want = rows(dst).copy()
    want[to] = rows(src)[start]
    op = begin(pair, kind, here, there)
    assert type(op) is BlockOp
    assert op.wait() and np.array_equal(rows(dst), want)
    result = op.check()
    assert result.ok and result.nbytes == 3 * BLOCK and result.transport == "tcp"
    assert result.status.tolist() == [0, 0, 0] and result.crc is not None
    assert result.crc.tolist() == [_core.crc32c(rows(dst)[i]) for i in to.tolist()]


def test_its_lists_are_what_was_asked_for_whatever_became_of_the_ids(pair: Pair) -> None:
    here, there = np.arange(4), np.arange(4)[::-1].copy()
    op = begin(pair, "read", here, there, deadline=2.0, checksum=False)
    here[:] = there[:] = 0
    asked = op.transfer
    assert (asked.kind, asked.local, asked.remote) == ("read", pair.near, pair.far)
    assert asked.local_offsets.tolist() == [0, 512, 1024, 1536]
    assert asked.remote_offsets.tolist() == [1536, 1024, 512, 0]
    assert asked.lengths.tolist() == [512] * 4 and asked.nbytes == 2048
    assert not asked.checksum and op.wait() and op.check().crc is None
    assert np.array_equal(rows(pair.near)[:4], rows(pair.theirs)[3::-1])


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (np.array([1, 2, 1]), np.array([1, 2, 3])),  # a destination twice, neither up nor down
        (np.array([2, 2]), np.array([1, 2])),
        (np.array([1, COUNT]), np.array([1, 2])),
        (np.array([1, 2]), np.array([-1, 2])),
        (np.array([1, 2]), np.array([1, 2, 3])),
        (np.array([[1, 2]]), np.array([[1, 2]])),
        (np.array([1.0]), np.array([1.0])),
    ],
)
def test_what_is_wrong_is_said_and_moves_nothing(pair: Pair, here: Any, there: Any) -> None:
    before = pair.near.array.copy()
    with pytest.raises(BadInput):
        begin(pair, "read", here, there)
    assert np.array_equal(pair.near.array, before)


def test_a_source_may_be_named_twice(pair: Pair) -> None:
    op = begin(pair, "read", np.array([1, 2]), np.array([5, 5]))
    assert type(op) is BlockOp and op.wait() and op.check().ok
    assert np.array_equal(rows(pair.near)[1:3], rows(pair.theirs)[[5, 5]])
    with pytest.raises(BadInput, match="overlap"):
        begin(pair, "write", np.array([1, 2]), np.array([5, 5]))


@pytest.mark.parametrize(
    "here", [np.arange(8)[::2], [0, 2, 4, 6], np.arange(0, 8, 2).astype(np.int16)]
)
def test_other_ids_go_the_long_way(pair: Pair, here: Any) -> None:
    op = begin(pair, "read", here, np.arange(4))
    assert type(op) is not BlockOp and op.wait() and op.check().ok
    assert np.array_equal(rows(pair.near)[:8:2], rows(pair.theirs)[:4])


def test_blocks_of_two_sizes_are_refused(pair: Pair) -> None:
    with pytest.raises(BadInput, match="equally long"):
        pair.engine.read(
            *(pair.near.blocks(BLOCK), np.arange(2), pair.far.blocks(BLOCK // 2), np.arange(2)),
            transport="tcp",
        )


def test_planes_with_gaps_and_offsets(pair: Pair) -> None:
    near = pair.near.blocks(64, stride=128, offset=32)
    far = pair.far.blocks(64, stride=256, offset=64)
    op = pair.engine.read(near, np.array([5, 1]), far, np.array([2, 7]), transport="tcp")
    assert type(op) is BlockOp and op.wait() and op.check().ok
    for to, start in ((5, 2), (1, 7)):
        mine = pair.near.array[32 + to * 128 :][:64]
        assert np.array_equal(mine, pair.theirs.array[64 + start * 256 :][:64])


def test_read_only_ends_are_refused(pair: Pair) -> None:
    fixed = stamped(BLOCK * COUNT, 9)
    fixed.flags.writeable = False
    with pair.engine.register(fixed, writable=False) as mine:
        ends = (mine.blocks(BLOCK), np.arange(2), pair.far.blocks(BLOCK), np.arange(2))
        with pytest.raises(BadInput, match="read-only"):
            pair.engine.read(*ends, transport="tcp")
    pair.owner.allocate(BLOCK, "fixed", writable=False)
    far = pair.far.peer.segment("fixed").blocks(BLOCK)
    with pytest.raises(BadInput, match="read-only"):
        pair.engine.write(pair.near.blocks(BLOCK), np.arange(1), far, np.arange(1), transport="tcp")


def test_a_closed_end_takes_none(pair: Pair) -> None:
    pair.near.close()
    with pytest.raises(Closed):
        begin(pair, "read", np.arange(2), np.arange(2))


def test_a_segment_that_is_gone_is_not_found(pair: Pair) -> None:
    pair.theirs.close()
    op = begin(pair, "read", np.arange(2), np.arange(2))
    assert type(op) is BlockOp and op.wait() and op.state is OpState.FAILED
    with pytest.raises(TransferError):
        op.check()
    assert op.result.status.all() and op.result.nbytes == 0


def test_a_closed_peer_fails_them(pair: Pair) -> None:
    peer = pair.far.peer
    peer.close()
    op = begin(pair, "read", np.arange(2), np.arange(2))
    assert op.wait() and isinstance(op.error, TransferError | Closed)


def test_no_time_expires_before_anything_moves(pair: Pair) -> None:
    op = begin(pair, "read", np.arange(2), np.arange(2), deadline=0)
    assert op.wait() and op.state is OpState.EXPIRED
    with pytest.raises(DeadlineExceeded):
        op.check()


def test_they_are_counted_awaited_and_told_of(pair: Pair) -> None:
    async def main() -> bool:
        return (await begin(pair, "write", np.arange(8), np.arange(8))).ok

    assert asyncio.run(main())
    seen: list[Op] = []
    op = begin(pair, "read", np.arange(8), np.arange(8))
    op.add_done_callback(seen.append)
    assert op.wait() and seen == [op]
    op.add_done_callback(seen.append)
    assert seen == [op, op]
    ops = pair.engine.stats()["ops"]["tcp"]
    assert ops == {"bytes": 16 * BLOCK, "DONE": 2}


def test_an_op_that_was_waited_for_is_let_go_at_once(pair: Pair) -> None:
    op = begin(pair, "read", np.arange(2), np.arange(2))
    assert op in pair.near.open_ops
    assert op.wait() and op not in pair.near.open_ops


def test_waiting_ends_with_its_time_and_a_cancel_with_quiet_memory(pair: Pair) -> None:
    with Proxy(pair.owner.address) as proxy:
        far = pair.engine.connect(proxy.address, rails=[proxy.address]).segment("kv")
        slow = pair._replace(far=far)
        proxy.hold()
        op = begin(slow, "read", np.arange(2), np.arange(2))
        assert type(op) is BlockOp and not op.wait(0.01) and state_of(op) is OpState.POSTED
        assert op.result.status.tolist() == [BlockStatus.BUSY] * 2
        assert op.cancel() and op.wait() and state_of(op) is OpState.CANCELLED
        before = pair.near.array.copy()
        proxy.release()
        assert begin(slow, "write", np.arange(2), np.arange(2)).wait()
        assert np.array_equal(pair.near.array, before)


def test_closing_a_segment_ends_what_moves_there(pair: Pair) -> None:
    with Proxy(pair.owner.address) as proxy:
        far = pair.engine.connect(proxy.address, rails=[proxy.address]).segment("kv")
        proxy.hold()
        op = begin(pair._replace(far=far), "read", np.arange(2), np.arange(2))
        pair.near.close()
        assert op.state is OpState.CANCELLED


@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_lost_connection_fails_them(pair: Pair, kind: str) -> None:
    with Proxy(pair.owner.address) as proxy:
        far = pair.engine.connect(proxy.address, rails=[proxy.address]).segment("kv")
        proxy.hold()
        op = begin(pair._replace(far=far), kind, np.arange(2), np.arange(2))
        proxy.cut()
        assert op.wait() and op.state is OpState.FAILED and isinstance(op.error, Unreachable)
