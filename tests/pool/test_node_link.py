"""A segment's links to its masters: one that hangs takes nothing from the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from moonpool.core.clock import ManualClock
from moonpool.core.node_section import NodeConfig
from moonpool.core.sections import MasterConfig
from moonpool.pool import messages as m
from moonpool.pool.link import PAUSE_BYTES, UNSENT_MAX, AsyncLink
from moonpool.pool.master import MasterServer
from moonpool.pool.node_link import SILENCE_S, Follower
from moonpool.pool.node_masters import Tell

NEWS = m.Retire(1, 0, 1, b"", b"")  # any message


class Machine:
    """One that has obeyed the master of link 1, and was told something by it at `heard_at`."""

    heard_at = 0.0
    adopted = False
    renewed = False

    def readable(self, boottime_ns: int) -> bool:
        return self.adopted and self.renewed


class Masters:
    """Link 1 is obeyed, link 2 stands by. Each tick has news for both, once."""

    obeyed = 1

    def pending(self, link: int) -> bool:
        return False

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


async def test_a_master_that_does_not_read_is_left() -> None:
    """What it is told is kept here until it takes it: there is an end to that."""
    server = MasterServer(MasterConfig(port=0))
    link = await AsyncLink.connect(await server.start(), "", "n", "node")
    for connection in server._sessions.values():
        assert connection._transport is not None
        connection._transport.pause_reading()
    big = m.Retire(1, 0, 1, bytes(16 << 20), b"")
    told = 0
    while not link.closed:
        link.tell(big)
        told += 1
        assert told * (16 << 20) < 2 * UNSENT_MAX
    await link.lost
    await link.writable()  # nobody waits for what is lost
    await server.stop()


async def test_an_inventory_waits_for_a_master_that_reads_slowly() -> None:
    server = MasterServer(MasterConfig(port=0))
    link = await AsyncLink.connect(await server.start(), "", "n", "node")
    (connection,) = server._sessions.values()
    assert connection._transport is not None
    connection._transport.pause_reading()
    link.tell(m.Retire(1, 0, 1, bytes(2 * PAUSE_BYTES), b""))
    link.tell(m.Retire(1, 0, 1, bytes(2 * PAUSE_BYTES), b""))
    waiting = asyncio.ensure_future(link.writable())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    connection._transport.resume_reading()
    await waiting
    link.close()
    await link.lost
    await server.stop()


class Telling(Masters):
    """A tick finds, without a word of the master, that all is to be told anew."""

    obeyed = 0

    def __init__(self, stop: Callable[[], None]) -> None:
        self.left = 3
        self._stop = stop

    def connected(self, link: int, now: float, version: int) -> list[Tell]:
        return []

    def disconnected(self, link: int) -> None:
        pass

    def tick(self, now: float, boottime_ns: int) -> list[Tell]:
        return []

    def next_deadline(self) -> float:
        return 0.0

    def pending(self, link: int) -> bool:
        return self.left > 0

    def chunk(self, link: int) -> Tell:
        self.left -= 1
        if not self.left:
            self._stop()
        return Tell(link, cast(Any, NEWS))


async def test_an_inventory_is_told_when_it_is_due_not_when_the_master_speaks() -> None:
    server = MasterServer(MasterConfig(port=0))
    config = NodeConfig(name="n", master=await server.start())
    follower = Follower(config, "n", cast(Any, Machine()), ManualClock(), lambda *_: None)
    masters = Telling(follower.stop)
    follower.masters = cast(Any, masters)
    await asyncio.wait_for(follower.run(), 60)
    assert masters.left == 0
    await server.stop()


async def test_a_node_says_that_it_is_ready_when_what_it_holds_can_be_read() -> None:
    server = MasterServer(MasterConfig(port=0))
    config = NodeConfig(name="n", master=await server.start())
    machine = Machine()
    follower = Follower(config, "n", cast(Any, machine), ManualClock(), lambda *_: None)
    masters = Telling(follower.stop)
    masters.left = 0
    follower.masters = cast(Any, masters)
    said: list[bool] = []
    running = asyncio.ensure_future(follower.run(lambda: said.append(machine.adopted)))
    for adopted in (False, True):  # adopted is not enough: no lease, so nobody could read
        machine.adopted = adopted
        for _ in range(20):  # others have their turn meanwhile
            await asyncio.sleep(0.01)
        assert said == []
    machine.renewed = True
    async with asyncio.timeout(60):
        while not said:
            await asyncio.sleep(0.01)
    follower.stop()
    await running
    assert said == [True]
    await server.stop()
