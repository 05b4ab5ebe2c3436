"""A stretch of network that a test can slow down, hold up, cut and mend: relays TCP connections to
one address. Bytes held up are kept and go on later, as they would in a switch.
"""

import socket
import threading
import time
from types import TracebackType
from typing import Self

from moonpool.core.address import parse_address

_PIECE = 64 << 10
_CALL_S = 1.0


class Proxy:
    """Listens on a free port of 127.0.0.1 and leads to `target`; a context manager.

    `bytes_per_s` holds for each direction of each connection. After `cut_at` bytes (both directions
    together) everything is cut, as by cut().
    """

    def __init__(self, target: str, *, bytes_per_s: float = 0.0, cut_at: int | None = None) -> None:
        self._target = parse_address(target)
        self.bytes_per_s = bytes_per_s
        self._cut_at = cut_at
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.carried = 0
        self._open = threading.Event()
        self._open.set()
        self._dead = False
        self._ended = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def hold(self) -> None:
        """Nothing goes on until release()."""
        self._open.clear()

    def release(self) -> None:
        """What was held goes on."""
        self._open.set()

    def cut(self) -> None:
        """Resets all connections and refuses new ones until mend()."""
        with self._lock:
            self._dead = True
            sockets, self._sockets = self._sockets, set()
        for sock in sockets:
            _reset(sock)

    def mend(self) -> None:
        """Lets new connections through again."""
        self._cut_at = None
        self._dead = False

    def lead_to(self, target: str) -> None:
        """Where new connections go from now on."""
        self._target = parse_address(target)

    def close(self) -> None:
        self._ended = True
        self.cut()
        self.release()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        self._listener.close()

    def _is_cut(self) -> bool:
        return self._dead

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                if self._is_cut():
                    raise ConnectionError
                where = self._target.host, self._target.port
                # A stopped process whose queue of calls is full answers none, and others call here.
                far = socket.create_connection(where, timeout=_CALL_S)
                far.settimeout(None)
            except (ConnectionError, TimeoutError):
                _reset(near)
                continue
            except OSError:
                if self._ended:
                    return
                raise
            with self._lock:
                late = self._is_cut()  # cut while this one was being made
                if not late:
                    self._sockets |= {near, far}
            if late:
                _reset(near)
                _reset(far)
                continue
            self._start(self._relay, near, far)
            self._start(self._relay, far, near)

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while piece := source.recv(_PIECE):
                self._open.wait()
                if self.bytes_per_s:
                    time.sleep(len(piece) / self.bytes_per_s)
                sink.sendall(piece)
                self.carried += len(piece)
                if self._cut_at is not None and self.carried >= self._cut_at:
                    self.cut()
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            # Cut: by us, or by one of the ends; the other has to see it, too.
            _reset(source)
            _reset(sink)

    def _start(self, what: object, *arguments: object) -> None:
        thread = threading.Thread(target=what, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _reset(sock: socket.socket) -> None:
    try:
        # Linger 0: the other end gets a reset, not an orderly end.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        # Not connected any more.
        pass
    sock.close()
