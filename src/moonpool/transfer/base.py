"""The vocabulary of transfers: block lists, requests, statuses, results, and what a transport is.

An op moves blocks between one local and one remote segment. Its states:

    QUEUED ──> POSTED ──> DONE        every block arrived (and has its checksum)
       │          ├─────> FAILED      the error says why; `status` says which blocks arrived
       └──────────┼─────> CANCELLED   the caller gave up
                  └─────> EXPIRED     the deadline passed

A terminal state means quiet: no byte of the caller's memory is touched after it.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from moonpool.core.errors import (
    BadFrame,
    Cancelled,
    Corrupt,
    DeadlineExceeded,
    MoonpoolError,
    Refused,
    TooManyOps,
    TransferError,
    Unreachable,
)
from moonpool.core.status import BlockStatus as BlockStatus

if TYPE_CHECKING:
    from moonpool.transfer.file_segment import FileSegment
    from moonpool.transfer.op import Op
    from moonpool.transfer.segment import RemoteSegment, Segment
    from moonpool.transfer.vram_segment import VramSegment

U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]


STATUS_ERRORS: dict[int, type[TransferError]] = {
    BlockStatus.CORRUPT: Corrupt,
    BlockStatus.EXPIRED: DeadlineExceeded,
    BlockStatus.UNREACHABLE: Unreachable,
    BlockStatus.REFUSED: Refused,
    BlockStatus.BUSY: TooManyOps,
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
    return STATUS_ERRORS.get(status, TransferError)(text)


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
    """Byte ranges inside one segment: `offsets` u64[n] and `lengths` u64[n], both in bytes, and
    `nbytes`, the sum of the lengths.

    Destination blocks of one op must not overlap: the order in which blocks arrive is open.
    """

    offsets: U64
    lengths: U64
    nbytes: int


class Reuse:
    """Stands for lists that are posted again and again: `whole` is all of them. Transports may keep
    what they prepared for it as long as it lives."""

    __slots__ = ("__weakref__", "whole")

    def __init__(self, whole: "Transfer") -> None:
        self.whole = whole


class Transfer(NamedTuple):
    """One checked request: what a transport is asked to move.

    `remote` is a Segment, FileSegment or VramSegment of this process, or a peer's. Offsets and
    lengths are u64[n], in bytes, contiguous and inside both; `nbytes` sums the lengths.
    `deadline_s` is a moment on the engine's monotonic clock. Transports that let ops wait take the
    higher `priority` first, then the earlier deadline. With `reuse` it is one of many posts of the
    same lists: of all, or of those at `positions`. `notify` is what the engine tells the peer
    afterwards; to transports it means nothing.
    """

    kind: str  # "read" or "write"
    local: "Segment"
    local_offsets: U64
    remote: "RemoteSegment | Segment | FileSegment | VramSegment"
    remote_offsets: U64
    lengths: U64
    nbytes: int
    deadline_s: float
    checksum: bool
    priority: int = 0
    reuse: Reuse | None = None
    positions: NDArray[np.intp] | None = None
    notify: bytes | None = None


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


class Transport(Protocol):
    """One way to move bytes between two segments.

    `submit` never raises for things of the world: a dead peer or a lost mapping is the state of
    the op it returns. It never blocks on the peer.
    """

    @property
    def name(self) -> str:
        """local, shm, tcp, sim..."""
        ...

    def submit(self, transfer: Transfer) -> "Op":
        """Starts a checked transfer."""
        ...

    def close(self) -> None:
        """Ends all ops of this transport, then gives its resources back."""
        ...
