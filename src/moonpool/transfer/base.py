"""What all transports share: block lists, transfers, ops and the transport interface.

An op moves blocks between one local and one remote segment. Its states:

    QUEUED ──> POSTED ──> DONE        every block arrived (and has its checksum)
       │          ├─────> FAILED      the error says why; `status` says which blocks arrived
       └──────────┼─────> CANCELLED   the caller gave up
                  └─────> EXPIRED     the deadline passed

A terminal state means quiet: no byte of the caller's memory is touched after it.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from moonpool.core.errors import (
    BadFrame,
    Cancelled,
    Corrupt,
    DeadlineExceeded,
    MoonpoolError,
    Refused,
    TransferError,
    Unreachable,
)

if TYPE_CHECKING:
    from moonpool.transfer.segment import RemoteSegment, Segment

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

# How much longer than an op's deadline wait() looks for the transport's own verdict.
_VERDICT_GRACE_S = 1.0


class BlockStatus(IntEnum):
    """What became of one block; the same byte in native/status.hpp and on the wire."""

    OK = 0
    MOVED = 1
    CORRUPT = 2
    BOUNDS = 3
    NO_SPACE = 4
    NO_SLOT = 5
    STALE_TERM = 6
    EXPIRED = 7
    UNREACHABLE = 8
    REFUSED = 9
    CANCELLED = 10
    NOT_FOUND = 11
    TOO_BIG = 12
    BUSY = 13
    PROTOCOL = 14
    INTERNAL = 15


_STATUS_ERRORS: dict[int, type[TransferError]] = {
    BlockStatus.CORRUPT: Corrupt,
    BlockStatus.EXPIRED: DeadlineExceeded,
    BlockStatus.UNREACHABLE: Unreachable,
    BlockStatus.REFUSED: Refused,
    BlockStatus.CANCELLED: Cancelled,
    BlockStatus.PROTOCOL: BadFrame,
}


def status_name(status: int) -> str:
    """Name of a block status, 'status 77' for one this version does not know."""
    try:
        return BlockStatus(status).name
    except ValueError:
        return f"status {status}"


def error_from_status(status: int, text: str) -> TransferError:
    """The typed error for a block status."""
    return _STATUS_ERRORS.get(status, TransferError)(text)


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


class OpState(StrEnum):
    """Where an op stands; see the top of this file."""

    QUEUED = "QUEUED"
    POSTED = "POSTED"
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    EXPIRED = "EXPIRED"

    @property
    def terminal(self) -> bool:
        return self is not OpState.QUEUED and self is not OpState.POSTED


class Blocks(NamedTuple):
    """Byte ranges inside one segment: `offsets` u64[n] and `lengths` u64[n], both in bytes.

    Destination blocks of one op must not overlap: the order in which blocks arrive is open.
    """

    offsets: U64
    lengths: U64


class Transfer(NamedTuple):
    """One checked request: what a transport is asked to move.

    `remote` is a Segment for transfers inside one process. Offsets and lengths are u64[n], in
    bytes, contiguous and inside both segments; `nbytes` is the sum of the lengths. `deadline_s` is
    a moment on the engine's monotonic clock.
    """

    kind: str  # "read" or "write"
    local: "Segment"
    local_offsets: U64
    remote: "RemoteSegment | Segment"
    remote_offsets: U64
    lengths: U64
    nbytes: int
    deadline_s: float
    checksum: bool


class OpResult(NamedTuple):
    """What an op came to.

    `status` is u8[n] of BlockStatus; `crc` is u32[n], the CRC-32C of each block's destination
    bytes where `status` is OK, or None without checksum; `nbytes` counts the bytes of such blocks.
    """

    state: OpState
    nbytes: int
    status: U8
    crc: U32 | None
    transport: str
    error: MoonpoolError | None

    @property
    def ok(self) -> bool:
        return self.state is OpState.DONE

    @property
    def retryable(self) -> bool:
        return self.error is not None and self.error.retryable


# One lock for the state changes of all ops: they are short, and most ops never meet it twice.
_STATES = threading.Lock()


class Op:
    """A submitted transfer. Thread-safe; awaitable; `transport` names what carries it."""

    __slots__ = ("__weakref__", "_callbacks", "_result", "_state", "transfer", "transport")

    def __init__(self, transfer: Transfer, transport: str) -> None:
        self.transfer = transfer
        self.transport = transport
        self._state = OpState.QUEUED
        self._result: OpResult | None = None
        self._callbacks: list[Callable[[Op], None]] | None = None

    @property
    def state(self) -> OpState:
        return self._state

    def done(self) -> bool:
        """True once the state is terminal: the memory of both ends is the caller's again."""
        return self.state.terminal

    @property
    def result(self) -> OpResult:
        """The result of a terminal op, or how things stand (state QUEUED or POSTED)."""
        if self._result is not None:
            return self._result
        pending = np.full(len(self.transfer.lengths), BlockStatus.BUSY, dtype=np.uint8)
        return OpResult(self._state, 0, pending, None, self.transport, None)

    @property
    def error(self) -> MoonpoolError | None:
        return self.result.error

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
        return max(0.0, self.transfer.deadline_s - time.monotonic()) + _VERDICT_GRACE_S

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
        with _STATES:
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

    def post(self) -> bool:
        """For transports: the op begins; False when it is terminal already."""
        with _STATES:
            if self._state.terminal:
                return False
            self._state = OpState.POSTED
            return True

    def settle(
        self,
        state: OpState,
        *,
        status: U8 | None = None,
        crc: U32 | None = None,
        error: MoonpoolError | None = None,
        only_from: OpState | None = None,
    ) -> bool:
        """For transports: the one step into a terminal state; False when it was taken before.

        Without `status` every block has the one that goes with `state`. With `only_from` the step
        is made from that state alone.
        """
        assert state.terminal, state
        if status is None:
            uniform = _UNIFORM[state] if error is None else _status_of(state, error)
            status = np.full(len(self.transfer.lengths), uniform, dtype=np.uint8)
            nbytes = self.transfer.nbytes if state is OpState.DONE else 0
        elif state is OpState.DONE:
            nbytes = self.transfer.nbytes
        else:
            nbytes = int(self.transfer.lengths[status == BlockStatus.OK].sum())
        result = OpResult(state, nbytes, status, crc, self.transport, error)
        with _STATES:
            if self._state.terminal or (only_from is not None and self._state is not only_from):
                return False
            self._result = result
            self._state = state
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback(self)
        return True

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
    for status, kind in _STATUS_ERRORS.items():
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


class Transport(Protocol):
    """One way to move bytes between two segments.

    `submit` never raises for things of the world: a dead peer or a lost mapping is the state of
    the op it returns. It never blocks on the peer.
    """

    @property
    def name(self) -> str:
        """local, shm, tcp, sim..."""
        ...

    def submit(self, transfer: Transfer) -> Op:
        """Starts a checked transfer."""
        ...

    def close(self) -> None:
        """Ends all ops of this transport, then gives its resources back."""
        ...
