"""An op of the nixl transport: which of its pieces NIXL has, and how it ends.

    begun ──> pieces posted, some at a time ──> all have landed ──> DONE
      └─────> lost (cancelled, late, peer gone, failed too often): nothing more is posted, and it
              ends when what NIXL has of it has landed, or its agent has been torn down

It is lost at most once; what was posted on an agent that is torn down for another op's sake is
posted again on the next one.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from moonpool.core.errors import MoonpoolError, TransferError, Unreachable
from moonpool.transfer.base import OpState, Transfer
from moonpool.transfer.file_segment import FileSegment
from moonpool.transfer.info_page import NixlInfo
from moonpool.transfer.nixl.mover import Flight, Mover
from moonpool.transfer.nixl.pieces import Piece
from moonpool.transfer.op import Op, cancelled, expired, known, local_crcs
from moonpool.transfer.segment import RemoteSegment

if TYPE_CHECKING:
    from moonpool.transfer.nixl.transport import NixlTransport

FLIGHTS_MAX: Final = 4
TRIES: Final = 3
_LOOKS: Final = 50
_LOOK_S: Final = 20e-6
# Tearing an agent down under a hung peer takes most of a second, after the deadline.
_VERDICT_GRACE_S: Final = 5.0


class Lost(NamedTuple):
    """Why an op ends without its bytes, and since when that is known."""

    state: OpState
    error: MoonpoolError
    at_s: float


class NixlOp(Op):
    """Steps are made by whoever has the transport's lock."""

    __slots__ = (
        *("_again", "_info", "_next", "_pieces", "_transport", "_tries"),
        *("cancel_wanted", "flying", "lost", "mover", "troubled"),
    )

    def __init__(
        self, transfer: Transfer, transport: "NixlTransport", info: NixlInfo | None
    ) -> None:
        super().__init__(transfer, "nixl")
        self.mover: Mover | None = None
        self.flying: list[Flight] = []
        self.lost: Lost | None = None
        self.troubled = False
        self.cancel_wanted = False
        self._transport = transport
        self._info = info
        self._pieces: list[Piece] | None = None
        self._next = 0
        self._again: list[int] = []
        self._tries = 0

    @property
    def info(self) -> NixlInfo | None:
        """The peer as it was when the op was submitted; None for a file of ours."""
        return self._info

    def advance(self, mover: Mover | None, now_s: float) -> bool:
        """One step; True when the op can be settled. New pieces go to `mover`."""
        if self.flying:
            self._collect(now_s)
        if self.lost is None:
            self._judge(now_s)
        if self.lost is None and mover is not None and (mover is self.mover or not self.flying):
            self.mover = mover
            self._post(mover, now_s)
        if self.flying or (self.lost is None and self._left):
            return False
        self._judge(now_s)
        return True

    def grounded(self) -> None:
        """The agent is gone, and with it all that was under way."""
        self._again += [flight.piece for flight in self.flying]
        self.flying = []
        self.mover = None
        self.troubled = False

    def lose(self, state: OpState, error: MoonpoolError, now_s: float) -> None:
        """It ends without its bytes as soon as nothing moves any more."""
        if self.lost is None:
            self.lost = Lost(state, error, now_s)

    def end(self) -> None:
        """Settles an op that is over; without the transport's lock, since listeners are called."""
        if self.lost is not None:
            self.settle(self.lost.state, error=self.lost.error)
        else:
            crc = known(local_crcs(self.transfer)) if self.transfer.checksum else None
            self.settle(OpState.DONE, crc=crc)

    def wait(self, timeout: float | None = None) -> bool:
        limit_s = self._wait_limit_s() if timeout is None else max(0.0, timeout)
        until_s = time.monotonic() + limit_s
        for _ in range(_LOOKS):
            if self.done():
                return True
            if time.monotonic() >= until_s:
                return False
            time.sleep(_LOOK_S)
        return super().wait(max(0.0, until_s - time.monotonic()))

    def _wait_limit_s(self) -> float:
        return max(0.0, self.transfer.deadline_s - time.monotonic()) + _VERDICT_GRACE_S

    def _poll(self) -> None:
        self._transport.look(self)

    def _cancel_posted(self) -> None:
        self.cancel_wanted = True
        self._transport.look(self)

    @property
    def _left(self) -> bool:
        return self._pieces is None or bool(self._again) or self._next < len(self._pieces)

    def _collect(self, now_s: float) -> None:
        mover = self.mover
        assert mover is not None
        if self.troubled:
            return
        for flight in list(self.flying):
            self._land_if(mover.agent.look, flight, mover, now_s)

    def _judge(self, now_s: float) -> None:
        remote = self.transfer.remote
        if self.cancel_wanted:
            self.lose(OpState.CANCELLED, cancelled(self), now_s)
        elif now_s >= self.transfer.deadline_s and self._unfinished:
            self.lose(OpState.EXPIRED, expired(self), now_s)
        elif not isinstance(remote, RemoteSegment):
            return
        elif (refusal := remote.peer.refusal(remote)) is not None:
            self.lose(OpState.FAILED, refusal, now_s)
        elif not remote.peer.alive:
            # Also for what seems to have arrived: the number of a process that died is free.
            why = remote.peer.hung or "its connection is lost"
            self.lose(OpState.FAILED, Unreachable(f"{remote.peer.address}: {why}"), now_s)

    @property
    def _unfinished(self) -> bool:
        return bool(self.flying) or self._left

    def _post(self, mover: Mover, now_s: float) -> None:
        try:
            mover.make_ready(self.transfer, self._info)
            if self._pieces is None:
                self._pieces = mover.pieces(self.transfer, self._info)
            while len(self.flying) < FLIGHTS_MAX and self._left and mover.condemned_s is None:
                index = self._again[-1] if self._again else self._next
                flight = mover.flight(self.transfer, self._pieces[index], index, self._info)
                self.flying.append(flight)  # before NIXL is asked: whatever it raises, it may begin
                self._taken(index)
                self._land_if(mover.agent.post, flight, mover, now_s)
        except MoonpoolError as error:
            self.lose(OpState.FAILED, error, now_s)

    def _taken(self, index: int) -> None:
        if self._again:
            self._again.pop()
        else:
            self._next = index + 1

    def _land_if(
        self, asked: Callable[[Any], bool], flight: Flight, mover: Mover, now_s: float
    ) -> None:
        """Until NIXL says that it is done with it, a flight stays among those that fly."""
        try:
            if asked(flight.handle):
                self.flying.remove(flight)
                mover.land(flight)
        except TransferError as error:
            self._failed(error, mover, now_s)

    def _failed(self, error: TransferError, mover: Mover, now_s: float) -> None:
        """Some of what was asked for may still move: the agent has to go before anything else."""
        if not self.troubled:
            self.troubled = True
            self._tries += 1
        mover.condemn(now_s)
        if self._tries >= TRIES or isinstance(self.transfer.remote, FileSegment):
            self.lose(OpState.FAILED, error, now_s)
