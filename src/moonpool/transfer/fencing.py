"""Writes that were given up, and how it is made sure that they are not applied after later ones.

A write that ended without an answer leaves its connection unanswered: what was sent over it may
reach the peer's memory at any time. Later writes over the same connection come after it in any
case. Before one goes over another, the peer is asked, over whichever connection lives, to end the
unanswered one, and answers when it has: that is a fence.
"""

import threading
from collections.abc import Callable, Collection
from functools import partial

from moonpool import _core
from moonpool.core.errors import Unreachable
from moonpool.transfer.base import OpState, Transfer
from moonpool.transfer.native_errors import NATIVE_ERRORS
from moonpool.transfer.op import Op
from moonpool.transfer.relay import RelayedOp
from moonpool.transfer.tcp import CompletionPump

# How long a peer may take to say that a connection is over there. Writes wait for it.
_FENCE_MS = 500


class Fences:
    """For one life of a peer; thread-safe. `ways` lists the connections that can carry a fence."""

    def __init__(self, pump: CompletionPump, ways: Callable[[], list[_core.Connection]]) -> None:
        self.unanswered: frozenset[_core.Connection] = frozenset()
        self._pump = pump
        self._ways = ways
        self._fencing: dict[_core.Connection, list[Callable[[bool], None]]] = {}
        self._waiting: list[RelayedOp] = []
        self._lock = threading.Lock()

    def count(self, connection: _core.Connection) -> None:
        """A write over `connection` ended without an answer."""
        with self._lock:
            self.unanswered = self.unanswered | {connection}

    def fence(self, old: _core.Connection, then: Callable[[bool], None]) -> None:
        """Ends `old` at both ends; `then(True)` once the peer has said so, `then(False)` if no
        other connection could ask it."""
        with self._lock:
            if (waiting := self._fencing.get(old)) is not None:
                waiting.append(then)
                return
            self._fencing[old] = [then]
        old.close()
        self._ask(old, self._ways())

    def before(
        self, transfer: Transfer, olds: Collection[_core.Connection], start: Callable[[], Op]
    ) -> Op:
        """An op that becomes `start()` once nothing sent over `olds` can be applied any more."""
        if not olds:
            # The last fence was answered since the caller looked: nobody would begin it.
            return start()
        op = RelayedOp(transfer)
        with self._lock:
            self._waiting.append(op)

        def fenced(quiet: bool) -> None:
            with self._lock:
                self._waiting.remove(op)
            if not quiet:
                text = "an earlier write may still be applied, and no connection is left to end it"
                op.settle(OpState.FAILED, error=Unreachable(text), only_from=OpState.QUEUED)
            elif op.post():
                op.relay(start())

        self.all_quiet(olds, fenced)
        return op

    def all_quiet(self, olds: Collection[_core.Connection], then: Callable[[bool], None]) -> None:
        """`then(True)` once nothing sent over any of `olds`, one at least, can be applied any more;
        `then(False)` if that cannot be made sure of."""
        verdicts = list[bool]()

        def fenced(quiet: bool) -> None:
            with self._lock:
                verdicts.append(quiet)
                last = len(verdicts) == len(olds)
            if last:
                then(all(verdicts))

        for old in olds:
            self.fence(old, fenced)

    def expire(self, now_s: float) -> None:
        """Ends writes that waited for fences up to their deadline."""
        with self._lock:
            late = [op for op in self._waiting if op.transfer.deadline_s <= now_s]
        for op in late:
            op.expire()

    def _ask(self, old: _core.Connection, ways: list[_core.Connection]) -> None:
        while ways:
            way = ways.pop(0)
            try:
                op = way.fence(old, _FENCE_MS)
            except NATIVE_ERRORS:
                # Closed since it was listed, or `old` itself: the next one is asked.
                continue
            self._pump.watch([op], partial(self._over, old, op, ways))
            return
        self._tell(old, quiet=False)

    def _over(self, old: _core.Connection, op: _core.Op, ways: list[_core.Connection]) -> None:
        if op.state == "DONE":
            self._tell(old, quiet=True)
        else:
            self._ask(old, ways)

    def _tell(self, old: _core.Connection, *, quiet: bool) -> None:
        with self._lock:
            waiting = self._fencing.pop(old, [])
            if quiet:
                self.unanswered = self.unanswered - {old}
        for then in waiting:
            then(quiet)
