"""Bounds at the master's door: strangers, and connections of one address."""

from __future__ import annotations

import asyncio
import socket

from moonpool.core.sections import MasterConfig
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
