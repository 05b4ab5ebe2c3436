"""Ops that tell the peer of their end: first the data, then the notification, then the op is DONE.

data DONE     the notification is sent; DONE when the peer has it in its inbox, else FAILED or
              EXPIRED with a status that says that the bytes arrived
data not      the op ends as its data did; the peer is told as well as it goes, after what was
              given up is fenced off, so that it may use its memory again when it hears of it
"""

import itertools
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from moonpool import _core
from moonpool.core.errors import Closed, DeadlineExceeded, MoonpoolError, Unreachable
from moonpool.transfer.base import BlockStatus, OpState, Transfer, error_from_status, status_name
from moonpool.transfer.native_errors import NATIVE_ERRORS
from moonpool.transfer.notification import Notification, encoded
from moonpool.transfer.op import Op, known
from moonpool.transfer.segment import RemoteSegment

if TYPE_CHECKING:
    from moonpool.transfer.engine import Engine

# How long the peer is tried to be told of an op that did not get there.
_ABORT_S = 1.0

_Then = Callable[[MoonpoolError | None], None]


class NotifyingOp(Op):
    """Wraps the op that moves the data."""

    __slots__ = ("_data", "_notifier")

    def __init__(self, transfer: Transfer, notifier: "Notifier", data: Op) -> None:
        super().__init__(transfer, data.transport)
        self._notifier = notifier
        self._data = data
        self.post()
        data.add_done_callback(self._moved)

    def _poll(self) -> None:
        # Looking is what makes some ops see their own end; then they call back.
        self._data.done()

    def _cancel_posted(self) -> None:
        # A notification that is on its way cannot be taken back.
        self._data.cancel()

    def _moved(self, data: Op) -> None:
        result = data.result
        self.transport = result.transport
        crc = None if result.crc is None else known(result.crc)
        if result.ok:
            until_s = self.transfer.deadline_s
            self._notifier.tell(self.transfer, data, until_s, self._told)
            return
        self.settle(result.state, status=result.status, crc=crc, error=result.error)
        self._notifier.tell(self.transfer, data, time.monotonic() + _ABORT_S, lambda _: None)

    def _told(self, error: MoonpoolError | None) -> None:
        result = self._data.result
        crc = None if result.crc is None else known(result.crc)
        state = OpState.DONE
        if error is not None:
            late = isinstance(error, DeadlineExceeded)
            state = OpState.EXPIRED if late else OpState.FAILED
        self.settle(state, status=result.status, crc=crc, error=error)


class Notifier:
    """The sending side of an engine. Thread-safe; nothing here waits."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._numbers = itertools.count(1)

    def tell(self, transfer: Transfer, data: Op, until_s: float, then: _Then) -> None:
        """Sends what became of `data` to the peer at the other end; `then` is called with why the
        peer does not have it, or with None."""
        remote, result = transfer.remote, data.result
        assert isinstance(remote, RemoteSegment), remote
        notification = Notification(
            sender=self._engine.epoch,
            number=next(self._numbers),
            kind=transfer.kind,
            segment=remote.name,
            state=result.state,
            nbytes=result.nbytes,
            message=transfer.notify or b"",
            error="" if result.error is None else str(result.error),
        )
        ways = self._ways(remote, result.state)
        send = partial(self._send, remote, encoded(notification), ways, until_s, then)
        # What was sent over the connection that the notification takes is applied before it.
        unanswered = remote.peer.rails.fences.unanswered.difference(ways[:1])
        if result.ok or transfer.kind == "read" or not unanswered:
            send()
            return

        def fenced(quiet: bool) -> None:
            if quiet:
                send()
            else:
                then(Unreachable("what was given up may still land, and nobody can end it"))

        remote.peer.rails.fences.all_quiet(unanswered, fenced)

    def _ways(self, remote: RemoteSegment, state: OpState) -> list[_core.Connection]:
        peer = remote.peer
        if self._engine.closed or peer.closed or peer.hung:
            return []
        # The one that carries data first.
        ways = list(dict.fromkeys([peer.connection, *peer.rails.ways()]))
        ways = [way for way in ways if way.alive and way.peer_epoch == remote.epoch]
        if state is OpState.EXPIRED or state is OpState.FAILED:
            # What carried the data may be stuck. Those of the heartbeats come last.
            ways.reverse()
        return ways

    def _send(
        self,
        remote: RemoteSegment,
        message: bytes,
        ways: list[_core.Connection],
        until_s: float,
        then: _Then,
    ) -> None:
        if self._engine.closed:
            then(Closed("this engine is closed"))
            return
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            then(DeadlineExceeded("the deadline passed before the peer had the notification"))
            return
        while ways:
            way = ways.pop(0)
            try:
                op = way.notify(message, math.ceil(left_s * 1000))
            except NATIVE_ERRORS:
                # Closed since it was listed: the next one is tried.
                continue
            again = partial(self._send, remote, message, ways, until_s, then)
            self._engine.pump.watch([op], partial(self._over, remote, op, again, then))
            return
        then(Unreachable(f"{remote.peer.address} is lost and was not notified"))

    def _over(
        self, remote: RemoteSegment, op: _core.Op, again: Callable[[], None], then: _Then
    ) -> None:
        where = f"{remote.peer.address}: the notification"
        if op.state == "EXPIRED":
            then(DeadlineExceeded(f"{where} was not answered in time"))
        elif op.state != "DONE":
            again()
        elif (status := int(op.status[0])) == BlockStatus.OK:
            then(None)
        elif status == BlockStatus.BUSY:
            text = f"{where} was not taken: its inbox is full (notifications_max); it is slow"
            then(error_from_status(status, text))
        else:
            then(error_from_status(status, f"{where} was not taken: {status_name(status)}"))
