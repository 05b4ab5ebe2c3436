"""The op: one submitted transfer, its state machine, waiting, and the one place where it ends."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np

from moonpool._core import crc32c
from moonpool.core.errors import Cancelled, DeadlineExceeded, MoonpoolError, TransferError
from moonpool.transfer.base import (
    STATUS_ERRORS,
    U8,
    U32,
    BlockStatus,
    OpResult,
    OpState,
    Transfer,
)

# How much longer than an op's deadline wait() looks for the transport's own verdict.
VERDICT_GRACE_MS = 1000

# Looking a member up in its enum costs more than the rest of a state change.
_QUEUED, _POSTED, _DONE = OpState.QUEUED, OpState.POSTED, OpState.DONE
_OK = BlockStatus.OK


def cancelled(op: "Op") -> Cancelled:
    """The error of an op its caller gave up."""
    return Cancelled(f"{op.transfer.kind} over {op.transport}: cancelled by the caller")


def expired(op: "Op") -> DeadlineExceeded:
    """The error of an op whose deadline passed."""
    transfer = op.transfer
    return DeadlineExceeded(
        f"{transfer.kind} of {transfer.nbytes} bytes over {op.transport}: the deadline passed; "
        f"give a longer one or look whether the peer hangs"
    )


class Tally:
    """Counts of ops by transport and state, and of bytes moved; guarded by the lock below."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}

    def add(self, transport: str, state: OpState, nbytes: int) -> None:
        counts = self._counts.get(transport)
        if counts is None:
            counts = self._counts[transport] = {"bytes": 0}
        counts[state._value_] = counts.get(state._value_, 0) + 1
        counts["bytes"] += nbytes

    def snapshot(self) -> dict[str, dict[str, int]]:
        """{transport: {"bytes": n, "DONE": n, ...}}, a copy."""
        with STATES:
            return {name: dict(counts) for name, counts in self._counts.items()}


# One lock for the state changes of all ops: they are short, and most ops never meet it twice.
STATES = threading.Lock()


def known(column: U32) -> Callable[[], U32]:
    """A CRC column that is there already, for settle()."""
    return lambda: column


def local_crcs(transfer: Transfer) -> U32:
    """u32[blocks]: CRC-32C of each block at our end: what a read brought, what a write sent."""
    array, starts, lengths = transfer.local.array, transfer.local_offsets, transfer.lengths
    blocks = zip(starts.tolist(), lengths.tolist(), strict=True)
    return np.array([crc32c(array[at : at + length]) for at, length in blocks], np.uint32)


class _End(NamedTuple):
    """What settle() was told."""

    nbytes: int
    status: U8 | None
    crc: Callable[[], U32] | None
    error: MoonpoolError | None


class Op:
    """A submitted transfer. Thread-safe; awaitable; `transport` names what carries it."""

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_deadline_s",
        "_end",
        "_nbytes",
        "_result",
        "_state",
        "_tally",
        "_transfer",
        "transport",
    )

    def __init__(self, transfer: Transfer, transport: str) -> None:
        self._transfer = transfer
        self.transport = transport
        self._deadline_s = transfer.deadline_s
        self._nbytes = transfer.nbytes
        self._state = _QUEUED
        self._end: _End | None = None
        self._result: OpResult | None = None
        self._callbacks: list[Callable[[Op], None]] | None = None
        self._tally: Tally | None = None

    @property
    def transfer(self) -> Transfer:
        """What was asked for."""
        return self._transfer

    @property
    def state(self) -> OpState:
        state = self._state
        if state is _QUEUED or state is _POSTED:
            self._poll()
        return self._state

    @property
    def last_state(self) -> OpState:
        """The state when somebody last looked. Looking itself may cost the transport a waking."""
        return self._state

    def _poll(self) -> None:
        """For transports whose ops end elsewhere: looks, and settles."""

    def done(self) -> bool:
        """True once the state is terminal: the memory of both ends is the caller's again."""
        state = self.state
        return state is not _QUEUED and state is not _POSTED

    @property
    def result(self) -> OpResult:
        """The result of a terminal op, or how things stand (state QUEUED or POSTED)."""
        if self._result is None:
            self._result = self._made_result() if self.done() else None
        if self._result is not None:
            return self._result
        pending = np.full(len(self.transfer.lengths), BlockStatus.BUSY, dtype=np.uint8)
        return OpResult(self._state, 0, pending, None, self.transport, None)

    def _made_result(self) -> OpResult:
        # Most callers look at the state alone, so columns are made for those who look further.
        end = self._end
        assert end is not None
        status = end.status
        if status is None:
            uniform = _UNIFORM[self._state]
            if end.error is not None:
                uniform = _status_of(self._state, end.error)
            status = np.zeros(len(self.transfer.lengths), dtype=np.uint8)  # a third of full's time
            if uniform is not _OK:
                status[:] = uniform
        crc = end.crc() if end.crc is not None else None
        return OpResult(self._state, end.nbytes, status, crc, self.transport, end.error)

    @property
    def error(self) -> MoonpoolError | None:
        """Why a terminal op is not DONE."""
        return self._end.error if self.done() and self._end is not None else None

    def check(self) -> OpResult:
        """The result of a DONE op; raises the op's error otherwise."""
        result = self.result
        if result.error is not None:
            raise result.error
        if not result.ok:
            raise TransferError(f"op is {result.state} still; wait for it before check()")
        return result

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks without spinning until the op is terminal; False when `timeout` seconds pass.

        Without a timeout it waits for the op's own deadline, which every op has.
        """
        if self.done():
            return True
        limit_s = self._wait_limit_s() if timeout is None else max(0.0, timeout)
        gate = threading.Lock()
        gate.acquire()
        self.add_done_callback(lambda _: gate.release())
        gate.acquire(timeout=limit_s)
        return self.done()

    def _wait_limit_s(self) -> float:
        return max(0.0, self._deadline_s - time.monotonic()) + VERDICT_GRACE_MS / 1000

    def cancel(self) -> bool:
        """Asks the transport to stop; False when the op was terminal already.

        The op is quiet once its state says so, not when this call returns.
        """
        if self.settle(OpState.CANCELLED, error=cancelled(self), only_from=OpState.QUEUED):
            return True
        if self.done():
            return False
        self._cancel_posted()
        return True

    def _cancel_posted(self) -> None:
        """For transports: stops what runs, then settles."""

    def add_done_callback(self, callback: "Callable[[Op], None]") -> None:
        """Calls `callback(op)` once the op is terminal, at once if it is; from any thread."""
        with STATES:
            if not self._state.terminal:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback(self)

    def __await__(self) -> "Generator[Any, None, OpResult]":
        """Waits inside asyncio; a cancelled waiter cancels the op."""
        if not self.done():
            loop = asyncio.get_running_loop()
            arrived: asyncio.Future[None] = loop.create_future()
            self.add_done_callback(lambda _: _wake(loop, arrived))
            try:
                yield from arrived
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result

    def count_in(self, tally: "Tally") -> None:
        """For the engine: adds the result to `tally`, now or when there is one."""
        with STATES:
            self._tally = tally
            if self._end is not None:
                tally.add(self.transport, self._state, self._end.nbytes)

    def post(self) -> bool:
        """For transports: the op begins; False when it is terminal already."""
        with STATES:
            if self._state.terminal:
                return False
            self._state = _POSTED
            return True

    def settle(
        self,
        state: OpState,
        *,
        status: U8 | None = None,
        crc: Callable[[], U32] | None = None,
        error: MoonpoolError | None = None,
        only_from: OpState | None = None,
    ) -> bool:
        """For transports: the one step into a terminal state; False when it was taken before.

        Without `status` every block has the one that goes with `state`. `crc` makes the column
        when it is asked for. With `only_from` the step is made from that state alone.
        """
        if state is _DONE:
            nbytes = self._nbytes
        elif status is None:
            nbytes = 0
        else:
            nbytes = int(self.transfer.lengths[status == BlockStatus.OK].sum())
        with STATES:
            if self._state.terminal or (only_from is not None and self._state is not only_from):
                return False
            self._end = _End(nbytes, status, crc, error)
            self._state = state
            if self._tally is not None:
                self._tally.add(self.transport, state, nbytes)
            callbacks, self._callbacks = self._callbacks, None
        if callbacks:
            self._call(callbacks)
        return True

    def _call(self, callbacks: list[Callable[["Op"], None]]) -> None:
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                # The listener's own failure: the op has ended, and others listen too.
                sys.excepthook(*sys.exc_info())

    def __repr__(self) -> str:
        transfer = self.transfer
        blocks = len(transfer.lengths)
        return (
            f"<Op {transfer.kind} {blocks} blocks, {transfer.nbytes} bytes, {self.transport}: "
            f"{self.state}>"
        )


_UNIFORM = {
    OpState.DONE: BlockStatus.OK,
    OpState.FAILED: BlockStatus.INTERNAL,
    OpState.CANCELLED: BlockStatus.CANCELLED,
    OpState.EXPIRED: BlockStatus.EXPIRED,
}


def _status_of(state: OpState, error: MoonpoolError) -> BlockStatus:
    for status, kind in STATUS_ERRORS.items():
        if isinstance(error, kind):
            return BlockStatus(status)
    return _UNIFORM[state]


def _wake(loop: asyncio.AbstractEventLoop, arrived: "asyncio.Future[None]") -> None:
    def set_result() -> None:
        if not arrived.done():
            arrived.set_result(None)

    try:
        loop.call_soon_threadsafe(set_result)
    except RuntimeError:
        # The loop was closed while the op ran; nobody is left to hear of it.
        return
