"""Pieces of objects: each from its best copy, a silent one's or a failed one's from the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moonpool.pool.ports import Status
from moonpool.pool.protocol import Context
from moonpool.pool.protocol_pieces import Piece, read_pieces
from moonpool.pool.results import MissReason
from tests.pool.test_read_race import Clock, TimedPort, World


@pytest.fixture
def clock() -> Iterator[Clock]:
    yield Clock()


def read(world: World, timeout_s: float = 10.0) -> list[Piece]:
    """Eight bytes of each object."""
    pieces = [Piece(world.state.cache[key], 0, bytearray(8)) for key in world.keys]
    context = Context(world.state, world.clock, world.clock() + timeout_s)
    world.run(read_pieces(context, pieces))
    return pieces


def told(pieces: list[Piece]) -> list[tuple[Status, str, bytes]]:
    return [(piece.status, piece.node, bytes(memoryview(piece.buffer))) for piece in pieces]  # type: ignore[arg-type]


def test_a_silent_copys_piece_comes_from_the_next_one(clock: Clock) -> None:
    a, b = TimedPort(clock, "a", 9.0), TimedPort(clock, "b", 0.01, mark=3)
    world = World((a, b), (b, a))
    assert told(read(world)) == [(Status.OK, "b", bytes([3] * 8)), (Status.OK, "b", bytes([4] * 8))]
    assert clock.s < 0.1 and a.cancelled == 1


def test_a_failed_copys_piece_comes_from_the_next_one_that_was_not_tried(clock: Clock) -> None:
    a, b = TimedPort(clock, "a", 0.01, Status.UNREACHABLE), TimedPort(clock, "b", 0.01)
    c = TimedPort(clock, "c", 0.01, Status.MOVED)
    world = World((c, a, b), (b, a))
    assert [piece.node for piece in read(world)] == ["b", "b"]
    assert [len(port.begun) for port in (a, b, c)] == [1, 2, 1]


def test_what_no_copy_gives_says_why(clock: Clock) -> None:
    a, b = (TimedPort(clock, name, 0.01, Status.REFUSED) for name in "ab")
    world = World((a, b), (TimedPort(clock, "c", 0.01),))
    refused, fine = read(world)
    assert (refused.status, refused.reason) == (Status.REFUSED, MissReason.REFUSED)
    assert fine.status is Status.OK


def test_a_piece_outside_its_object_is_no_reason_to_try_another_copy(clock: Clock) -> None:
    a, b = (TimedPort(clock, name, 0.01, Status.BOUNDS) for name in "ab")
    (piece,) = read(World((a, b)))
    assert piece.status is Status.BOUNDS and b.begun == []


def test_with_hedging_off_the_next_copy_has_half_of_the_deadline(clock: Clock) -> None:
    a, b = TimedPort(clock, "a", 4.0), TimedPort(clock, "b", 0.01)
    limits = []

    class Watched(TimedPort):
        def start(self, call, timeout_s):  # type: ignore[no-untyped-def]
            limits.append(timeout_s)
            return super().start(call, timeout_s)

    a.__class__ = b.__class__ = Watched
    a.status = Status.EXPIRED
    (piece,) = read(World((a, b), hedge_ms=-1), timeout_s=8.0)
    assert (piece.status, piece.node) == (Status.OK, "b")
    assert limits == [pytest.approx(4.0), pytest.approx(4.0)]
