"""Tunnels whose one end goes before the other has come."""

from __future__ import annotations

import asyncio

from moonpool.transfer.tunnels import Tunnels, _join, _pair, _Side

WAIT_S = 20.0


def test_the_near_end_is_told_of_a_peer_that_was_lost_before_they_were_joined() -> None:
    async def main() -> bytes:
        home, remote = Tunnels(None, None), _Side(Tunnels(None, None))
        near, far = _pair()
        ours, peers = _pair()
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: remote, sock=ours)
        peers.close()
        remote.abort()
        while remote._transport is not None:
            await asyncio.sleep(0)
        with near:
            await _join(home, remote, far)
            return await asyncio.wait_for(loop.sock_recv(near, 1), WAIT_S)

    assert asyncio.run(main()) == b""
