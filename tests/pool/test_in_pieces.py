"""Objects in several extents: views are of a copy in one piece, rows are read all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from moonpool import _core
from moonpool.core.errors import PoolFull
from moonpool.pool.client_state import Placement, Replica
from moonpool.pool.gathering import RowsWanted
from moonpool.pool.pins import PinBudget
from moonpool.pool.pool import Pool
from moonpool.pool.ports import Port, Status
from moonpool.pool.view import View, pinned_view
from tests.faults.pool_rig import KIB, MIB, running, stamp

PIECE, ROW = 4 * KIB, 64
BIG = 128 * KIB


def scatter(pool: Pool, key: str) -> bytes:
    """Puts an object for which there is room between others only."""
    small = 0
    with pytest.raises(PoolFull):
        while True:
            pool.put(f"small {small}", bytes(PIECE), pin="hard")
            small += 1
    pool.remove([f"small {i}" for i in range(0, small, 2)])
    value = stamp(key, BIG)
    assert pool.put(key, value).ok
    return value


@pytest.mark.parametrize("shared_memory", [True, False])
def test_rows_of_an_object_in_pieces(shared_memory: bool) -> None:
    with running(nodes=1, memory=1 * MIB, headroom=64 * KIB) as rig:
        pool = rig.connect(shared_memory=shared_memory)
        value = scatter(pool, "big")
        with pool.view("big") as whole:
            assert whole is not None and bytes(whole) == value
        assert not pool.view("big").zero_copy, "it lies in pieces, or this is no test"
        positions = [0, 5, 700, 2047]
        out = bytearray(len(positions) * ROW)
        with pool.read_session(["big"]) as session:
            assert session.read_rows(rows(positions), out)
        assert bytes(out) == b"".join(value[at * ROW : (at + 1) * ROW] for at in positions)


def rows(positions: list[int]) -> RowsWanted:
    u32, u64 = np.uint32, np.uint64
    return RowsWanted(
        ROW,
        BIG // ROW,
        np.zeros(1, u64),
        np.array([BIG], u64),
        np.zeros(1, u32),
        np.array([len(positions)], u32),
        np.array(positions, u32),
    )


class Pin(bytes):
    """A pinned object."""

    crc = 0

    def release(self) -> None:
        pass


class PinPort:
    """Its copy can be pinned, or says why not."""

    def __init__(self, answer: bytes | Status, local: bool = True) -> None:
        self.answer = answer
        self.local = local
        self.asked = 0

    def pin(self, slot: int, generation: int, verify: bool) -> Any:
        self.asked += 1
        return Pin(self.answer) if isinstance(self.answer, bytes) else -1 - self.answer


def pinned(*ports: PinPort) -> tuple[View | int, Sequence[int], int]:
    """What came of it, how often each was asked, and the bytes that count as pinned."""
    replicas = tuple(Replica(cast(Port, port), 0, 1) for port in ports)
    budget = PinBudget(100)
    view = pinned_view(Placement(8, 0, 1, replicas), budget, False)
    return view, [port.asked for port in ports], budget.bytes


def test_a_view_is_of_the_copy_in_one_piece() -> None:
    view, asked, taken = pinned(PinPort(Status.BOUNDS), PinPort(b"12345678"), PinPort(b"x" * 8))
    assert isinstance(view, View) and view.data is not None
    assert bytes(view.data) == b"12345678"
    assert asked == [1, 1, 0] and taken == 8


def test_without_one_the_first_copy_says_why() -> None:
    for second in (PinPort(Status.BUSY), PinPort(Status.MOVED), PinPort(b"1", local=False)):
        view, _, taken = pinned(PinPort(Status.BOUNDS), second)
        assert view == -1 - Status.BOUNDS and taken == 0


def test_a_placement_that_is_over_is_looked_up_again_at_once() -> None:
    view, asked, taken = pinned(PinPort(Status.MOVED), PinPort(b"12345678"))
    assert (view, asked, taken) == (-1 - Status.MOVED, [1, 0], 0)


def test_what_lies_elsewhere_is_not_pinned() -> None:
    view, asked, taken = pinned(PinPort(b"12345678", local=False))
    assert (view, asked, taken) == (-1 - Status.BUSY, [0], 0)


@pytest.mark.parametrize("unit_tokens", [4, 5])
def test_units_that_positions_lie_in(unit_tokens: int) -> None:
    """In order, each once; beyond the last one there is nothing."""
    positions = np.array([3, 0, 2 * unit_tokens, 3 * unit_tokens - 1], np.uint32)
    found = _core.units_touched(positions, unit_tokens, 3)
    assert found is not None and found.tolist() == [0, 2]
    assert _core.units_touched(positions, unit_tokens, 2) is None
    empty = _core.units_touched(positions[:0], unit_tokens, 3)
    assert empty is not None and not len(empty)
