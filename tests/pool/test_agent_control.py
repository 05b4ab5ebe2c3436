"""The connection to an agent that several threads share."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from moonpool._core import Connection
from moonpool.pool.agent_control import ConnectionControl


class FakeConnection:
    """`looked_at` runs while somebody asks whether it is alive."""

    def __init__(self, looked_at: Callable[[], object] = lambda: None) -> None:
        self.open = True
        self._looked_at = looked_at

    @property
    def alive(self) -> bool:
        alive, looked_at = self.open, self._looked_at
        self._looked_at = lambda: None
        looked_at()
        return alive

    def close(self) -> None:
        self.open = False


def test_a_thread_that_finds_a_dead_connection_does_not_close_the_next_one() -> None:
    others: list[Connection] = []
    dead = FakeConnection(looked_at=lambda: others.append(control.connection(1.0)))
    opened = [dead, FakeConnection(), FakeConnection()]
    left = iter(opened)
    control = ConnectionControl(lambda timeout_s: cast(Connection, next(left)), bytes(16))
    assert control.connection(1.0) is cast(Connection, dead)
    dead.close()
    mine = control.connection(1.0)
    assert mine.alive and [other.alive for other in others] == [True]
