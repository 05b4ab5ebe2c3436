"""How a client finds the master that leads, over a real etcd; and what it does without one."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from moonpool.bench.etcd_server import EtcdServers
from moonpool.core.clock import Deadline, SystemClock
from moonpool.core.errors import Closed, DeadlineExceeded, Unreachable
from moonpool.core.etcd import EtcdChange
from moonpool.core.sections import ClientConfig
from moonpool.pool.aio_shell import AsyncShell
from moonpool.pool.ha_election import LeaderRecord
from moonpool.pool.ha_registry import Registry
from moonpool.pool.leader import ASKED_S, LeaderFinder
from moonpool.pool.link import CONNECT_S
from moonpool.pool.shell import BlockingShell

LONG_S = 60.0


def lead(registry: Registry, address: str) -> None:
    seen = registry.read()
    assert registry.claim(seen, LeaderRecord(1, address, "i"), [])


def test_who_led_last_is_asked_while_etcd_is_away() -> None:
    with EtcdServers() as servers:
        registry = Registry(servers.url("p"))
        lead(registry, "a:1")
        finder = LeaderFinder(servers.url("p"))
        assert finder.address() == "a:1"
        finder.wrong("a:1")
        servers.kill(0)
        assert finder.address() == "a:1"
        servers.restart(0)
        registry.close()
        finder.close()


def test_who_was_found_wrong_is_asked_of_etcd_again(etcd: str) -> None:
    registry = Registry(etcd)
    lead(registry, "a:1")
    finder = LeaderFinder(etcd)
    assert finder.address() == "a:1"
    lead(registry, "b:2")
    assert finder.address() == "a:1"  # nobody doubts it, nobody watches
    finder.wrong("a:1")
    assert finder.address() == "b:2"
    registry.close()
    finder.close()


def test_a_change_between_the_read_and_the_watch_is_told(
    etcd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(etcd)
    lead(registry, "a:1")
    told: queue.Queue[str] = queue.Queue()
    finder = LeaderFinder(etcd, told.put)
    assert finder._registry is not None
    watch = finder._registry.client.watch

    def late(key: str, revision: int = 0, silence_s: float = 0.0) -> Iterator[EtcdChange]:
        if finder._address == "a:1":
            lead(registry, "b:2")  # the finder has read, and does not watch yet
        return watch(key, revision=revision, silence_s=silence_s)

    monkeypatch.setattr(finder._registry.client, "watch", late)
    assert finder.address() == "a:1"
    assert told.get(timeout=LONG_S) == "b:2"
    finder.close()
    registry.close()


class Mute:
    """Takes connections and says nothing, like a process that was stopped."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._stack = ExitStack()
        self._over = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            self._stack.enter_context(sock)
            if self._over:
                return

    def close(self) -> None:
        self._over = True
        host, port = self.address.split(":")
        socket.create_connection((host, int(port))).close()
        self._thread.join()
        self._stack.close()
        self._listener.close()


@pytest.fixture
def mute() -> Iterator[Mute]:
    made = Mute()
    yield made
    made.close()


def test_a_leader_that_has_stopped_is_left_before_the_deadline(etcd: str, mute: Mute) -> None:
    """For the one that etcd names meanwhile: here nobody listens there, which shows at once."""
    registry = Registry(etcd)
    lead(registry, mute.address)
    shell = BlockingShell(ClientConfig(master=etcd))
    now = SystemClock().monotonic()
    with pytest.raises(DeadlineExceeded) as raised:
        shell.take_link(Deadline.after(now, LONG_S))
    assert SystemClock().monotonic() - now < LONG_S / 2, raised
    assert shell.leader._doubted
    lead(registry, "127.0.0.1:1")
    with pytest.raises(Unreachable):
        shell.take_link(Deadline.after(SystemClock().monotonic(), LONG_S))
    shell.close()
    registry.close()


async def test_the_same_for_asyncio(etcd: str, mute: Mute) -> None:
    registry = Registry(etcd)
    lead(registry, mute.address)
    shell = AsyncShell(ClientConfig(master=etcd))
    now = shell.now()
    with pytest.raises(DeadlineExceeded) as raised:
        await shell.connect(LONG_S)
    assert shell.now() - now < LONG_S / 2, raised
    assert shell.leader._doubted
    await shell.close()
    registry.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """An etcd of four members, as their addresses look: all take connections and say nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        member = f"127.0.0.1:{listener.getsockname()[1]}"
        yield f"etcd://{','.join([member] * 4)}/p"


def test_a_silent_etcd_is_waited_for_no_longer_than_the_deadline(silent: str) -> None:
    finder, clock = LeaderFinder(silent), SystemClock()
    begun = clock.monotonic()
    with pytest.raises((DeadlineExceeded, Unreachable)):
        finder.address(Deadline.after(begun, 0.1))
    assert clock.monotonic() - begun < ASKED_S * 0.8
    finder.close()


def test_nor_is_another_thread_that_asks_it(silent: str) -> None:
    finder, clock, asking = LeaderFinder(silent), SystemClock(), threading.Event()

    def ask() -> None:
        asking.set()
        with pytest.raises((DeadlineExceeded, Unreachable, Closed)):
            finder.address()

    thread = threading.Thread(target=ask)
    thread.start()
    asking.wait()
    time.sleep(0.05)  # it has the connection
    begun = clock.monotonic()
    with pytest.raises((DeadlineExceeded, Unreachable)):
        finder.address(Deadline.after(begun, 0.1))
    assert clock.monotonic() - begun < ASKED_S * 0.8
    finder.close()
    thread.join()


async def test_nor_for_asyncio(silent: str) -> None:
    shell = AsyncShell(ClientConfig(master=silent))
    begun = shell.now()
    with pytest.raises((DeadlineExceeded, Unreachable)):
        await shell.connect(0.1)
    assert shell.now() - begun < ASKED_S * 0.8
    await shell.close()


def test_an_address_that_was_given_is_waited_for(mute: Mute) -> None:
    """Nobody else could be asked."""
    shell = BlockingShell(ClientConfig(master=mute.address))
    begun = shell.now()
    with pytest.raises(TimeoutError):
        shell.take_link(Deadline.after(begun, CONNECT_S + 0.5))
    assert shell.now() - begun >= CONNECT_S + 0.4
    shell.close()
