"""Slices over simulated rails, from seeds: shares, deaths, stalls, and every byte looked at."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool import _core
from moonpool.core.errors import BadInput, Cancelled, DeadlineExceeded, TooManyOps, Unreachable
from moonpool.transfer.base import BlockStatus, OpState
from moonpool.transfer.local import LocalTransport
from moonpool.transfer.op import Op
from moonpool.transfer.rails import RailLimits, RailState
from moonpool.transfer.sim import SimTransport
from moonpool.transfer.sim_link import SimLink
from tests.transfer.rails.world import KIB, MIB, World, pair

SLOW, FAST = 100e6, 300e6


def link(speed: float, **how: Any) -> SimLink:
    return SimLink(bytes_per_s=speed, **how)


def took_s(world: World, nbytes: int) -> float:
    near, far = pair(nbytes)
    op = world.read(near, far)
    world.move(op)
    assert op.result.ok and np.array_equal(near.array, far.array)
    return world.clock.monotonic()


@pytest.mark.parametrize("seed", range(4))
def test_rails_of_one_to_three_share_one_to_three(seed: int) -> None:
    world = World(seed, a=link(SLOW, jitter_s=20e-6), b=link(FAST, jitter_s=20e-6))
    near, far = pair(12 * MIB)
    op = world.read(near, far)
    world.move(op)
    assert op.result.ok and np.array_equal(near.array, far.array)
    assert op.rail_bytes["b"] / op.rail_bytes["a"] == pytest.approx(3.0, rel=0.1)
    both_s = 12 * MIB / (SLOW + FAST)
    assert world.clock.monotonic() < 1.1 * both_s


@pytest.mark.parametrize("dies", ["a", "b"])
@pytest.mark.parametrize("kind", ["read", "write"])
@pytest.mark.parametrize("seed", range(2))
def test_one_dies_in_mid_transfer_and_the_other_finishes(seed: int, kind: str, dies: str) -> None:
    speeds = {"a": SLOW, "b": FAST}
    survivor = "b" if dies == "a" else "a"
    alone_s = took_s(World(seed, None, **{survivor: link(speeds[survivor])}), 4 * MIB)
    share = int(4 * MIB * speeds[dies] / (SLOW + FAST))
    die_at = share // (2 + seed) + 12_345 * seed
    links = {
        name: link(speed, die_at_byte=die_at if name == dies else None)
        for name, speed in speeds.items()
    }
    world = World(seed, None, **links)
    near, far = pair(4 * MIB)
    src, dst = (far, near) if kind == "read" else (near, far)
    src.array[:] = pair(4 * MIB)[1].array
    dst.array[:] = 0
    op = world.read(near, far, kind=kind)
    world.move(op)
    assert op.result.ok and np.array_equal(near.array, far.array) and near.array.any()
    assert world.view(dies).state is not RailState.UP and op.rail_bytes[survivor] > 0
    assert world.clock.monotonic() <= 1.3 * alone_s


@pytest.mark.parametrize("seed", range(4))
def test_a_rail_that_hangs_is_left_within_a_slice_time(seed: int) -> None:
    alone_s = took_s(World(seed, a=link(SLOW)), 4 * MIB)
    world = World(seed, a=link(SLOW), b=link(FAST, stall_at_byte=MIB + seed * 1000))
    near, far = pair(4 * MIB)
    op = world.read(near, far)
    world.move(op)
    assert op.result.ok and np.array_equal(near.array, far.array)
    assert world.view("b").why == "slower than predicted"
    stalled_s = next(event.at_ns for event in world.links["b"].trace if event.what == "stall") / 1e9
    dropped = [e.at_ns for e in world.links["b"].trace if e.what == "cancelled"]
    slice_s = 64 * KIB / FAST
    # Its own time, one more for being late, and the millisecond of overdue_min_s.
    assert dropped[0] / 1e9 - stalled_s <= 2 * slice_s + 0.002
    assert world.clock.monotonic() <= 1.3 * alone_s


def test_a_rail_that_comes_back_is_readmitted_and_earns_its_share_again() -> None:
    world = World(3, a=link(SLOW), b=link(FAST))
    near, far = pair(4 * MIB)
    world.links["b"].kill()
    first = world.read(near, far)
    world.move(first)
    assert first.result.ok and "b" not in first.rail_bytes
    assert world.view("b").state is RailState.DEMOTED and "dead" in world.view("b").why
    world.links["b"].revive()
    world.clock.advance(1.0)
    second = world.read(near, far)
    world.move(second)
    assert world.view("b").state is RailState.UP
    assert second.rail_bytes["b"] > 2 * second.rail_bytes["a"]


def test_a_rail_that_became_slow_gets_less() -> None:
    world = World(4, a=link(SLOW), b=link(FAST))
    near, far = pair(8 * MIB)
    world.move(world.read(near, far))
    world.links["b"].link = link(FAST / 8)
    for _ in range(4):
        later = world.read(near, far)
        world.move(later)
        world.clock.advance(1.0)
    assert world.view("b").state is RailState.UP and world.view("b").demotions > 0
    assert 0 < later.rail_bytes["b"] < later.rail_bytes["a"]


def test_errors_at_submit_move_to_another_transport() -> None:
    world = World(5, a=link(FAST))
    world.add("memcpy", LocalTransport())
    world.links["a"].kill()
    near, far = pair(MIB)
    # memcpy looks at the machine's clock, and this deadline has passed on neither.
    op = world.read(near, far, deadline_s=time.monotonic() + 60.0)
    world.move(op)
    assert op.result.ok and op.rail_bytes == {"memcpy": MIB}
    assert np.array_equal(near.array, far.array)


def test_no_rail_left_fails_with_what_the_rail_said() -> None:
    world = World(6, a=link(FAST), b=link(SLOW))
    for one in world.links.values():
        one.kill()
    near, far = pair(MIB)
    op = world.read(near, far)
    world.move(op)
    assert op.state is OpState.FAILED and isinstance(op.error, Unreachable)
    assert world.clock.monotonic() < 2.0 and not near.array.any()


def test_the_deadline_ends_it_and_what_arrived_is_said() -> None:
    world = World(7, a=link(SLOW))
    near, far = pair(4 * MIB)
    op = world.read(near, far, deadline_s=0.02)
    world.move(op)
    assert op.state is OpState.EXPIRED and isinstance(op.error, DeadlineExceeded)
    arrived = np.flatnonzero(op.result.status == BlockStatus.OK)
    assert 0 < len(arrived) < 256 and op.result.nbytes == len(arrived) * 16 * KIB
    after = near.array.copy()
    world.links["a"].run_for(5.0)
    assert np.array_equal(near.array, after)


def test_a_short_deadline_is_no_fault_of_the_rail() -> None:
    world = World(7, a=link(SLOW))
    near, far = pair(4 * MIB)
    op = world.read(near, far, deadline_s=0.02)
    world.move(op, until_s=0.0195)
    # The transport sees the deadline pass before the scheduler looks.
    world.links["a"].run_for(0.02)
    world.move(op)
    assert op.state is OpState.EXPIRED and world.view("a").demotions == 0


def test_cancel_is_quiet() -> None:
    world = World(8, a=link(SLOW), b=link(FAST))
    near, far = pair(4 * MIB)
    op = world.read(near, far)
    world.move(op, until_s=0.005)
    assert op.cancel()
    world.move(op)
    assert op.state is OpState.CANCELLED and isinstance(op.error, Cancelled)
    after = near.array.copy()
    for one in world.links.values():
        one.run_for(1.0)
    assert np.array_equal(near.array, after) and world.striper.scheduler.open_ops == 0


def test_the_urgent_overtakes() -> None:
    world = World(9, a=link(SLOW))
    near, far = pair(4 * MIB)
    other, _ = pair(4 * MIB)
    slow, urgent = world.read(near, far), world.read(other, far, priority=1)
    world.move(urgent)
    assert urgent.result.ok and not slow.done()
    world.move(slow)
    assert slow.result.ok and np.array_equal(near.array, other.array)


def test_too_many_ops_are_refused_by_name() -> None:
    world = World(1, RailLimits(ops_max=2, slices_max=100), a=link(SLOW))
    near, far = pair(64 * KIB)
    ops = [world.read(near, far) for _ in range(3)]
    assert isinstance(ops[2].error, TooManyOps) and "ops_max is 2" in str(ops[2].error)
    world.move(ops[1])
    assert world.read(near, far).state is OpState.POSTED


def test_checksums_of_whole_and_cut_blocks() -> None:
    world = World(2, a=link(SLOW), b=link(FAST))
    near, far = pair(MIB)
    for block in (4 * KIB, 200 * KIB):
        op = world.read(near, far, block=block)
        world.move(op)
        crc = op.check().crc
        assert crc is not None
        want = [_core.crc32c(far.array[at : at + block]) for at in range(0, MIB, block)]
        assert crc.tolist() == want


def test_no_such_peer() -> None:
    world = World(2, a=link(SLOW))
    with pytest.raises(BadInput, match="no rail leads to nobody"):
        world.striper.scheduler.submit("nobody", [(1, 1)], 1.0)


class Fencer:
    """A fence that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Callable[[bool], None]] = []

    def __call__(self, attempt: Op, then: Callable[[bool], None]) -> None:
        assert attempt.done() and not attempt.result.ok
        self.asked.append(then)


def fenced_world(seed: int) -> tuple[World, Fencer]:
    """Rail b stalls after some bytes; both rails have a fence."""
    world, fencer = World(seed), Fencer()
    for name, how in (("a", link(SLOW)), ("b", link(FAST, stall_at_byte=MIB))):
        world.links[name] = SimTransport(world.clock, seed, how)
        world.striper.add_rail("peer", name, world.links[name], fence=fencer)
    return world, fencer


@pytest.mark.parametrize("quiet", [True, False])
def test_a_write_given_up_is_sent_again_once_it_is_fenced(quiet: bool) -> None:
    world, fencer = fenced_world(3)
    near, far = pair(4 * MIB)
    near.array[:] = far.array
    far.array[:] = 0
    op = world.read(near, far, kind="write")
    while not fencer.asked:
        world.move(op, until_s=world.clock.monotonic() + 0.001)
    # Whatever time passes: the slices that b had are not sent again.
    world.move(op, until_s=world.clock.monotonic() + 1.0)
    assert not op.done() and sum(op.rail_bytes.values()) < 4 * MIB
    while not op.done():
        world.move(op, until_s=world.clock.monotonic() + 0.001)
        while fencer.asked:
            fencer.asked.pop()(quiet)
    if quiet:
        assert op.result.ok and np.array_equal(near.array, far.array)
    else:
        assert op.state is OpState.FAILED and "may still arrive" in str(op.error)


def test_reads_and_ops_that_are_over_need_no_fence() -> None:
    world, fencer = fenced_world(4)
    near, far = pair(4 * MIB)
    op = world.read(near, far)
    world.move(op)
    assert op.result.ok and not fencer.asked
    write = world.read(near, far, kind="write", deadline_s=world.clock.monotonic() + 0.001)
    world.move(write)
    assert write.state is OpState.EXPIRED and not fencer.asked


def test_a_rail_that_is_lost_and_regained_and_a_peer_that_is_forgotten() -> None:
    world = World(5, a=link(SLOW), b=link(FAST))
    near, far = pair(2 * MIB)
    world.striper.look_at_rail("peer", "b", lambda: "the card is gone")
    first = world.read(near, far)
    world.move(first)
    assert first.result.ok and set(first.rail_bytes) == {"a"}
    world.striper.look_at_rail("peer", "b", lambda: "")
    second = world.read(near, far)
    world.move(second)
    assert second.result.ok and second.rail_bytes["b"] > 0
    third = world.read(near, far)
    world.striper.pump()
    world.striper.forget("peer")
    world.move(third)
    assert third.state is OpState.FAILED and not world.striper.views()
    late = world.read(near, far)
    assert late.state is OpState.FAILED and isinstance(late.error, Unreachable)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    loss=st.floats(0, 0.02),
    die=st.none() | st.integers(0, MIB),
    stall=st.none() | st.integers(0, MIB),
    cancel_s=st.none() | st.floats(0, 0.02),
    block=st.sampled_from([4 * KIB, 50_001, 300 * KIB]),
)
def test_whatever_happens_ok_blocks_are_right_and_the_rest_is_quiet(
    seed: int,
    loss: float,
    die: int | None,
    stall: int | None,
    cancel_s: float | None,
    block: int,
) -> None:
    links = {
        "a": link(SLOW, loss=loss, jitter_s=50e-6, die_at_byte=die, chunk_bytes=16 * KIB),
        "b": link(FAST, loss=loss, reorder=0.1, stall_at_byte=stall, stall_s=0.05),
        "c": link(SLOW, loss=loss),
    }
    world = World(seed, None, **links)
    near, far = pair(MIB)
    op = world.read(near, far, block=block, deadline_s=3.0)
    if cancel_s is not None:
        world.move(op, until_s=cancel_s)
        op.cancel()
    world.move(op)
    after = near.array.copy()
    for at in np.flatnonzero(op.result.status == BlockStatus.OK):
        place = slice(at * block, (at + 1) * block)
        assert np.array_equal(near.array[place], far.array[place])
    for one in world.links.values():
        one.run_for(1.0)
    assert np.array_equal(near.array, after) and world.striper.scheduler.open_ops == 0
    assert op.result.ok == bool((op.result.status == BlockStatus.OK).all())
