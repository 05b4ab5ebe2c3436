"""Keeps an eye on peers: a heartbeat to each of their addresses, on connections of their own, and
lost rails dialled again. One thread per engine, that never waits for anybody.

An address that does not answer is a rail that is cut. A peer of which none answers is held to hang:
its ops end, what it shares in memory can still be read, and it is dialled until it answers or is
known to be dead.
"""

import logging
import threading
import time
from typing import TYPE_CHECKING

from moonpool import _core
from moonpool.core.errors import DeadlineExceeded, MoonpoolError
from moonpool.transfer.dialing import Line, LineState, dial_beside
from moonpool.transfer.native_errors import NATIVE_ERRORS
from moonpool.transfer.pulse import Pulse, Verdict

if TYPE_CHECKING:
    from moonpool.transfer.engine import Engine
    from moonpool.transfer.peer import Peer

log = logging.getLogger("moonpool.transfer")

# How often rails are looked after when no heartbeat is due earlier.
_TEND_S = 0.2
# A peer that hangs is dialled at least so often, besides the time that a dial takes.
_REST_MAX_S = 1.0
# The deadline of a ping: its answer is looked for, not waited for.
_PING_MS = 3_600_000


class Heartbeat:
    """Of one address of a peer."""

    def __init__(self, engine: "Engine", peer: "Peer", address: str) -> None:
        self.peer = peer
        self.address = address
        self._engine = engine
        self._line = Line(address, _REST_MAX_S)
        self._ping: _core.Op | None = None
        self._pulse = Pulse(engine.heartbeat_s, engine.patience_s, 0.0)
        self._lock = threading.Lock()

    @property
    def connection(self) -> _core.Connection | None:
        """For fences."""
        return self._line.connection

    def beat(self, now_s: float) -> float:
        """Does what is due; returns when to come again."""
        with self._lock:
            line = self._line
            if line.dial(now_s) and (why := dial_beside(self._dial)):
                line.failed(why, now_s)
            if line.state is not LineState.UP:
                return now_s + _TEND_S
            ping = self._ping
            if ping is not None and ping.terminal:
                self._ping = None
                if ping.state == "DONE":
                    self._pulse.answered(now_s)
            if not line.up:
                line.lost("the connection was lost", now_s)
                return now_s
            verdict = self._pulse.look(now_s)
            if verdict is Verdict.ASK:
                self._ask()
            due_s = self._pulse.due_s(now_s)
        if verdict is Verdict.HANGS:
            self._hangs(now_s)
        return due_s

    def close(self) -> None:
        """Ends the connection."""
        if (connection := self._line.connection) is not None:
            connection.close()

    def _ask(self) -> None:
        connection = self._line.connection
        assert connection is not None
        try:
            self._ping = connection.ping(_PING_MS)
        except NATIVE_ERRORS:
            # The endpoint is closing; the next beat finds the connection lost.
            self._ping = None

    def _hangs(self, now_s: float) -> None:
        with self._lock:
            connection, self._ping = self._line.connection, None
            self._line.lost("no answer", now_s)
            self._line.due_s = now_s
        self._give_up()
        if connection is not None:
            connection.close()

    def _give_up(self) -> None:
        self.peer.fall_silent(self.address, f"no heartbeat within {self._engine.config.hang_ms} ms")

    def _dial(self) -> None:
        try:
            connection = self._engine.dial(self._line.address, self._engine.patience_s)
        except Exception as error:  # whatever it was: what nobody settles is never dialled again
            if isinstance(error, DeadlineExceeded):
                if self.address not in self.peer.silent:
                    # Somebody's kernel took the call, and nobody answered it.
                    self._give_up()
            elif isinstance(error, MoonpoolError):
                self.peer.speak(self.address)
            else:
                log.exception("dialling %s for a heartbeat", self.address)
            with self._lock:
                self._line.failed(str(error), time.monotonic())
            return
        with self._lock:
            now_s = time.monotonic()
            self._line.came(connection, now_s)
            self._pulse = Pulse(self._engine.heartbeat_s, self._engine.patience_s, now_s)
        self.peer.speak(self.address)
        if self.peer.closed:
            connection.close()


class Keeper:
    """Started by the engine with its first peer."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._hearts: dict[Peer, list[Heartbeat]] = {}
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, peer: "Peer") -> None:
        """From now on."""
        with self._wake:
            if self._closed:
                return
            self._hearts[peer] = []
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="moonpool-keeper", daemon=True
                )
                self._thread.start()
            self._wake.notify()

    def forget(self, peer: "Peer") -> None:
        """The peer was closed."""
        with self._wake:
            hearts = self._hearts.pop(peer, [])
        for heart in hearts:
            heart.close()

    def close(self) -> None:
        """Ends the thread."""
        with self._wake:
            self._closed = True
            thread = self._thread
            self._wake.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while not self._closed:
            now_s = time.monotonic()
            due_s = now_s + _TEND_S
            with self._wake:
                peers = list(self._hearts)
            for peer in peers:
                try:
                    peer.rails.tend(now_s)
                    for heart in self._hearts_of(peer):
                        due_s = min(due_s, heart.beat(now_s))
                except Exception:  # our bug with this one; without us nobody looks after the others
                    log.exception("looking after %s", peer.address)
            with self._wake:
                if not self._closed:
                    self._wake.wait(max(0.001, due_s - time.monotonic()))

    def _hearts_of(self, peer: "Peer") -> list[Heartbeat]:
        """One for each address; a peer that came back as another process may have others."""
        addresses = peer.addresses
        hearts = peer.hearts
        if not self._engine.heartbeat_s or peer.is_here:
            return []
        if [heart.address for heart in hearts] == addresses:
            return hearts
        known = {heart.address: heart for heart in hearts}
        now = [known.get(one) or Heartbeat(self._engine, peer, one) for one in addresses]
        with self._wake:
            if peer not in self._hearts:
                return []
            self._hearts[peer] = peer.hearts = now
        for heart in set(hearts).difference(now):
            heart.close()
        return now
