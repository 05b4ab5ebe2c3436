"""Transfers cut over rails: ops of many attempts, driven by pump() under whatever clock.

The striper turns what the scheduler wants into ops of transports, and their ends back into facts.
It never sleeps and has no thread: whoever runs it, on real or simulated time, calls pump().

An attempt is tried again only when the one before is quiet at both ends. Ours is quiet when the
attempt's state is terminal. At the peer a write given up may still be on its way, and would land on
top of what came later: rails on which that can happen have a fence, which is asked first.
"""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from moonpool import _core
from moonpool.core.errors import (
    BadFrame,
    BadInput,
    Closed,
    Corrupt,
    MoonpoolError,
    TooManyOps,
    Unreachable,
)
from moonpool.transfer.base import U8, U32, BlockStatus, OpState, Transfer, Transport
from moonpool.transfer.op import Op, cancelled, expired, known
from moonpool.transfer.rails.base import Ended, Ending, Post, RailCost, RailLimits, RailView
from moonpool.transfer.rails.scheduler import RailScheduler, Ranks
from moonpool.transfer.rails.slices import Cut, cut, part_of

# fence(attempt, then): calls `then(quiet)` once nothing that `attempt` sent is applied at the peer
# any more, or once that cannot be had (False). From any thread, maybe at once.
Fence = Callable[[Op, Callable[[bool], None]], None]

# What another rail may do better. Anything else (refused, restarted, bad input) is the op's own.
_RAIL_FAULTS = (Unreachable, Corrupt, BadFrame, Closed, TooManyOps)


class StripedOp(Op):
    """An op whose slices travel over several rails; `rail_bytes` says how many over which."""

    __slots__ = (
        *("_part_crcs", "_striper", "crc", "cuts", "last_error", "missing", "number"),
        "rail_bytes",
    )

    def __init__(self, transfer: Transfer, name: str, striper: "Striper", cuts: list[Cut]) -> None:
        super().__init__(transfer, name)
        self._striper = striper
        self.cuts = cuts
        self.number = -1
        self.crc: U32 = np.zeros(len(transfer.lengths), dtype=np.uint32)
        self.missing = np.zeros(len(transfer.lengths), dtype=np.int64)
        for one in cuts:
            self.missing[one.start : one.stop] += 1
        self.last_error: MoonpoolError | None = None
        self.rail_bytes: dict[str, int] = {}
        self._part_crcs: dict[int, int] = {}

    def arrived(self, number: int, rail: str, crc: U32 | None) -> None:
        """A slice is there."""
        one = self.cuts[number]
        self.missing[one.start : one.stop] -= 1
        self.rail_bytes[rail] = self.rail_bytes.get(rail, 0) + one.nbytes
        if crc is None:
            return
        if one.nbytes < self.transfer.lengths[one.start]:
            self._part_crcs[number] = int(crc[0])
        else:
            self.crc[one.start : one.stop] = crc

    def column(self) -> U32 | None:
        """The CRC-32C of each block; those of blocks sent in parts are put together."""
        if not self.transfer.checksum:
            return None
        for number, one in enumerate(self.cuts):
            if (part := self._part_crcs.get(number)) is not None:
                before = 0 if one.offset == 0 else int(self.crc[one.start])
                self.crc[one.start] = _core.crc32c_combine(before, part, one.nbytes)
        return self.crc

    def block_status(self, otherwise: BlockStatus) -> U8:
        """u8[n]: OK where all of a block arrived."""
        return np.where(self.missing == 0, BlockStatus.OK, otherwise).astype(np.uint8)

    def _cancel_posted(self) -> None:
        self._striper.cancel(self)


class Striper:
    """Ops over the rails of peers. submit() and cancel() from any thread; pump() from one at a
    time. `wake` is called, from any thread, when pump() has something to do."""

    def __init__(
        self,
        clock: Callable[[], float],
        seed: int,
        limits: RailLimits | None = None,
        wake: Callable[[], None] = lambda: None,
        name: str = "rails",
    ) -> None:
        self.scheduler = RailScheduler(seed, limits)
        self.name = name
        self._clock = clock
        self._wake = wake
        self._lock = threading.Lock()
        self._transports: dict[tuple[str, str], Transport] = {}
        self._fences: dict[tuple[str, str], Fence] = {}
        self._ops: dict[int, StripedOp] = {}
        self._attempts: dict[int, tuple[Op, Post]] = {}
        self._facts: deque[Callable[[], None]] = deque()
        self._to_fence: list[Callable[[], None]] = []

    def add_rail(
        self,
        peer: str,
        name: str,
        transport: Transport,
        prior: RailCost | None = None,
        fence: Fence | None = None,
    ) -> None:
        """`transport` carries slices to `peer` under this name. Raises BadInput for one taken."""
        with self._lock:
            self.scheduler.add_rail(peer, name, prior)
            self._transports[peer, name] = transport
            if fence is not None:
                self._fences[peer, name] = fence

    def look_at_rail(self, peer: str, name: str, why_lost: Callable[[], str]) -> None:
        """The rail was lost, or is there again: `why_lost()` says which, '' for there. It is asked
        when the news is taken in, so that news that overtake each other do no harm."""

        def look() -> None:
            if why := why_lost():
                self.scheduler.lose_rail(peer, name, why, self._clock())
            else:
                self.scheduler.regain_rail(peer, name, self._clock())

        self._tell(look)

    def forget(self, peer: str) -> None:
        """The peer was closed: its ops fail, its rails go."""
        self._tell(lambda: self._forget(peer))

    def submit(self, peer: str, transfer: Transfer, ranks: Ranks = None) -> StripedOp:
        """The op that moves `transfer` over the rails in `ranks`, by its priority; FAILED with
        TooManyOps when too much is open."""
        limits = self.scheduler.limits
        cuts = cut(transfer.lengths, limits.slice_bytes, limits.slice_blocks_max)
        op = StripedOp(transfer, self.name, self, cuts)
        sizes = [(one.stop - one.start, one.nbytes) for one in cuts]
        op.post()
        with self._lock:
            try:
                op.number = self.scheduler.submit(
                    peer, sizes, transfer.deadline_s, transfer.priority, ranks
                )
            except TooManyOps as full:
                op.settle(OpState.FAILED, error=full)
                return op
            except BadInput as none:
                # A peer all of whose rails are still being dialled, or that was closed meanwhile.
                op.settle(OpState.FAILED, error=Unreachable(str(none)))
                return op
            self._ops[op.number] = op
        self._wake()
        return op

    def cancel(self, op: StripedOp) -> None:
        """The op ends CANCELLED once its attempts are quiet."""
        self._tell(lambda: self.scheduler.cancel(op.number))

    def pump(self) -> float:
        """Takes in what happened and does what follows; returns when to come again if nothing
        happens (inf: never)."""
        while True:
            with self._lock:
                while self._facts:
                    self._facts.popleft()()
                step = self.scheduler.step(self._clock())
                wake_s = self.scheduler.wake_s()
                fences, self._to_fence = self._to_fence, []
            for fence in fences:
                fence()
            for ticket in step.drops:
                if (attempt := self._attempts.get(ticket)) is not None:
                    attempt[0].cancel()
            for ended in step.ended:
                self._end(ended)
            for post in step.posts:
                self._post(post)
            if not self._facts:
                return wake_s

    def views(self) -> list[RailView]:
        """All rails, for people."""
        with self._lock:
            return self.scheduler.views()

    def _forget(self, peer: str) -> None:
        self.scheduler.forget(peer)
        for key in [key for key in self._transports if key[0] == peer]:
            del self._transports[key]
            self._fences.pop(key, None)

    def _post(self, post: Post) -> None:
        op = self._ops[post.piece.op]
        transport = self._transports[post.peer, post.rail]
        attempt = transport.submit(part_of(op.transfer, op.cuts[post.piece.number]))
        self._attempts[post.ticket] = attempt, post
        attempt.add_done_callback(lambda over: self._tell(lambda: self._note(post.ticket, over)))

    def _note(self, ticket: int, attempt: Op) -> None:
        _, post = self._attempts.pop(ticket)
        op, now_s = self._ops[post.piece.op], self._clock()
        result = attempt.result
        if result.ok:
            op.arrived(post.piece.number, post.rail, result.crc)
            self.scheduler.done(ticket, now_s)
            return
        if result.state is not OpState.CANCELLED:
            op.last_error = result.error
        if result.state is OpState.EXPIRED:
            # Attempts have the op's own deadline, so this says nothing of the rail.
            self.scheduler.expire(post.piece.op)
        fault = isinstance(result.error, _RAIL_FAULTS)
        why = str(result.error)
        fence = self._fences.get((post.peer, post.rail))
        if fence is None or op.transfer.kind == "read" or not self.scheduler.wants(ticket):
            self.scheduler.failed(ticket, now_s, why, rail_fault=fault)
            return
        fenced = partial(self._fenced, ticket, why, fault)
        self._to_fence.append(
            lambda: fence(attempt, lambda quiet: self._tell(lambda: fenced(quiet)))
        )

    def _fenced(self, ticket: int, why: str, fault: bool, quiet: bool) -> None:
        if not quiet:
            why += "; what was sent may still arrive, so it was not sent again"
        self.scheduler.failed(ticket, self._clock(), why, rail_fault=fault, quiet=quiet)

    def _end(self, ended: Ended) -> None:
        op = self._ops.pop(ended.op)
        column = op.column()
        crc = None if column is None else known(column)
        if ended.ending is Ending.DONE:
            op.settle(OpState.DONE, crc=crc)
            return
        state, otherwise, error = _VERDICTS[ended.ending]
        status = op.block_status(otherwise)
        op.settle(state, status=status, crc=crc, error=error(op, ended.why))

    def _tell(self, fact: Callable[[], None]) -> None:
        self._facts.append(fact)
        self._wake()


def _failed(op: StripedOp, why: str) -> MoonpoolError:
    return op.last_error or Unreachable(why)


_VERDICTS: dict[Ending, tuple[OpState, BlockStatus, Callable[[StripedOp, str], MoonpoolError]]] = {
    Ending.FAILED: (OpState.FAILED, BlockStatus.UNREACHABLE, _failed),
    Ending.EXPIRED: (OpState.EXPIRED, BlockStatus.EXPIRED, lambda op, _: expired(op)),
    Ending.CANCELLED: (OpState.CANCELLED, BlockStatus.CANCELLED, lambda op, _: cancelled(op)),
}
