"""The simulated link: deterministic, on a manual clock, with the op semantics of the real ones."""

import asyncio
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool import _core
from moonpool.core.clock import ManualClock
from moonpool.core.errors import BadInput, Cancelled, DeadlineExceeded, Unreachable
from moonpool.transfer.base import BlockStatus, OpState, Transfer
from moonpool.transfer.segment import Segment
from moonpool.transfer.sim import SimTransport
from moonpool.transfer.sim_link import SimEvent, SimLink
from tests.transfer.conftest import segment, transfer

KIB = 1024


def sim(seed: int = 7, **link: Any) -> SimTransport:
    return SimTransport(ManualClock(), seed, SimLink(**link))


def request(near: Segment, far: Segment, block: int = 4 * KIB, kind: str = "read") -> Transfer:
    """All of `far` in blocks, due after one simulated second."""
    blocks = [(offset, offset, block) for offset in range(0, far.nbytes, block)]
    return transfer(kind, near, far, blocks, deadline_s=1.0)


@pytest.mark.parametrize("kind", ["read", "write"])
def test_bytes_arrive_after_the_delay(kind: str) -> None:
    near, far = segment(64 * KIB, 1), segment(64 * KIB, 2)
    link = sim(delay_s=0.01, bytes_per_s=1e6)
    want = (far if kind == "read" else near).array.copy()
    op = link.submit(request(near, far, kind=kind))
    assert op.state is OpState.POSTED
    assert not op.wait(0.0) and op.wait()
    assert np.array_equal(near.array, want) and np.array_equal(far.array, want)
    assert link.clock.monotonic() == pytest.approx(0.01 + 65_536 / 1e6)
    crcs = [_core.crc32c(want[at : at + 4 * KIB]) for at in range(0, 64 * KIB, 4 * KIB)]
    assert op.result.crc is not None and op.result.crc.tolist() == crcs


def trace_of(seed: int) -> list[SimEvent]:
    link = sim(seed, jitter_s=0.01, loss=0.2, reorder=0.3, bytes_per_s=1e7, chunk_bytes=KIB)
    near, far = segment(32 * KIB, 1), segment(32 * KIB, 2)
    ops = [link.submit(request(near, far)) for _ in range(3)]
    for op in ops:
        op.wait()
    return link.trace


def test_same_seed_same_trace() -> None:
    assert trace_of(1) == trace_of(1)
    assert trace_of(1) != trace_of(2)


def test_reordering_changes_the_order_not_the_bytes() -> None:
    link = sim(reorder=0.5, chunk_bytes=KIB)
    near, far = segment(16 * KIB, 1), segment(16 * KIB, 2)
    assert link.submit(request(near, far)).wait()
    arrivals = [(e.block, e.offset) for e in link.trace if e.what == "arrive"]
    assert arrivals != sorted(arrivals) and np.array_equal(near.array, far.array)


def test_a_lost_chunk_expires_the_op_and_is_named() -> None:
    link = sim(loss=0.3)
    near, far = segment(64 * KIB, 1), segment(64 * KIB, 2)
    op = link.submit(request(near, far))
    assert op.wait() and op.state is OpState.EXPIRED
    assert link.clock.monotonic() == 1.0
    lost = {e.block for e in link.trace if e.what == "lost"}
    assert lost == set(np.flatnonzero(op.result.status).tolist()) != set()
    assert op.result.nbytes == 64 * KIB - len(lost) * 4 * KIB
    assert isinstance(op.error, DeadlineExceeded) and op.result.retryable


def test_a_short_stall_delays() -> None:
    link = sim(stall_at_byte=8 * KIB, stall_s=0.5)
    op = link.submit(request(segment(64 * KIB, 1), segment(64 * KIB, 2)))
    assert op.wait() and op.result.ok
    assert link.clock.monotonic() >= 0.5


def test_an_endless_stall_expires_and_is_quiet_afterwards() -> None:
    link = sim(stall_at_byte=8 * KIB)
    near, far = segment(64 * KIB, 1), segment(64 * KIB, 2)
    op = link.submit(request(near, far))
    assert op.wait() and op.state is OpState.EXPIRED
    after = near.array.copy()
    assert op.result.status.tolist() == [BlockStatus.OK] * 2 + [BlockStatus.EXPIRED] * 14
    link.run_for(10.0)
    assert np.array_equal(near.array, after)


@pytest.mark.parametrize("die_at", [0, 1, 4095, 4096, 10_000, 65_535])
def test_death_at_a_byte_leaves_exactly_so_many(die_at: int) -> None:
    link = sim(die_at_byte=die_at)
    near, far = Segment(bytearray(64 * KIB), name="zeros"), segment(64 * KIB, 2)
    op = link.submit(request(near, far))
    assert op.wait() and op.state is OpState.FAILED and isinstance(op.error, Unreachable)
    assert np.array_equal(near.array[:die_at], far.array[:die_at])
    assert not near.array[die_at:].any()
    assert op.result.status.tolist().count(BlockStatus.OK) == die_at // (4 * KIB)
    later = link.submit(request(near, far))
    assert later.state is OpState.FAILED and not near.array[die_at:].any()


def test_a_revived_peer_serves_again() -> None:
    link = sim()
    near, far = segment(4 * KIB, 1), segment(4 * KIB, 2)
    link.kill()
    assert link.submit(request(near, far)).state is OpState.FAILED
    link.revive()
    op = link.submit(request(near, far))
    assert op.wait() and op.result.ok


def test_cancel_is_quiet() -> None:
    link = sim(delay_s=0.1)
    near = segment(8 * KIB, 1)
    before = near.array.copy()
    op = link.submit(request(near, segment(8 * KIB, 2)))
    assert not op.wait(0.05) and op.cancel()
    assert op.state is OpState.CANCELLED and isinstance(op.error, Cancelled)
    link.run_for(1.0)
    assert np.array_equal(near.array, before) and not op.cancel()


def test_a_passed_deadline_posts_nothing() -> None:
    link = sim()
    link.clock.advance(2.0)
    op = link.submit(request(segment(8 * KIB, 1), segment(8 * KIB, 2)))
    assert op.state is OpState.EXPIRED and [event.what for event in link.trace] == ["expired"]


def test_no_bytes_still_take_the_delay() -> None:
    link = sim(delay_s=0.25)
    near, far = segment(8, 1), segment(8, 2)
    empty = link.submit(transfer("read", near, far, [(0, 0, 0)], deadline_s=1.0))
    none = link.submit(transfer("read", near, far, [], deadline_s=1.0))
    assert empty.wait() and none.wait() and empty.result.ok and none.result.ok
    assert link.clock.monotonic() == 0.25


def test_ops_share_the_bandwidth() -> None:
    link = sim(delay_s=0.0, bytes_per_s=64 * KIB)
    near, far = segment(16 * KIB, 1), segment(16 * KIB, 2)
    first, second = (link.submit(request(near, far)) for _ in range(2))
    assert first.wait() and link.clock.monotonic() == 0.25
    assert second.wait() and link.clock.monotonic() == 0.5


def test_await_moves_the_clock() -> None:
    async def main() -> None:
        link = sim(delay_s=0.2)
        result = await link.submit(request(segment(8 * KIB, 1), segment(8 * KIB, 2)))
        assert result.ok and link.clock.monotonic() == 0.2

    asyncio.run(main())


def test_step_is_one_event() -> None:
    link = sim(chunk_bytes=KIB)
    op = link.submit(request(segment(4 * KIB, 1), segment(4 * KIB, 2)))
    steps = 0
    while not op.done():
        assert link.step()
        steps += 1
    assert steps == 4
    link.close()
    assert not link.step()


def test_sims_nest() -> None:
    inner = sim(die_at_byte=6 * KIB)
    outer = SimTransport(ManualClock(), 1, inner=inner)
    # The inner link's clock is its own; its verdict is the outer op's.
    op = outer.submit(request(segment(16 * KIB, 1), segment(16 * KIB, 2)))
    assert op.wait() and op.state is OpState.FAILED


@pytest.mark.parametrize(
    "link",
    [
        {"loss": 1.5},
        {"reorder": -0.1},
        {"chunk_bytes": 0},
        {"delay_s": math.inf},
        {"bytes_per_s": 0},
    ],
    ids=repr,
)
def test_impossible_links_are_refused(link: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        sim(**link)


@given(
    seed=st.integers(0, 2**32),
    loss=st.floats(0, 0.2),
    reorder=st.floats(0, 1),
    die=st.none() | st.integers(0, 40_000),
    cancel_s=st.none() | st.floats(0, 0.01),
)
def test_whatever_happens_ok_blocks_are_right_and_the_rest_is_quiet(
    seed: int, loss: float, reorder: float, die: int | None, cancel_s: float | None
) -> None:
    link = sim(
        seed,
        loss=loss,
        reorder=reorder,
        jitter_s=0.002,
        die_at_byte=die,
        chunk_bytes=KIB,
        bytes_per_s=8e6,
    )
    near, far = segment(32 * KIB, 1), segment(32 * KIB, 2)
    op = link.submit(request(near, far))
    if cancel_s is not None:
        op.wait(cancel_s)
        op.cancel()
    assert op.wait()
    after = near.array.copy()
    for block in np.flatnonzero(op.result.status == BlockStatus.OK):
        place = slice(block * 4 * KIB, (block + 1) * 4 * KIB)
        assert np.array_equal(near.array[place], far.array[place])
    link.run_for(10.0)
    assert np.array_equal(near.array, after)
    assert op.result.ok == bool((op.result.status == BlockStatus.OK).all())
