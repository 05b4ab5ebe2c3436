"""One rail of a peer as a connection: dialled, lost, dialled again with growing rests."""

import threading
from collections.abc import Callable
from enum import StrEnum

from moonpool import _core

FIRST_REST_S = 0.1
LONGEST_REST_S = 10.0
HELD_S = 1.0


def dial_beside(dial: Callable[[], None]) -> str:
    """Calls it in a thread of its own; why not, when there is none to be had."""
    try:
        threading.Thread(target=dial, name="moonpool-dial", daemon=True).start()
    except RuntimeError as error:
        return str(error)
    return ""


class LineState(StrEnum):
    """IDLE ─ due ─> DIALLING ─> UP ─ lost ─> IDLE; a failed dial goes back to IDLE and rests."""

    IDLE = "idle"
    DIALLING = "dialling"
    UP = "up"


class Line:
    """Pure but for the connection it holds: moments are arguments. Guarded by its owner."""

    def __init__(self, address: str, longest_rest_s: float = LONGEST_REST_S) -> None:
        self.address = address
        self._longest_rest_s = longest_rest_s
        self.connection: _core.Connection | None = None
        self.state = LineState.IDLE
        self.why = "not tried yet"
        self.due_s = 0.0
        self._rest_s = FIRST_REST_S
        self._came_s = 0.0

    @property
    def up(self) -> bool:
        """There is a connection, and nobody knows that it is lost."""
        return self.connection is not None and self.connection.alive

    def why_lost(self) -> str:
        """Why there is no connection, '' when there is one."""
        return "" if self.up else self.why or "the connection was lost"

    def dial(self, now_s: float) -> bool:
        """True if somebody has to dial now; what comes of it is told to came() or failed()."""
        if self.state is not LineState.IDLE or now_s < self.due_s:
            return False
        self.state = LineState.DIALLING
        return True

    def came(self, connection: _core.Connection, now_s: float) -> None:
        """The hello is done."""
        self.connection, self.state, self.why = connection, LineState.UP, ""
        self._came_s = now_s

    def failed(self, why: str, now_s: float) -> None:
        """The dial came to nothing."""
        self.state, self.why = LineState.IDLE, why
        self._rest(now_s)

    def lost(self, why: str, now_s: float) -> None:
        """The connection is gone; one that held for a while is dialled again soon."""
        if self.state is LineState.UP:
            self.state, self.why, self.connection = LineState.IDLE, why, None
            if now_s - self._came_s >= HELD_S:
                self._rest_s = FIRST_REST_S
            self._rest(now_s)

    def _rest(self, now_s: float) -> None:
        self.due_s = now_s + self._rest_s
        self._rest_s = min(2 * self._rest_s, self._longest_rest_s)
