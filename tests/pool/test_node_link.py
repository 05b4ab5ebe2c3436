"""A segment's links to its masters: one that hangs takes nothing from the others."""

from __future__ import annotations

from typing import Any, cast

import pytest

from moonpool.core.clock import ManualClock
from moonpool.core.node_section import NodeConfig
from moonpool.core.sections import MasterConfig
from moonpool.pool import messages as m
from moonpool.pool.link import AsyncLink
from moonpool.pool.master import MasterServer
from moonpool.pool.node_link import SILENCE_S, Follower
from moonpool.pool.node_masters import Tell

NEWS = m.Retire(1, 0, 1, b"", b"")  # any message


class Machine:
    """One that has obeyed the master of link 1, and was told something by it at `heard_at`."""

    heard_at = 0.0


class Masters:
    """Link 1 is obeyed, link 2 stands by. Each tick has news for both, once."""

    obeyed = 1

    def tick(self, now: float, boottime_ns: int) -> list[Tell]:
        return [Tell(1, cast(Any, NEWS)), Tell(2, cast(Any, NEWS))]


class Link:
    """What is told over it is kept."""

    def __init__(self) -> None:
        self.closed = False
        self.told: list[Any] = []

    def tell(self, message: Any) -> None:
        self.told.append(message)

    def abort(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("silent_s", "cut"), [(SILENCE_S, False), (SILENCE_S + 0.1, True)])
def test_who_stands_by_is_told_also_when_the_obeyed_master_is_silent(
    silent_s: float, cut: bool
) -> None:
    clock = ManualClock()
    follower = Follower(NodeConfig(name="n"), "n", cast(Any, Machine()), clock, lambda *_: None)
    follower.masters = cast(Any, Masters())
    obeyed, other = Link(), Link()
    follower._links = cast(Any, {1: obeyed, 2: other})
    clock.advance(silent_s)
    follower._tick()
    assert obeyed.closed is cut
    assert len(obeyed.told) == (0 if cut else 1)
    assert len(other.told) == 1
    follower._tick()
    assert len(other.told) == 2


async def test_a_link_that_closes_is_closed() -> None:
    """Or who looks before telling would be refused by it."""
    server = MasterServer(MasterConfig(port=0))
    link = await AsyncLink.connect(await server.start(), "", "c")
    closed = [link.closed]
    link.close()
    closed.append(link.closed)
    assert closed == [False, True] and not link.lost.done()
    await link.lost
    assert link.closed
    await server.stop()


async def test_a_follower_whose_ticks_end_ends_and_says_why() -> None:
    class Broken(Masters):
        def tick(self, now: float, boottime_ns: int) -> list[Tell]:
            raise ValueError("this tick went wrong")

    config = NodeConfig(name="n", master="127.0.0.1:1")  # nobody is there
    follower = Follower(config, "n", cast(Any, Machine()), ManualClock(), lambda *_: None)
    follower.masters = cast(Any, Broken())
    with pytest.raises(ValueError, match="went wrong"):
        await follower.run()
