"""A client's way to a tier below memory: reads by frames, in pieces, proved at this end.

Nobody writes here: what lies on a tier is copied there by its node. Reads of one port share a few
connections; each asks and waits, so that calls to several ports overlap.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

import moonpool
from moonpool._core import ReadTimes, crc32c
from moonpool.core.address import parse_address
from moonpool.core.clock import Deadline, SystemClock
from moonpool.core.errors import BadFrame, TransferError
from moonpool.core.handshake import NONCE_BYTES, ClientHandshake
from moonpool.core.host import host_id
from moonpool.core.stream import FrameStream
from moonpool.core.wire import MESSAGE, Frame
from moonpool.pool.columns import u8, u32, u64
from moonpool.pool.link import encrypted
from moonpool.pool.messages_tier import (
    ANSWER_BYTES_MAX,
    BLOCKS_MAX,
    PIECE_BYTES_MAX,
    TierPieces,
    TierRead,
    decode,
    encode,
)
from moonpool.pool.ports import (
    AgentCall,
    Buffer,
    Finisher,
    Outcome,
    ReadCall,
    ReadRangeCall,
    Status,
    View,
    call_length,
    failed,
)
from moonpool.pool.timed_reads import note

IDLE_MAX = 4
CONNECT_S = 1.0


class _Piece(NamedTuple):
    """Bytes [offset, end) of block number `block`; `end` may lie beyond the object."""

    block: int
    offset: int
    end: int


class _Found(NamedTuple):
    status: int
    size: int
    crc: int


class TierPort:
    local = False

    def __init__(
        self,
        address: str,
        token: str,
        incarnation: bytes,
        node: str,
        medium: str = "disk",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self.kind = medium
        self.incarnation = incarnation
        self.node = node
        self._address = address
        self._token = token
        self._clock = SystemClock()
        self.read_times = ReadTimes()
        self._lock = threading.Lock()
        self._idle: list[FrameStream] = []
        self._closed = False

    def start(self, call: AgentCall, timeout_s: float) -> Finisher:
        """Reads only; anything else is REFUSED."""
        count = call_length(call)
        if not isinstance(call, ReadCall | ReadRangeCall):
            return lambda: failed(count, Status.REFUSED, "a tier below memory is only read")
        deadline = Deadline.after(self._clock.monotonic(), timeout_s)
        return _TierCall(lambda: self._read(call, deadline))

    def _read(self, call: ReadCall | ReadRangeCall, deadline: Deadline) -> Outcome:
        count, began = len(call.slots), self._clock.monotonic()
        try:
            stream = self._take(deadline)
        except (TransferError, OSError) as error:
            return failed(count, Status.UNREACHABLE, str(error))
        try:
            found = _Reading(call, stream, deadline).run()
        except (TransferError, ValueError, msgspec.MsgspecError) as error:
            stream.close()
            return failed(count, Status.UNREACHABLE, str(error))
        except BaseException:
            stream.close()
            raise
        self._give(stream)
        outcome = Outcome(
            np.array([one.status for one in found], np.uint8),
            call.slots,
            call.generations,
            np.array([one.crc for one in found], np.uint32),
            np.array([one.size for one in found], np.uint64),
        )
        note(self.read_times, outcome, self._clock.monotonic() - began)
        return outcome

    # Connections.

    def _take(self, deadline: Deadline) -> FrameStream:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        host, port, _ = parse_address(self._address)
        left = min(CONNECT_S, deadline.check(self._clock.monotonic(), "connect to a tier"))
        sock = socket.create_connection((host, port), timeout=left)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is not None:
            sock = encrypted(sock, self._tls, host, f"the tier at {self._address}")
        stream = FrameStream(sock, self._clock)
        handshake = ClientHandshake(
            self._token,
            "client",
            f"client-{os.getpid()}",
            moonpool.__version__,
            os.urandom(NONCE_BYTES),
            host_id(),
        )
        try:
            frame: Frame | None = handshake.start()
            while frame is not None:
                stream.send(frame.kind, frame.payload, deadline)
                frame = handshake.receive(stream.recv(deadline))
        except BaseException:
            stream.close()
            raise
        return stream

    def _give(self, stream: FrameStream) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_MAX:
                self._idle.append(stream)
                return
        stream.close()

    # What needs memory mapped here.

    def read_one(self, slot: int, generation: int, buffer: Buffer, verify: bool) -> int:
        return -1 - Status.BUSY

    def read_bytes(self, slot: int, generation: int, verify: bool) -> bytes | int:
        return -1 - Status.BUSY

    def pin(self, slot: int, generation: int, verify: bool) -> View | int:
        return -1 - Status.BUSY

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for stream in idle:
            stream.close()


class _TierCall:
    """A read that the thread makes which asks for its outcome, or one of its own."""

    def __init__(self, read: Callable[[], Outcome]) -> None:
        self._read = read
        self._thread: threading.Thread | None = None
        self._ended: Outcome | BaseException | None = None

    def begin(self) -> None:
        """In a thread of its own, so that others are waited for beside it."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._ended = self._read()
        except BaseException as error:  # it is the asker's
            self._ended = error

    def __call__(self) -> Outcome:
        if self._thread is None:
            return self._read()
        try:
            self._thread.join()
        except BaseException:
            self._thread.join()  # it has a deadline; the caller's memory is quiet then
            raise
        if isinstance(self._ended, Outcome):
            return self._ended
        assert self._ended is not None
        raise self._ended


class _Reading:
    """One call over one connection: pieces are asked for until every block is whole or over."""

    def __init__(
        self, call: ReadCall | ReadRangeCall, stream: FrameStream, deadline: Deadline
    ) -> None:
        self._call = call
        self._stream = stream
        self._deadline = deadline
        self._views = [memoryview(buffer).cast("B") for buffer in call.buffers]
        self._whole = isinstance(call, ReadCall)
        self._starts = [0] * len(call.slots) if self._whole else call.offsets.tolist()  # type: ignore[union-attr]
        self._found: list[_Found] = [_Found(Status.OK, 0, 0)] * len(call.slots)

    def run(self) -> list[_Found]:
        wanted = [
            _Piece(i, start, start + view.nbytes)
            for i, (start, view) in enumerate(zip(self._starts, self._views, strict=True))
        ]
        number = 0
        while wanted:
            now = wanted[: self._fitting(wanted)]
            number += 1
            rest = self._ask(number, now)
            wanted = rest + wanted[len(now) :]
        if self._whole and self._call.verify:  # type: ignore[union-attr]
            for i, one in enumerate(self._found):
                if one.status == Status.OK and crc32c(self._views[i][: one.size]) != one.crc:
                    self._found[i] = _Found(Status.CORRUPT, 0, 0)
        return self._found

    @staticmethod
    def _fitting(wanted: list[_Piece]) -> int:
        """How many of these one answer can hold."""
        total = 0
        for i, piece in enumerate(wanted[:BLOCKS_MAX]):
            total += min(piece.end - piece.offset, PIECE_BYTES_MAX)
            if total > ANSWER_BYTES_MAX:
                return i
        return min(len(wanted), BLOCKS_MAX)

    def _ask(self, number: int, pieces: list[_Piece]) -> list[_Piece]:
        """What is still to come of them."""
        at = np.array([piece.block for piece in pieces])
        lengths = [min(piece.end - piece.offset, PIECE_BYTES_MAX) for piece in pieces]
        message = TierRead(
            number,
            self._call.slots[at].tobytes(),
            self._call.generations[at].tobytes(),
            np.array([piece.offset for piece in pieces], np.uint64).tobytes(),
            np.array(lengths, np.uint64).tobytes(),
        )
        self._stream.send(MESSAGE, encode(message), self._deadline)
        answer = decode(self._stream.recv(self._deadline).payload)
        if not isinstance(answer, TierPieces) or answer.id != number:
            raise BadFrame(f"a tier answered {type(answer).__name__} out of turn")
        return self._take(pieces, answer)

    def _take(self, pieces: list[_Piece], answer: TierPieces) -> list[_Piece]:
        columns = zip(
            pieces,
            u8(answer.status).tolist(),
            u64(answer.size).tolist(),
            u32(answer.crc).tolist(),
            u64(answer.length).tolist(),
            strict=True,
        )
        rest: list[_Piece] = []
        raw, begin = memoryview(answer.pieces), 0
        for piece, status, size, crc, length in columns:
            one, begin = raw[begin : begin + length], begin + length
            view, start = self._views[piece.block], self._starts[piece.block]
            if status == Status.OK and not self._fits(piece, size, length):
                status = Status.BOUNDS
            if status != Status.OK:
                self._found[piece.block] = _Found(status, 0, 0)
                continue
            view[piece.offset - start : piece.offset - start + length] = one
            end = min(piece.end, size) if self._whole else piece.end
            shown = size if self._whole else view.nbytes
            self._found[piece.block] = _Found(status, shown, crc)
            if piece.offset + length < end:
                rest.append(_Piece(piece.block, piece.offset + length, end))
        return rest

    def _fits(self, piece: _Piece, size: int, length: int) -> bool:
        """The object is not larger than its buffer, the range lies in it, and it goes on."""
        if self._whole and size > self._views[piece.block].nbytes:
            return False
        if not self._whole and piece.end > size:
            return False
        end = min(piece.end, size)
        return length <= piece.end - piece.offset and (length > 0 or piece.offset >= end)
