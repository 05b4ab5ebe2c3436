"""Notifications bound to data: after it, in order, once; of failures too; slow and dead ends."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from moonpool.core.errors import (
    BadFrame,
    BadInput,
    Cancelled,
    Closed,
    DeadlineExceeded,
    Refused,
    TooManyOps,
    Unreachable,
)
from moonpool.transfer import Engine, Notification, OpState, Peer
from moonpool.transfer.notification import MESSAGE_BYTES_MAX, Known, decoded, encoded
from tests.transfer import sender
from tests.transfer.conftest import stamped
from tests.transfer.owner import KV_BYTES, Owner, wait_until
from tests.transfer.proxy import Proxy

NBYTES = 1 << 16
TRANSPORTS = ["local", "shm", "tcp"]


class Pair:
    """Two engines of this process: `owner` offers "kv", `engine` writes to it."""

    def __init__(self, folder: str, **options: Any) -> None:
        self.owner = Engine(dir=folder, **options)
        self.kv = self.owner.allocate(NBYTES, "kv")
        self.engine = Engine(dir=folder)
        self.peer: Peer = self.engine.connect(self.owner.listen())
        self.far = self.peer.segment("kv")
        self.mine = self.engine.register(stamped(NBYTES))

    def close(self) -> None:
        self.engine.close()
        self.owner.close()


@pytest.fixture
def pair(folder: str) -> Iterator[Pair]:
    pair = Pair(folder)
    yield pair
    pair.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_data_is_there_when_the_notification_is(pair: Pair, transport: str) -> None:
    rounds, seen = 40, list[tuple[bytes, bool]]()

    def receive() -> None:
        for at in range(rounds):
            note = pair.owner.inbox.get(timeout=30)
            seen.append((note.message, np.array_equal(pair.kv.array, stamped(NBYTES, at))))
            taken.release()

    taken = threading.Semaphore(0)
    receiver = threading.Thread(target=receive)
    receiver.start()
    for at in range(rounds):
        pair.mine.array[:] = stamped(NBYTES, at)
        op = pair.engine.write(
            pair.mine, None, pair.far, None, transport=transport, notify=b"%d" % at
        )
        assert op.wait()
        assert op.check().transport == transport
        assert taken.acquire(timeout=30)
    receiver.join()
    assert seen == [(b"%d" % at, True) for at in range(rounds)]


def test_what_it_says(pair: Pair) -> None:
    op = pair.engine.read(pair.mine, (0, 4096), pair.far, (8192, 4096), notify=b"yours again")
    assert op.wait() and op.check().ok
    op = pair.engine.write(pair.mine, (0, 0), pair.far, (0, 0), notify=b"")
    assert op.wait() and op.check().ok
    first, second = pair.owner.inbox.take()
    assert second.number > first.number
    assert first == Notification(
        sender=pair.engine.epoch,
        number=first.number,
        kind="read",
        segment="kv",
        state=OpState.DONE,
        nbytes=4096,
        message=b"yours again",
    )
    assert first.ok and (second.kind, second.nbytes, second.message) == ("write", 0, b"")


def test_they_come_in_the_order_of_their_ops(pair: Pair) -> None:
    prepared = pair.engine.prepare("write", pair.mine, (0, 64), pair.far, (0, 64))
    for at in range(200):
        op = prepared.post(notify=b"%d" % at)
        assert op.wait() and op.check().ok
    assert [note.message for note in pair.owner.inbox.take()] == [b"%d" % at for at in range(200)]


async def test_awaited(pair: Pair) -> None:
    waiting = [asyncio.create_task(pair.owner.inbox.next(timeout=30)) for _ in range(3)]
    await asyncio.sleep(0)
    for at in range(3):
        await pair.engine.write(pair.mine, None, pair.far, None, notify=b"%d" % at)
    got = {note.message for note in await asyncio.gather(*waiting)}
    assert got == {b"0", b"1", b"2"}
    with pytest.raises(DeadlineExceeded):
        await pair.owner.inbox.next(timeout=0.01)


@pytest.mark.parametrize("state", [OpState.CANCELLED, OpState.EXPIRED])
def test_of_an_op_that_was_given_up(pair: Pair, state: OpState) -> None:
    """Its connection holds the bytes back, and would bring them when the peer has gone on."""
    with Proxy(pair.owner.address) as proxy:
        peer = pair.engine.connect(proxy.address, rails=[pair.owner.address])
        op = pair.engine.write(pair.mine, None, peer.segment("kv"), None, transport="tcp")
        assert op.wait() and op.check().ok
        proxy.hold()
        pair.mine.array[:] = stamped(NBYTES, 2)
        deadline = 60.0 if state is OpState.CANCELLED else 0.05
        far = peer.segment("kv")
        op = pair.engine.write(
            pair.mine, None, far, None, transport="tcp", deadline=deadline, notify=b"page 3"
        )
        if state is OpState.CANCELLED:
            # Half a request has left: the connection goes with it.
            assert op.cancel()
        assert op.wait(30)
        error = Cancelled if state is OpState.CANCELLED else DeadlineExceeded
        assert op.result.state is state and isinstance(op.error, error)
        if state is OpState.CANCELLED:
            proxy.release()
        note = pair.owner.inbox.get(timeout=30)
        assert (note.state, note.message, note.nbytes) == (state, b"page 3", 0)
        assert not note.ok and note.error
        before = pair.kv.array.copy()
        proxy.release()
        pair.kv.array[:] = 9
        with pytest.raises(DeadlineExceeded):
            pair.owner.inbox.get(timeout=0.3)
        assert (pair.kv.array == 9).all(), "bytes landed after the receiver was told"
        assert np.array_equal(before, stamped(NBYTES)) or state is OpState.CANCELLED


def test_of_an_op_that_failed(pair: Pair) -> None:
    """The peer refuses one of the blocks, since the segment was closed meanwhile."""
    other = pair.owner.allocate(NBYTES, "other")
    pair.peer.refresh()
    far = pair.peer.segment("other")
    other.close()
    op = pair.engine.write(pair.mine, None, far, None, transport="tcp", notify=b"lost")
    assert op.wait() and op.result.state is OpState.FAILED
    note = pair.owner.inbox.get(timeout=30)
    assert (note.state, note.message, note.segment) == (OpState.FAILED, b"lost", "other")


def test_a_receiver_that_is_slow(folder: str) -> None:
    pair = Pair(folder, notifications_max=2)
    try:
        for at in range(3):
            op = pair.engine.write(pair.mine, None, pair.far, None, notify=b"%d" % at)
            assert op.wait()
            assert op.result.ok == (at < 2)
        # The bytes are there, and the op says which part did not work.
        assert isinstance(op.error, TooManyOps) and op.result.retryable
        assert "notifications_max" in str(op.error) and not op.result.status.any()
        assert op.result.nbytes == NBYTES
        assert [note.message for note in pair.owner.inbox.take()] == [b"0", b"1"]
        none = np.array([], dtype=np.uint64)
        again = pair.engine.write(pair.mine, (none, none), pair.far, (none, none), notify=b"2")
        assert again.wait() and again.check().ok
        assert pair.owner.inbox.get().message == b"2"
    finally:
        pair.close()


def test_a_receiver_that_takes_none(folder: str) -> None:
    pair = Pair(folder, notifications_max=0)
    try:
        op = pair.engine.write(pair.mine, None, pair.far, None, notify=b"x")
        assert op.wait() and isinstance(op.error, Refused)
    finally:
        pair.close()


@pytest.mark.faults
def test_the_receiver_dies_between_data_and_notification(folder: str) -> None:
    with Owner(folder) as owner, Engine(dir=folder, heartbeat_ms=0) as engine:
        far = engine.connect(owner.address).segment("kv")
        mine = engine.register(stamped(KV_BYTES))
        owner.stop()
        # Shared memory needs nobody there; the notification does.
        op = engine.write(mine, None, far, None, deadline=60.0, transport="shm", notify=b"x")
        assert not op.wait(0.1)
        owner.resume()
        owner.stop()
        owner.kill()
        assert op.wait(30)
        result = op.result
        if not result.ok:  # it may have been answered while it ran for a moment
            assert result.state is OpState.FAILED and isinstance(result.error, Unreachable)
        assert not result.status.any() and result.nbytes == KV_BYTES


@pytest.mark.faults
def test_the_sender_dies_between_data_and_notification(pair: Pair, folder: str) -> None:
    with Proxy(pair.owner.address) as proxy:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.transfer.sender", folder, proxy.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                assert process.stdin is not None and process.stdout is not None
                assert process.stdout.readline() == "connected\n"
                proxy.hold()
                process.stdin.write("go\n")
                process.stdin.flush()
                assert process.stdout.readline() == "written\n"
            finally:
                process.kill()
        proxy.cut()
        assert np.array_equal(pair.kv.array, stamped(sender.NBYTES, sender.SEED))
        with pytest.raises(DeadlineExceeded):
            pair.owner.inbox.get(timeout=0.3)


def test_a_lost_connection_does_not_lose_it(pair: Pair) -> None:
    with Proxy(pair.owner.address) as proxy:
        peer = pair.engine.connect(proxy.address, rails=[pair.owner.address])
        far = peer.segment("kv")
        wait_until(lambda: len(peer.rails.ways()) > 1)
        proxy.hold()
        op = pair.engine.write(pair.mine, None, far, None, transport="local", notify=b"x")
        proxy.cut()
        assert op.wait() and op.check().ok
        assert pair.owner.inbox.get().message == b"x"
        assert not pair.owner.inbox.take()


def test_closing_wakes_who_waits(folder: str) -> None:
    engine = Engine(dir=folder)
    ended = list[BaseException]()

    def receive() -> None:
        try:
            engine.inbox.get(timeout=60)
        except Closed as error:
            ended.append(error)

    receiver = threading.Thread(target=receive)
    receiver.start()
    time.sleep(0.02)
    engine.close()
    receiver.join(30)
    assert len(ended) == 1


def test_what_cannot_be_a_notification(pair: Pair) -> None:
    write, mine, far = pair.engine.write, pair.mine, pair.far
    with pytest.raises(BadInput, match="takes bytes, not str"):
        write(mine, None, far, None, notify="text")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=f"{MESSAGE_BYTES_MAX} at most"):
        write(mine, None, far, None, notify=bytes(MESSAGE_BYTES_MAX + 1))
    own = pair.engine.allocate(NBYTES)
    with pytest.raises(BadInput, match="tells a peer"):
        write(mine, None, own, None, notify=b"x")
    op = write(mine, None, far, None, notify=bytes(MESSAGE_BYTES_MAX))
    assert op.wait() and op.check().ok


def test_what_nobody_understands_is_dropped(pair: Pair) -> None:
    op = pair.peer.connection.notify(b"\xc1 no message of ours")
    assert op.wait() and op.ok
    op = pair.peer.connection.notify(b"")
    assert op.wait() and op.ok
    assert pair.owner.inbox.take() == [] and pair.owner.inbox.malformed == 2
    with pytest.raises(BadFrame):
        decoded(b"\x90")
    with pytest.raises(ValueError, match="8192"):
        pair.peer.connection.notify(bytes(8193))


def test_one_that_comes_again_is_known() -> None:
    known = Known()

    def note(sender: int, number: int) -> Notification:
        return Notification(
            sender=sender,
            number=number,
            kind="write",
            segment="kv",
            state=OpState.DONE,
            nbytes=1,
            message=b"",
            error="e" * 999,
        )

    assert not known.again(note(1, 1)) and known.again(note(1, 1))
    assert not known.again(note(2, 1)) and known.again(decoded(encoded(note(2, 1))))
    for sender_epoch in range(3, 300):
        known.again(note(sender_epoch, 1))
    # Bounded: who has been quiet for long is forgotten.
    assert not known.again(note(1, 1)) and len(decoded(encoded(note(1, 1))).error) == 300
