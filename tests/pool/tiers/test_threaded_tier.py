import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool.pool.tiers.base import WHOLE, Buffer, Entry, Erase, Read, Status, Write
from moonpool.pool.tiers.disk_log import DiskLog
from moonpool.pool.tiers.threaded import ThreadedTier
from tests.pool.tiers.disk_rig import made

WAIT_S = 20.0


class HeldStore(DiskLog):
    """As slow as a test wants: nothing is written before `release`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 1 << 20)
        self.release = threading.Event()
        self.begun = threading.Event()

    def write(self, entry: Entry, data: Buffer) -> Status:
        self.begun.set()
        assert self.release.wait(WAIT_S)
        return super().write(entry, data)


class Rig:
    def __init__(self, path: Path) -> None:
        self.store = HeldStore(path)
        self.woken = threading.Event()
        self.tier = ThreadedTier(self.store, ops_max=4, bytes_max=5000, wake=self.woken.set)
        self.ended: dict[int, tuple[Status, Buffer | None]] = {}

    def submit(self, op: Write | Read | Erase) -> int:
        ticket = self.tier.submit(op)
        assert ticket is not None
        return ticket

    def status(self, ticket: int | None) -> Status:
        assert ticket is not None
        while ticket not in self.ended:
            assert self.woken.wait(WAIT_S)
            self.woken.clear()
            self.ended.update((one.ticket, (one.status, one.data)) for one in self.tier.poll())
        return self.ended[ticket][0]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.store.release.set()
    rig.tier.close()
    rig.store.close()


def test_submit_poll_cancel(rig: Rig) -> None:
    rig.store.release.set()
    entry, data = made(1)
    assert rig.status(rig.submit(Write(entry, data))) is Status.OK
    read = rig.submit(Read(1, 1, 10, 20))
    assert rig.status(read) is Status.OK
    assert rig.ended[read][1] == data[10:30]
    assert rig.status(rig.submit(Erase(1, 1))) is Status.OK
    assert rig.status(rig.submit(Read(1, 1, 0, WHOLE))) is Status.MOVED
    assert rig.tier.cancel(read) is False  # over already


def test_a_slow_writer_holds_no_reader_up(rig: Rig) -> None:
    rig.store.release.set()
    assert rig.status(rig.submit(Write(*made(1)))) is Status.OK
    rig.store.release.clear()
    rig.submit(Write(*made(2)))
    assert rig.store.begun.wait(WAIT_S)
    assert rig.status(rig.submit(Read(1, 1))) is Status.OK


def test_the_queue_is_bounded_in_bytes_and_ops(rig: Rig) -> None:
    first = rig.submit(Write(*made(1, size=3000)))
    assert rig.tier.submit(Write(*made(2, size=3000))) is None  # beyond 5000 bytes
    assert rig.store.begun.wait(WAIT_S)
    waiting = [rig.submit(Erase(9, 9)) for _ in range(4)]
    assert rig.tier.submit(Erase(9, 9)) is None
    assert rig.tier.refused == 2
    rig.store.release.set()
    assert rig.status(first) is Status.OK
    assert rig.status(waiting[-1]) is Status.MOVED
    assert rig.status(rig.tier.submit(Write(*made(2, size=3000)))) is Status.OK


def test_what_has_not_begun_can_be_cancelled(rig: Rig) -> None:
    rig.submit(Write(*made(1)))
    assert rig.store.begun.wait(WAIT_S)
    second = rig.submit(Write(*made(2)))
    assert rig.tier.cancel(second) is True
    assert rig.status(second) is Status.CANCELLED
    rig.store.release.set()
    third = rig.submit(Write(*made(3)))
    assert rig.status(third) is Status.OK
    assert {entry.slot for entry in rig.store.entries()} == {1, 3}


def test_closing_cancels_what_waits(rig: Rig) -> None:
    rig.submit(Write(*made(1)))
    assert rig.store.begun.wait(WAIT_S)
    second = rig.submit(Write(*made(2)))
    rig.store.release.set()
    rig.tier.close()
    assert rig.status(second) in (Status.CANCELLED, Status.OK)
    assert rig.tier.submit(Write(*made(3))) is None
