"""A simulated disk tier of a node: the product's agent over real files, with a medium that takes
its time, is full, hangs, or loses the end of what was being written when its node is killed.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from moonpool.pool import messages as m
from moonpool.pool.node_machine import NodeMachine
from moonpool.pool.tier_node import entries_of
from moonpool.pool.tiers.agent import TierAgent
from moonpool.pool.tiers.base import WHOLE, Buffer, Entry, Status
from moonpool.pool.tiers.disk_log import DiskLog
from moonpool.pool.tiers.index_file import INDEX_NAME
from tests.sim.master_actor import MasterActor
from tests.sim.segment_actor import Pieces, SegmentActor
from tests.sim.world import World

SLOTS = 64
WRITES_MAX = 4  # more are refused, as by a full queue


class Medium(NamedTuple):
    """`limit_bytes` bound the files, `capacity_bytes` what the master may place in them."""

    limit_bytes: int
    capacity_bytes: int
    slow: bool


class _Write(NamedTuple):
    entry: Entry
    data: Buffer
    done: Callable[[Status], None]


class _Stored(NamedTuple):
    status: Status
    slot: int = 0
    generation: int = 0


class TierActor(SegmentActor):
    """Dies with its node. Every life finds the files as the last one left them."""

    agent: TierAgent

    def __init__(
        self,
        world: World,
        name: str,
        node: str,
        master: MasterActor,
        directory: Path,
        medium: Medium,
        host: str,
    ) -> None:
        super().__init__(world, name, master, host)
        self.node = node
        self.medium = medium
        self.torn = self.kept = self.served = 0
        self._directory = directory
        self._writes: deque[_Write] = deque()
        self._forget_ms = 0

    def start(self) -> None:
        """With all that its files say. `peers` know it by the incarnation they have."""
        self.alive, self.stopped = True, False
        store = DiskLog(self._directory, self.medium.limit_bytes, wall_ms=self.world.wall_ms())
        self.agent = TierAgent(store, self.medium.capacity_bytes, SLOTS)
        self.incarnation = self.agent.incarnation
        self.peers[self.incarnation] = self
        endpoint = m.SegmentEndpoint(
            0,
            self.incarnation,
            self.node,
            self.host,
            tcp=self.name,
            capacity_bytes=self.medium.capacity_bytes,
            medium="disk",
        )
        self._serve(NodeMachine(self.agent, endpoint, 0.2))

    @property
    def valid_until_ns(self) -> int:
        return self.agent.valid_until_ns

    @property
    def queued(self) -> int:
        """Writes that wait or run."""
        return len(self._writes)

    def restart(self, *, wiped: bool = False) -> None:
        """`wiped`: on another disk, with nothing on it."""
        if self.alive:
            return
        self.world.note(f"{self.name} restarted" + (" on an empty disk" if wiped else ""))
        if wiped:
            shutil.rmtree(self._directory)
        self.start()

    def died(self) -> None:
        super().died()
        index = self._directory / INDEX_NAME
        whole = index.stat().st_size
        caught = self._writes[0] if self._writes and self.world.random.random() < 0.7 else None
        if caught is not None:
            self.agent.store.write(caught.entry, caught.data)
        self._writes.clear()
        # The files as a kill leaves them: whoever closes this life's store does it elsewhere.
        left = self._directory.with_name(f"{self.name}-{self.life}")
        shutil.copytree(self._directory, left)
        self.agent.store.close()
        shutil.rmtree(self._directory)
        self._directory = left
        grown = (left / INDEX_NAME).stat().st_size - whole
        if caught is not None and grown > 0:
            with (left / INDEX_NAME).open("rb+") as file:
                file.truncate(whole + self.world.random.randint(0, grown))
            self.torn += 1

    def _heard(self, message: object) -> None:
        if isinstance(message, m.Adopt):
            self._forget_ms = message.forget_ms
        self.agent.heard(self.world.wall_ms(), self._forget_ms)

    def _pace(self) -> float:
        """How long the medium takes for one object."""
        if self.medium.slow:
            return self.world.random.uniform(0.05, 0.6)
        return self.world.random.uniform(0.0005, 0.008)

    # Reading.

    def read_all(
        self,
        slots: list[int],
        generations: list[int],
        answer: Callable[[list[bytes | Status]], None],
    ) -> None:
        """Side by side, as a tier's server has them read."""
        found: dict[int, bytes | Status] = {}

        def one(index: int, got: bytes | Status) -> None:
            found[index] = got
            if len(found) == len(slots):
                answer([found[i] for i in range(len(slots))])

        for index, (slot, generation) in enumerate(zip(slots, generations, strict=True)):
            self._read_one(slot, generation, lambda got, index=index: one(index, got))  # type: ignore[misc]

    def _read_one(
        self, slot: int, generation: int, answer: Callable[[bytes | Status], None]
    ) -> None:
        """Believed only if it is still there after it was read."""
        found = self.agent.find(slot, generation, self.world.boottime_ns())
        if isinstance(found, Status):
            answer(found)
            return

        def was_read() -> None:
            data = self.agent.store.read(slot, generation, 0, WHOLE)
            again = self.agent.find(slot, generation, self.world.boottime_ns())
            if isinstance(again, Status):
                answer(again)
                return
            self.served += not isinstance(data, Status)
            answer(data if isinstance(data, Status) else bytes(data))

        self.later(self._pace(), was_read)

    def read(
        self, slots: list[int], generations: list[int], answer: Callable[[Pieces], None]
    ) -> None:
        self.read_all(
            slots,
            generations,
            lambda found: answer([one if isinstance(one, bytes) else None for one in found]),
        )

    # Keeping: one object after the other, as the tier's node does.

    def keep(self, order: m.Copy, data: Pieces, answer: Callable[[m.Copied], None]) -> None:
        entries = entries_of(order, data)
        kept: list[_Stored] = []

        def next_one() -> None:
            if len(kept) < len(entries):
                entry, one = entries[len(kept)]
                self._store(entry, one, order.term, stored)
                return
            answer(
                m.Copied(
                    order.id,
                    order.segment,
                    bytes(one.status for one in kept),
                    np.array([one.slot for one in kept], np.uint32).tobytes(),
                    np.array([one.generation for one in kept], np.uint64).tobytes(),
                )
            )

        def stored(result: _Stored) -> None:
            kept.append(result)
            next_one()

        next_one()

    def _store(
        self, entry: Entry, data: Buffer | None, term: int, done: Callable[[_Stored], None]
    ) -> None:
        if data is None:
            return done(_Stored(Status.UNREACHABLE))
        claimed = self.agent.claim(entry, term, self.world.wall_ms())
        if isinstance(claimed, Status):
            return done(_Stored(claimed))

        def written(status: Status) -> None:
            if status is not Status.OK:
                self.agent.abort(claimed)
                done(_Stored(status))
                return
            sealed = self.agent.seal(claimed, term)
            self.kept += sealed is Status.OK
            done(_Stored(sealed, claimed.slot, claimed.generation))

        if len(self._writes) >= WRITES_MAX:
            self.agent.abort(claimed)
            return done(_Stored(Status.BUSY))
        self._writes.append(_Write(claimed, data, written))
        if len(self._writes) == 1:
            self._write_next()
        return None

    def _write_next(self) -> None:
        if self._writes:
            self.later(self._pace(), self._write)

    def _write(self) -> None:
        write = self._writes[0]
        status = self.agent.store.write(write.entry, write.data)
        self._writes.popleft()
        self._write_next()
        write.done(status)
