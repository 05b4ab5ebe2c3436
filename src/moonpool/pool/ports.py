"""How a client reaches one segment: calls in, outcomes out, over shared memory, TCP or in process.

A port never decides anything: it carries a call to one agent and says, per block, what became of
it. `start` submits and returns a finisher, so that calls to several segments overlap.

    writer's memory    before claim     after claim          after seal
    extents            agent            this writer          the object (readers)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from moonpool.core.status import BlockStatus

if TYPE_CHECKING:
    from moonpool._core import PutBatch, ReadTimes

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
Buffer = Any  # anything with the buffer protocol; typing has no name for it before 3.12

# One claim, little endian, 48 bytes; the blob beside it holds key and parent of each, back to back.
CLAIM_DTYPE = np.dtype(
    [
        ("size", "<u8"),
        ("term", "<u8"),
        ("sequence", "<u8"),
        ("expiry_ms", "<i8"),
        ("tenant", "<u4"),
        ("key_len", "<u2"),
        ("parent_len", "<u2"),
        ("replicas", "u1"),
        ("pin", "u1"),
        ("flags", "<u2"),
        ("last_used", "<u4"),
    ]
)


Status = BlockStatus


BELOW = ("vram", "disk", "remote")  # kinds of ports to tiers below memory, fastest first


class PutCall(msgspec.Struct, frozen=True):
    """Claim, write and seal n objects. `records` CLAIM_DTYPE[n], `sources` n readable buffers."""

    records: npt.NDArray[np.void]
    blob: bytes
    term: int
    sources: Sequence[Buffer]
    nbytes: int  # of all sources


class BatchPutCall(msgspec.Struct, frozen=True):
    """The same of a batch that was laid out beforehand; `sequences` u64[n] as they came."""

    batch: PutBatch
    sequences: bytes
    term: int
    sources: Sequence[Buffer]
    nbytes: int  # of all sources

    def written_out(self) -> PutCall:
        records, blob = self.batch.claims(self.term, np.frombuffer(self.sequences, np.uint64))
        claims = np.frombuffer(records, CLAIM_DTYPE)
        return PutCall(claims, blob, self.term, self.sources, self.nbytes)


class ReadCall(msgspec.Struct, frozen=True):
    """Copy n whole objects into n writable buffers."""

    slots: U32
    generations: U64
    buffers: Sequence[Buffer]
    verify: bool


class ClaimCall(msgspec.Struct, frozen=True):
    records: npt.NDArray[np.void]
    blob: bytes
    term: int


class WriteRangeCall(msgspec.Struct, frozen=True):
    """Write `sources[i]` at `offsets[i]` of claimed object i."""

    slots: U32
    generations: U64
    offsets: U64
    sources: Sequence[Buffer]


class ReadRangeCall(msgspec.Struct, frozen=True):
    """Fill `buffers[i]` from `offsets[i]` of sealed object i (generation checked, no CRC)."""

    slots: U32
    generations: U64
    offsets: U64
    buffers: Sequence[Buffer]


class GatherCall(msgspec.Struct, frozen=True):
    """Fill `buffer` with rows of `row_bytes` out of sealed objects. Object u holds positions
    u * unit_tokens up to the next object's, layer by layer: `offsets[u]` is where its layer 0
    begins, `strides[u]` lies between layers. Layer `layers[i]` wants the next `counts[i]` of
    `positions`; the outcome has a status for each layer. Generation checked, no stored CRC."""

    slots: U32
    generations: U64
    offsets: U64
    strides: U64
    row_bytes: int
    unit_tokens: int
    layers: U32
    counts: U32
    positions: U32
    buffer: Buffer


class SealCall(msgspec.Struct, frozen=True):
    """Seal claimed objects; the CRC is computed where the bytes lie."""

    slots: U32
    generations: U64
    term: int


class AbortCall(msgspec.Struct, frozen=True):
    slots: U32
    generations: U64


AgentCall = (
    PutCall
    | BatchPutCall
    | ReadCall
    | ClaimCall
    | WriteRangeCall
    | ReadRangeCall
    | GatherCall
    | SealCall
    | AbortCall
)


class Outcome(msgspec.Struct, frozen=True):
    """Per-block `status` u8[n] of Status; the other columns where the call has them. `sealed` are
    the CRCs, slots and generations of a put that went well for all of its blocks, as they travel;
    those columns are empty then."""

    status: U8
    slots: U32 = msgspec.field(default_factory=lambda: np.zeros(0, np.uint32))
    generations: U64 = msgspec.field(default_factory=lambda: np.zeros(0, np.uint64))
    crcs: U32 = msgspec.field(default_factory=lambda: np.zeros(0, np.uint32))
    sizes: U64 = msgspec.field(default_factory=lambda: np.zeros(0, np.uint64))
    text: str = ""
    sealed: tuple[bytes, bytes, bytes] | None = None


_NO_U8, _NO_U32, _NO_U64 = np.zeros(0, np.uint8), np.zeros(0, np.uint32), np.zeros(0, np.uint64)


def all_ok(count: int) -> Outcome:
    """Nothing but that it went well for all blocks: of a call that brings no other column."""
    return Outcome(np.zeros(count, np.uint8), _NO_U32, _NO_U64, _NO_U32, _NO_U64)


def all_sealed(columns: tuple[bytes, bytes, bytes]) -> Outcome:
    return Outcome(_NO_U8, _NO_U32, _NO_U64, _NO_U32, _NO_U64, "", columns)


def failed(count: int, status: Status, text: str = "") -> Outcome:
    """The same bad news for every block of a call."""
    return Outcome(
        np.full(count, status, np.uint8),
        np.zeros(count, np.uint32),
        np.zeros(count, np.uint64),
        np.zeros(count, np.uint32),
        np.zeros(count, np.uint64),
        text,
    )


def call_length(call: AgentCall) -> int:
    match call:
        case PutCall() | ClaimCall():
            return len(call.records)
        case GatherCall():
            return len(call.layers)
        case BatchPutCall():
            return len(call.batch)
        case _:
            return len(call.slots)


class View(Protocol):
    """A pinned, read-only window on an object in shared memory (buffer protocol)."""

    @property
    def crc(self) -> int: ...

    def release(self) -> None: ...


Finisher = Callable[[], Outcome]


def finish_all(finishers: Sequence[Finisher]) -> list[Outcome]:
    """Their outcomes. What only a thread can carry on (`begin`: reads of tiers) has one of its own
    where others are waited for beside it, and is waited for last: one that hangs until the deadline
    costs the others nothing."""
    if len(finishers) == 1:
        return [finishers[0]()]
    outcomes: dict[int, Outcome] = {}
    apart = {i: one for i, one in enumerate(finishers) if isinstance(one, ApartCall)}
    for one in apart.values():
        one.begin()
    for i, finisher in enumerate(finishers):
        if i not in apart:
            outcomes[i] = finisher()
    for i, one in apart.items():
        outcomes[i] = one()
    return [outcomes[i] for i in range(len(finishers))]


@runtime_checkable
class ApartCall(Protocol):
    """A finisher of a call that goes on only while it is waited for, unless it is begun."""

    def __call__(self) -> Outcome: ...

    def begin(self) -> None:
        """Go on by itself from now on."""


@runtime_checkable
class AwaitedCall(Protocol):
    """A finisher of a call that goes on by itself, so that others can be waited for beside it."""

    def __call__(self) -> Outcome: ...

    def wait(self, seconds: float) -> bool:
        """Whether it is over; sleeps for up to `seconds` until it is."""

    def cancel(self) -> None:
        """Ask for its end; the finisher returns once its buffers are quiet."""


class Port(Protocol):
    """One client's way to one segment. Implementations: shm (also in process), tcp."""

    @property
    def incarnation(self) -> bytes: ...

    @property
    def node(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def local(self) -> bool:
        """Same host: reads cost no RPC."""

    @property
    def read_times(self) -> ReadTimes:
        """Of calls that brought something."""

    def start(self, call: AgentCall, timeout_s: float) -> Finisher: ...

    def read_one(self, slot: int, generation: int, buffer: Buffer, verify: bool) -> int:
        """Size read, or -1 - Status. Never blocks; -1 - BUSY where the port has no such path."""

    def read_bytes(self, slot: int, generation: int, verify: bool) -> bytes | int: ...

    def pin(self, slot: int, generation: int, verify: bool) -> View | int: ...

    def close(self) -> None: ...
