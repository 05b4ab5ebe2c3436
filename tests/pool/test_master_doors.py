"""Bounds at the master's door: strangers, and connections of one address."""

from __future__ import annotations

import asyncio
import os
import socket

from moonpool.core.handshake import NONCE_BYTES, ClientHandshake
from moonpool.core.sections import MasterConfig
from moonpool.core.wire import MAX_HANDSHAKE_FRAME, Frame, FrameDecoder, Kind, encode_frame
from moonpool.pool import messages as m
from moonpool.pool.link import AsyncLink
from moonpool.pool.master import MasterServer

TOKEN = "t"


async def ended(sock: socket.socket) -> None:
    """The other end closes; what it said before does not matter."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(20):
        while True:
            try:
                if not await loop.sock_recv(sock, 4096):
                    return
            except ConnectionError:
                return


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def knock(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=10)
    sock.setblocking(False)
    return sock


def introduced(address: str) -> socket.socket:
    """A bare connection of a client that has proved the token."""
    sock = knock(address)
    sock.settimeout(10)
    shaking = ClientHandshake(TOKEN, "client", "c", "0", os.urandom(NONCE_BYTES), "", m.VERSIONS)
    decoder = FrameDecoder(MAX_HANDSHAKE_FRAME)
    frame: Frame | None = shaking.start()
    while frame is not None:
        sock.sendall(encode_frame(frame.kind, frame.payload))
        while not (answers := list(decoder.feed(sock.recv(4096)))):
            pass
        frame = shaking.receive(answers[0])
    sock.setblocking(False)
    return sock


async def test_one_address_has_so_many_connections() -> None:
    server = MasterServer(MasterConfig(port=0, token=TOKEN, connections_per_peer_max=2))
    address = await server.start()
    links = [await AsyncLink.connect(address, TOKEN, "c") for _ in range(2)]
    late = knock(address)
    await ended(late)
    late.close()
    assert server.refused == 1 and sum(server.peers.values()) == 2
    links[0].close()
    await until(lambda: sum(server.peers.values()) == 1)
    links[0] = await AsyncLink.connect(address, TOKEN, "c")
    for link in links:
        link.close()
    await until(lambda: not server.peers)
    await server.stop()


async def test_strangers_do_not_keep_the_door_shut() -> None:
    """Who has proved nothing counts apart: those who have come in do not."""
    server = MasterServer(MasterConfig(port=0, token=TOKEN))
    server.strangers_max = 3
    address = await server.start()
    links = [await AsyncLink.connect(address, TOKEN, "c") for _ in range(5)]
    assert server.strangers == 0
    idle = [knock(address) for _ in range(3)]
    await until(lambda: server.strangers == 3)
    late = knock(address)
    await ended(late)
    late.close()
    assert server.refused == 1
    for sock in idle:
        sock.close()
    await until(lambda: server.strangers == 0)
    links.append(await AsyncLink.connect(address, TOKEN, "c"))
    for link in links:
        link.close()
    await server.stop()


async def test_who_asks_and_does_not_read_is_cut_off() -> None:
    """What waits to be sent to one connection is bounded; the others are served on."""
    server = MasterServer(MasterConfig(port=0, token=TOKEN))
    server.send_buffer_max = 1 << 16
    address = await server.start()
    other = await AsyncLink.connect(address, TOKEN, "other")
    sock = await asyncio.to_thread(introduced, address)
    loop = asyncio.get_running_loop()
    questions = b"".join(
        encode_frame(Kind.MESSAGE, m.encode(m.Stat(), number, version=m.PROTOCOL_VERSION))
        for number in range(1, 101)
    )
    async with asyncio.timeout(60):
        while server.peers["127.0.0.1"] == 2:
            try:
                await loop.sock_sendall(sock, questions)
            except ConnectionError:
                break
            await asyncio.sleep(0)
        await until(lambda: server.peers["127.0.0.1"] == 1)
    sock.close()
    assert isinstance(await other.request(m.Stat(), 20), m.Status)
    other.close()
    await server.stop()
