"""What an op knows of its pieces when NIXL, or a signal, breaks in between: what NIXL may have is
never taken for what has landed. Without NIXL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from moonpool.core.errors import Unreachable
from moonpool.transfer.base import OpState
from moonpool.transfer.file_segment import FileSegment
from moonpool.transfer.nixl.agent import Agent
from moonpool.transfer.nixl.mover import Flight
from moonpool.transfer.nixl.op import FLIGHTS_MAX, NixlOp
from moonpool.transfer.nixl.package import Library
from moonpool.transfer.segment import Segment
from tests.transfer.conftest import transfer

NBYTES = 4096
PIECES = FLIGHTS_MAX + 2


class Mover:
    """Its agent raises or returns what is `said`, in turn; afterwards nothing is done."""

    def __init__(self, said: list[Any]) -> None:
        self.agent = self
        self.condemned_s: float | None = None
        self.said = said
        self.landed: list[int] = []

    def post(self, handle: int) -> bool:
        answer = self.said.pop(0) if self.said else False
        if isinstance(answer, BaseException):
            raise answer
        return bool(answer)

    look = post

    def make_ready(self, *_: object) -> None: ...

    def pieces(self, *_: object) -> list[int]:
        return list(range(PIECES))

    def flight(self, _: object, piece: int, index: int, __: object) -> Flight:
        return Flight(piece, False, index)

    def land(self, flight: Flight) -> None:
        self.landed.append(flight.piece)

    def condemn(self, now_s: float) -> None:
        self.condemned_s = now_s


@pytest.fixture
def op(tmp_path: Path) -> Iterator[NixlOp]:
    (tmp_path / "file").write_bytes(bytes(NBYTES))
    with FileSegment(tmp_path / "file") as file:
        memory = Segment(np.zeros(NBYTES, np.uint8), name="memory")
        yield NixlOp(transfer("read", memory, file, [(0, 0, NBYTES)]), cast(Any, None), None)


def advance(op: NixlOp, mover: Mover) -> bool:
    return op.advance(cast(Any, mover), 0.0)


@pytest.mark.parametrize("breaks", [ValueError("not of our tree"), KeyboardInterrupt()])
def test_what_was_being_posted_flies(op: NixlOp, breaks: BaseException) -> None:
    mover = Mover([True, False, breaks])
    with pytest.raises(type(breaks)):
        advance(op, mover)
    assert mover.landed == [0]
    assert [flight.piece for flight in op.flying] == [1, 2]
    mover.said = [True, False]  # of the two looks
    assert not advance(op, mover)
    assert mover.landed == [0, 1]
    assert [flight.piece for flight in op.flying] == [2, 3, 4, 5]


def test_what_landed_before_is_not_looked_at_again(op: NixlOp) -> None:
    mover = Mover([])
    assert not advance(op, mover)
    mover.said = [True, KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        advance(op, mover)
    assert mover.landed == [0]
    assert [flight.piece for flight in op.flying] == [1, 2, 3]


def test_what_failed_flies_until_its_agent_is_gone(op: NixlOp) -> None:
    mover = Mover([False, Unreachable("NIXL gave up")])
    assert not advance(op, mover)
    assert mover.condemned_s is not None and op.lost is not None
    assert op.lost.state is OpState.FAILED
    assert [flight.piece for flight in op.flying] == [0, 1]
    assert not advance(op, mover)
    op.grounded()
    assert advance(op, mover)


def test_a_status_that_the_binding_has_no_name_for_is_typed() -> None:
    class Named(Exception): ...

    def post(_: object) -> str:
        raise RuntimeError("BAD_STATUS")

    bindings = SimpleNamespace(
        nixlBackendError=Named, nixlRemoteDisconnectError=Named, nixlNotFoundError=Named
    )
    inner = SimpleNamespace(create_backend=lambda *_: None, transfer=post, check_xfer_state=post)
    api = SimpleNamespace(
        nixlBind=bindings,
        nixl_agent_config=lambda **_: None,
        nixl_thread_sync_t=SimpleNamespace(NIXL_THREAD_SYNC_STRICT=0),
        nixl_agent=lambda *_: inner,
    )
    agent = Agent(Library(api), "a", beyond_host=False)
    for call in (agent.post, agent.look):
        with pytest.raises(Unreachable, match="BAD_STATUS"):
            call(1)
