"""Endpoints of two processes: the peer is killed, stopped or cut off, and the op ends anyway."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest

from moonpool import _core
from tests.transfer import wire
from tests.transfer.endpoints import done, u64
from tests.transfer.wire import WireServer, frame, receive

pytestmark = pytest.mark.faults

SIZE = 64 << 20
SERVER = f"""
import sys
import numpy as np
from moonpool import _core
endpoint = _core.Endpoint(token=b"token", stall_ms=60_000)
memory = np.full({SIZE}, 7, np.uint8)
region = endpoint.register(memory, "memory", writable=True)
print(endpoint.listen_tcp(), region, flush=True)
sys.stdin.read()
"""


class Peer(NamedTuple):
    process: subprocess.Popen[str]
    client: _core.Endpoint
    connection: _core.Connection
    region: int

    def read(self, buffer: bytearray, deadline_ms: int) -> _core.Op:
        size = u64(len(buffer))
        return self.connection.read_raw(self.region, u64(0), size, buffer, u64(0), deadline_ms)


@pytest.fixture
def peer() -> Iterator[Peer]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port, region = map(int, process.stdout.readline().split())
    client = _core.Endpoint(token=b"token")
    yield Peer(process, client, client.connect(f"127.0.0.1:{port}"), region)
    client.close()
    process.kill()
    process.communicate()


def interrupt_mid_transfer(
    peer: Peer, start: Callable[[], _core.Op], act: Callable[[], None], undo: Callable[[], None]
) -> _core.Op:
    """Acts while an op is under way; repeats when the op was faster than this process."""
    for _ in range(50):
        before = peer.client.stats()
        op = start()
        moved = 0
        while moved < 1 << 20 and not op.terminal:
            now = peer.client.stats()
            moved = sum(now[k] - before[k] for k in ("bytes_in", "bytes_out"))
        act()
        if not op.wait(200):
            return op
        undo()
        assert op.ok
    raise AssertionError("no transfer of 50 could be interrupted")


def test_peer_killed_before_the_call(peer: Peer) -> None:
    peer.process.kill()
    peer.process.wait()
    op = done(peer.connection.ping())
    assert op.state == "FAILED" and "closed" in op.error
    assert not peer.connection.alive


def test_peer_killed_mid_read(peer: Peer) -> None:
    buffer = bytearray(SIZE)
    os.kill(peer.process.pid, signal.SIGSTOP)
    op = peer.read(buffer, 60_000)
    assert not op.wait(20)
    peer.process.kill()
    assert done(op).state == "FAILED"
    assert op.status.tolist() == [8]
    buffer.clear()  # nobody holds it any more


@pytest.mark.parametrize("writes", [False, True])
def test_peer_stopped_mid_transfer(peer: Peer, writes: bool) -> None:
    buffer = np.zeros(SIZE, np.uint8)
    call = peer.connection.write_raw if writes else peer.connection.read_raw

    def start() -> _core.Op:
        buffer[:] = 9
        return call(peer.region, u64(0), u64(SIZE), buffer, u64(0), 1000)

    op = interrupt_mid_transfer(
        peer,
        start,
        lambda: os.kill(peer.process.pid, signal.SIGSTOP),
        lambda: os.kill(peer.process.pid, signal.SIGCONT),
    )
    assert done(op).state == "EXPIRED" and "deadline" in op.error
    buffer[:] = 1
    os.kill(peer.process.pid, signal.SIGCONT)
    if writes:
        # Half a request has left: the stream is of no use any more.
        assert not peer.connection.alive
    else:
        assert done(peer.connection.ping(20_000)).ok  # after the rest of the reply
    assert (buffer == 1).all()


def test_cancel_mid_read(peer: Peer) -> None:
    buffer = np.zeros(SIZE, np.uint8)
    size = u64(SIZE)
    op = interrupt_mid_transfer(
        peer,
        lambda: peer.connection.read_raw(peer.region, u64(0), size, buffer, u64(0), 60_000),
        lambda: os.kill(peer.process.pid, signal.SIGSTOP),
        lambda: os.kill(peer.process.pid, signal.SIGCONT),
    )
    op.cancel()
    assert done(op).state == "CANCELLED"
    buffer[:] = 1
    os.kill(peer.process.pid, signal.SIGCONT)
    assert done(peer.connection.ping(20_000)).ok
    assert (buffer == 1).all()


def test_others_go_on_while_one_peer_is_stopped(peer: Peer) -> None:
    other = _core.Endpoint(token=b"token")
    region = other.register(bytes(range(100)))
    living = peer.client.connect(f"127.0.0.1:{other.listen_tcp()}")
    os.kill(peer.process.pid, signal.SIGSTOP)
    stuck = peer.read(bytearray(SIZE), 500)
    copy = bytearray(100)
    assert done(living.read_raw(region, u64(0), u64(100), copy, u64(0))).ok
    assert copy == bytes(range(100))
    assert done(stuck).state == "EXPIRED"
    other.close()


def reading(script: Callable[[socket.socket], None]) -> tuple[_core.Op, bytearray]:
    """An op that reads 1000 bytes from a scripted server, at its end."""
    server = WireServer(script)
    client = _core.Endpoint(token=b"token")
    buffer = bytearray(1000)
    op = client.connect(server.address).read_raw(
        1, u64(0), u64(len(buffer)), buffer, u64(0), deadline_ms=300
    )
    assert op.wait(20_000)
    state = bytes(buffer)
    server.close()
    client.close()
    assert bytes(buffer) == state
    return op, buffer


HALF = frame(
    wire.READ_RAW | wire.REPLY, (1000).to_bytes(8, "little"), count=1, payload_bytes=1000
) + bytes([5] * 500)


def test_connection_cut_in_the_middle_of_a_reply() -> None:
    def script(sock: socket.socket) -> None:
        receive(sock, 72 + 16)
        sock.sendall(HALF)

    op, _ = reading(script)
    assert op.state == "FAILED" and op.status.tolist() == [8]


def test_bytes_after_the_deadline_go_nowhere() -> None:
    def script(sock: socket.socket) -> None:
        receive(sock, 72 + 16)
        sock.sendall(HALF)
        time.sleep(0.6)
        sock.sendall(bytes([6] * 500))
        time.sleep(0.2)

    op, buffer = reading(script)
    assert op.state == "EXPIRED"
    assert bytes(buffer[500:]) == bytes(500)
