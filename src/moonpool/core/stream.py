"""Frames over a blocking socket: what the sync client and the command line talk through.

Every call has a deadline; no wait spins. One thread at a time uses a stream. The kernel keeps the
time (SO_RCVTIMEO, SO_SNDTIMEO): a receive is one system call, where Python's timeouts poll first.
"""

import socket
import ssl
import struct
from contextlib import suppress

from moonpool.core.clock import Clock, Deadline, SystemClock
from moonpool.core.errors import Closed, DeadlineExceeded, Unreachable
from moonpool.core.tls import tls_error
from moonpool.core.wire import (
    HEADER_BYTES,
    MAX_FRAME,
    Frame,
    Header,
    Kind,
    check_payload,
    cut_short,
    decode_header,
    encode_frame,
    whole_message,
)

_READ_BYTES = 64 << 10
_TIMEVAL = struct.Struct("@ll")
_WAIT_MIN_S = 0.0005  # zero would mean for ever


class FrameStream:
    """Owns `sock`. A send that fails half-way, and every broken rule of the peer, closes it; a
    receive whose deadline passes does not, the rest of the frame is taken up by the next one."""

    def __init__(
        self, sock: socket.socket, clock: Clock | None = None, max_frame: int = MAX_FRAME
    ) -> None:
        self.max_frame = max_frame
        self._sock = sock
        self._clock = clock or SystemClock()
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0  # received and not yet taken: _buffer[_start:_end]
        self._header: Header | None = None
        self._closed = False
        self._wait_s = 0.0  # what the kernel was told; 0: nothing yet
        # TLS goes on by itself after the kernel's time is over: there Python keeps the time.
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._again: tuple[type[OSError], ...] = (BlockingIOError,)
        if self._tls:
            self._again = (BlockingIOError, TimeoutError)
        sock.settimeout(None)

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._sock.close()

    def interrupt(self) -> None:
        """From another thread: a receive that waits ends, with Unreachable."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def send(self, kind: Kind, payload: bytes, deadline: Deadline) -> None:
        """Send one frame. Raises BadFrame (too large; the stream stays usable), DeadlineExceeded,
        Unreachable, Closed."""
        frame = encode_frame(kind, payload, self.max_frame)
        self._arm(deadline, "send")
        try:
            sent = self._send_some(frame)
            while sent < len(frame):
                self._arm(deadline, "send: the peer did not take the frame in time")
                sent += self._send_some(memoryview(frame)[sent:])
        except DeadlineExceeded:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise tls_error("send: the connection broke", error) from error

    def recv(self, deadline: Deadline) -> Frame:
        """The next frame. Raises DeadlineExceeded (call again to go on waiting), Unreachable,
        BadFrame, ProtocolMismatch, Corrupt, Closed."""
        try:
            header = self._header
            if header is None and self._start == self._end and len(self._buffer) == _READ_BYTES:
                # Nothing is left over: mostly what comes now is one message, and all of it.
                self._start = self._end = 0
                self._receive(deadline)
                if (frame := whole_message(self._buffer, self._end, self.max_frame)) is not None:
                    self._start = self._end
                    return frame
            if header is None:
                self._fill(HEADER_BYTES, deadline)
                header = decode_header(self._buffer, self._start, self.max_frame)
                self._header = header
                self._start += HEADER_BYTES
            self._fill(header.length, deadline)
            stop = self._start + header.length
            payload = bytes(self._view[self._start : stop])
            self._start, self._header = stop, None
            return check_payload(header, payload)
        except (DeadlineExceeded, Closed):
            raise
        except Exception:
            self.close()
            raise

    def _send_some(self, data: bytes | memoryview) -> int:
        try:
            return self._sock.send(data)
        except self._again:
            return 0

    def _fill(self, wanted: int, deadline: Deadline) -> None:
        """Receive until `wanted` bytes (checked against max_frame) lie in the buffer."""
        if self._end - self._start >= wanted:
            return
        self._make_room(wanted)
        while self._end - self._start < wanted:
            self._receive(deadline)

    def _receive(self, deadline: Deadline) -> None:
        """Once, into what is free of the buffer; nothing when the kernel's time is over."""
        self._arm(deadline, "receive")
        try:
            got = self._sock.recv_into(self._view[self._end :] if self._end else self._buffer)
        except self._again:
            return
        except OSError as error:
            raise tls_error("receive: the connection broke", error) from error
        if got == 0:
            raise self._ended()
        self._end += got

    def _make_room(self, wanted: int) -> None:
        """Move what is unread to the front of a buffer that holds `wanted` bytes."""
        unread = self._buffer[self._start : self._end]
        if wanted > len(self._buffer) or len(self._buffer) > _READ_BYTES >= wanted:
            self._buffer = bytearray(max(wanted, _READ_BYTES))
            self._view = memoryview(self._buffer)
        self._view[: len(unread)] = unread
        self._start, self._end = 0, len(unread)

    def _ended(self) -> Unreachable:
        got = self._end - self._start + (HEADER_BYTES if self._header else 0)
        return (
            cut_short(got, self._header) if got else Unreachable("the peer closed the connection")
        )

    def _arm(self, deadline: Deadline, what: str) -> None:
        """Have the kernel end the next wait before the deadline. It is told anew only when what it
        was told last is too late, or so early that the waits would come in many pieces."""
        if self._closed:
            raise Closed(f"{what}: this connection was closed; connect again")
        left_s = deadline.at_s - self._clock.monotonic()
        if left_s <= 0:
            deadline.check(self._clock.monotonic(), what)  # raises
        if self._tls:
            self._sock.settimeout(max(left_s, _WAIT_MIN_S))
            return
        if not left_s * 0.8 <= self._wait_s <= left_s:
            self._wait_s = max(left_s * 0.95, _WAIT_MIN_S)
            wait = _TIMEVAL.pack(int(self._wait_s), int(self._wait_s % 1 * 1e6))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
