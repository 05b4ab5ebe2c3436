"""A node's further segments: what its masters are told of one that it gave back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from moonpool.core.sections import MasterConfig, NodeConfig
from moonpool.pool.master import MasterServer
from moonpool.pool.node import NodeServer

MIB = 1 << 20


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def known(server: MasterServer) -> list[bytes]:
    return [link.segment.incarnation for link in server.machine.nodes.links]


async def test_a_master_that_was_cut_off_meanwhile_is_told_with_the_next_join(
    tmp_path: Path,
) -> None:
    """It is obeyed here; whoever stands by is told in the same words."""
    server = MasterServer(MasterConfig(port=0, grace_ms=0))
    memory = {"memory": 8 * MIB, "headroom": 8 * MIB, "dir": str(tmp_path)}
    node = NodeServer(NodeConfig(name="n", master=await server.start(), **memory))  # type: ignore[arg-type]
    running = asyncio.create_task(node.run())
    try:
        await until(lambda: node.machine.adopted)
        mount = await node.mounts.mount(8 * MIB)
        await until(lambda: len(known(server)) == 2)
        mount.follower.stop()  # it does not come back: the word of its end is lost
        await mount.serving
        mount.follower.leaving = lambda what: True  # type: ignore[method-assign]
        node.mounts.unmount(2)
        await until(lambda: not node.mounts.records())
        for connection in list(server._sessions.values()):
            connection.abort()
        await until(lambda: len(known(server)) == 1)
        assert known(server) == [node.agent.incarnation]
    finally:
        node.stop()
        await running
        await server.stop()
