"""Further segments of a running node: mounted, emptied, given back. Each joins the master alone,
under the node's name, and is served by the node's endpoint.

    NAME@2.seg, NAME@3.seg ...   their files, beside the node's own; found again by its next life
    joining -> serving -> leaving (its objects go elsewhere) -> gone: the file is removed
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from moonpool.core.errors import BadInput, MoonpoolError, NotReady, SegmentError
from moonpool.pool.node_link import Follower
from moonpool.pool.node_machine import NodeMachine
from moonpool.pool.node_segments import open_named

if TYPE_CHECKING:
    from moonpool._core import SegmentAgent
    from moonpool.pool.node import NodeServer

log = logging.getLogger("moonpool.node")

MOUNTS_MAX = 31  # of one node, besides its first segment
LOOK_S = 0.1
SAY_AGAIN_S = 1.0  # a new master has not heard that it leaves


@dataclass(slots=True)
class Mount:
    number: int
    path: Path
    agent: SegmentAgent
    machine: NodeMachine
    follower: Follower
    serving: asyncio.Task[None]
    leaving: asyncio.Task[None] | None = None

    @property
    def objects(self) -> int:
        usage = self.agent.usage()
        return int(usage["sealed"]) + int(usage["writing"])

    def record(self) -> dict[str, Any]:
        state = "serving" if self.machine.adopted else "joining"
        return {
            "segment": self.number,
            "state": "leaving" if self.leaving is not None else state,
            "capacity_bytes": self.agent.capacity_bytes,
            "objects": self.objects,
        }


class Mounts:
    """All of one node. Every call comes from its event loop."""

    def __init__(self, node: NodeServer) -> None:
        self._node = node
        self._mounts: dict[int, Mount] = {}
        self._making: set[int] = set()

    def records(self) -> list[dict[str, Any]]:
        return [mount.record() for _, mount in sorted(self._mounts.items())]

    async def adopt_all(self) -> None:
        """Those of this node's last life. One that cannot be taken again is left and logged: the
        rest of the node serves."""
        for number, path in sorted(self._files().items()):
            try:
                agent = await asyncio.to_thread(open_named, self._node.config, path.stem, None)
            except MoonpoolError as error:
                log.error("segment %s is not mounted again: %s", path, error)
                continue
            self._serve(number, path, agent)

    def _files(self) -> dict[int, Path]:
        pattern = re.compile(re.escape(self._node.name) + r"@([1-9][0-9]*)\.seg")
        found = {}
        for path in self._node.config.directory.iterdir():
            if match := pattern.fullmatch(path.name):
                found[int(match[1])] = path
        return found

    async def mount(self, size: int) -> Mount:
        """A further segment of `size` bytes, allocated in full. Raises BadInput, SegmentError (no
        room), BadConfig."""
        if size <= 0:
            raise BadInput(f"a segment of {size} bytes")
        taken = {*self._mounts, *self._making, *self._files()}
        number = next((n for n in range(2, MOUNTS_MAX + 2) if n not in taken), 0)
        if number == 0:
            raise SegmentError(f"{MOUNTS_MAX} further segments are mounted already")
        self._making.add(number)
        try:
            config = msgspec.structs.replace(self._node.config, memory=size, slots=0)
            name = f"{self._node.name}@{number}"
            agent = await asyncio.to_thread(open_named, config, name, size)
        finally:
            self._making.discard(number)
        return self._serve(number, self._node.config.directory / f"{name}.seg", agent)

    def _serve(self, number: int, path: Path, agent: SegmentAgent) -> Mount:
        node = self._node
        node.endpoint.attach(agent)
        machine = NodeMachine(agent, node.describe(agent, path), node.config.heartbeat_ms / 1000)
        follower = node.follower(agent, machine)
        serving = asyncio.get_running_loop().create_task(follower.run())
        mount = self._mounts[number] = Mount(number, path, agent, machine, follower, serving)
        return mount

    def unmount(self, number: int) -> Mount:
        """Have it emptied and then given back; at once what is there. Raises BadInput."""
        mount = self._find(number)
        if mount.leaving is None:
            mount.leaving = asyncio.get_running_loop().create_task(self._leave(mount))
        return mount

    async def stay(self, number: int) -> Mount:
        """It takes part again. Raises BadInput; NotReady when no master hears it now, which may go
        on emptying it until it is told: to ask again is safe."""
        mount = self._find(number)
        if mount.leaving is not None:
            mount.leaving.cancel()
            await asyncio.gather(mount.leaving, return_exceptions=True)
            mount.leaving = None
        if not mount.follower.leaving("stay"):
            raise NotReady(
                f"segment {number} stays, but no master has heard so: ask again once one is there"
            )
        return mount

    def _find(self, number: int) -> Mount:
        mount = self._mounts.get(number)
        if mount is None:
            known = ", ".join(map(str, sorted(self._mounts))) or "none is mounted"
            raise BadInput(
                f"no further segment {number} ({known}); a node's first one leaves with the node: "
                "drain it"
            )
        return mount

    async def _leave(self, mount: Mount) -> None:
        """Until nothing is in it. Without a master nothing moves, and it stays."""
        told, waited_s, say = False, 0.0, mount.follower.leaving
        while True:
            if not told or waited_s >= SAY_AGAIN_S:
                told, waited_s = say("leave"), 0.0
                await asyncio.sleep(LOOK_S)  # what was granted before is claimed by now, or fails
            if told and mount.objects == 0 and say("gone"):
                break
            await asyncio.sleep(LOOK_S)
            waited_s += LOOK_S
        self._node.machine.given_back.append(mount.agent.incarnation)
        del self._mounts[mount.number]
        mount.follower.stop()
        await asyncio.gather(mount.serving, return_exceptions=True)
        self._node.endpoint.detach(mount.agent)
        mount.agent.destroy()
        mount.leaving = None

    async def stop(self) -> None:
        """Before the endpoint ends: nobody is obeyed any more."""
        for mount in self._mounts.values():
            if mount.leaving is not None:
                mount.leaving.cancel()
            mount.follower.stop()
        tasks = [task for one in self._mounts.values() for task in (one.serving, one.leaving)]
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)

    def close(self) -> None:
        """After the endpoint has ended."""
        for mount in self._mounts.values():
            self._node.give_back(mount.agent)
        self._mounts.clear()
