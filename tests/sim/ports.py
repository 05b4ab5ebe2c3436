"""A simulated client's ways to segments: mapped memory, bytes sent to a node, a tier's reads.

A way is a generator: it yields what another process is to do (`Rpc`), or seconds to let pass.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from moonpool import _core
from moonpool.pool.open_claims import LOST, OpenClaims
from moonpool.pool.ports import BatchPutCall, Buffer, Outcome, PutCall, ReadCall, Status, failed
from tests.sim.node_actor import NodeActor
from tests.sim.tier_actor import TierActor
from tests.sim.world import World


@dataclass(frozen=True)
class Rpc:
    """Run `act` in the node's process; resumed with what it returns, None: no answer."""

    node: NodeActor
    act: Callable[[_core.SegmentAgent], Any]


@dataclass(frozen=True)
class TierRpc:
    """As `Rpc`, for objects of a tier, whose medium takes its time before it answers."""

    node: TierActor
    slots: list[int]
    generations: list[int]


Steps = Generator[Any, Any, Outcome]  # yields Rpc, TierRpc, or seconds to let pass in the client


class SimPort:
    """A client's way to a segment. With `segment` it maps the memory, else it sends bytes."""

    def __init__(self, node: NodeActor, segment: _core.SegmentClient | None) -> None:
        self.actor = node
        self.segment = segment
        self.incarnation = node.incarnation
        self.node = node.name
        self.local = segment is not None
        self.kind = "sim"
        self.claims = OpenClaims(segment) if segment is not None else None

    def close(self) -> None:
        if self.segment is not None:
            self.segment.close()

    def steps(self, call: Any, world: World) -> Steps:
        match call:
            case PutCall():
                return self._counted_put(call, world)
            case BatchPutCall():
                return self._counted_put(call.written_out(), world)
            case ReadCall():
                return self._read(call, world)
        raise AssertionError(call)

    def _counted_put(self, call: PutCall, world: World) -> Steps:
        """As the product's port: a claim whose answer was lost is disowned."""
        if self.claims is None:
            return (yield from self._put(call, world, 0))
        outcome = yield from self._put(call, world, self.claims.begin())
        self.claims.end(1, bool(np.isin(outcome.status, LOST).any()))
        return outcome

    def _put(self, call: PutCall, world: World, epoch: int) -> Steps:
        count = len(call.records)
        row = self.segment.row if self.segment else -1
        given_up = False

        def ask(agent: _core.SegmentAgent) -> Any:
            # A frame on a connection that its client has closed is never taken up.
            if given_up and self.segment is None:
                return None
            return agent.claim(call.records, call.blob, call.term, row, epoch, world.boottime_ns())

        claim = yield Rpc(self.actor, ask)
        if claim is None:
            given_up = True
            return failed(count, Status.UNREACHABLE)
        status, slots, generations = (column.copy() for column in claim)
        crcs = np.zeros(count, np.uint32)
        for i in np.flatnonzero(status == Status.OK).tolist():
            data = bytes(call.sources[i])
            half = len(data) // 2
            slot, generation = int(slots[i]), int(generations[i])
            for offset, piece in ((0, data[:half]), (half, data[half:])):
                written = yield from self._write_piece(slot, generation, offset, piece)
                if written != Status.OK:
                    status[i] = Status.UNREACHABLE if written is None else written
                    break
                yield world.delay()
            crcs[i] = _core.crc32c(data)
        good = np.flatnonzero(status == Status.OK)
        if len(good):
            sealed = yield Rpc(
                self.actor,
                lambda agent: agent.seal(slots[good], generations[good], crcs[good], 0, call.term),
            )
            status[good] = Status.UNREACHABLE if sealed is None else sealed
        bad = np.flatnonzero((status != Status.OK) & (generations != 0))
        if len(bad):
            aborted = yield Rpc(self.actor, lambda agent: agent.abort(slots[bad], generations[bad]))
            if self.claims is not None:
                self.claims.end(0, aborted is None)
        return Outcome(status, slots, generations, crcs)

    def _write_piece(
        self, slot: int, generation: int, offset: int, piece: bytes
    ) -> Generator[Any, Any, int | None]:
        if self.segment is not None:
            # A writer that mapped the memory writes without asking anybody, stale or not.
            return self.segment.write_range(slot, generation, offset, piece)
        written: int | None = yield Rpc(
            self.actor, lambda agent: agent.write(slot, generation, offset, piece)
        )
        return written

    def _read(self, call: ReadCall, world: World) -> Steps:
        count = len(call.slots)
        status = np.zeros(count, np.uint8)
        sizes = np.zeros(count, np.uint64)
        for i in range(count):
            slot, generation = int(call.slots[i]), int(call.generations[i])
            result, size = yield from self._read_one(slot, generation, call.buffers[i], world)
            status[i], sizes[i] = result, size
        return Outcome(status, call.slots, call.generations, sizes=sizes)

    def _read_one(
        self, slot: int, generation: int, buffer: Buffer, world: World
    ) -> Generator[Any, Any, tuple[int, int]]:
        if self.segment is None:
            node = self.actor

            def read(agent: _core.SegmentAgent) -> bytes | int:
                if world.boottime_ns() >= node.valid_until_ns:
                    return -1 - Status.EXPIRED
                return agent.read(slot, generation)

            data = yield Rpc(node, read)
            if data is None:
                return Status.UNREACHABLE, 0
            if isinstance(data, int):
                return -1 - data, 0
            memoryview(buffer).cast("B")[: len(data)] = data
            return Status.OK, len(data)
        view = memoryview(buffer).cast("B")
        half = len(view) // 2
        for offset, piece in ((0, view[:half]), (half, view[half:])):
            if world.boottime_ns() >= self.actor.valid_until_ns:
                return Status.EXPIRED, 0
            got = self.segment.read_range(slot, generation, offset, piece)
            if got < 0:
                return -1 - got, 0
            yield world.delay()
        if world.boottime_ns() >= self.actor.valid_until_ns:
            return Status.EXPIRED, 0
        # The product sums up what it copied in one go; here the copy took its time, so the same
        # check is made on a second copy and both must agree.
        again = bytearray(len(view))
        size = self.segment.read_one(slot, generation, again, True)
        if size < 0:
            return -1 - size, 0
        return (Status.OK, size) if again == view else (Status.CORRUPT, 0)


class TierSimPort:
    """A client's way to a tier: it reads, and proves what comes."""

    local = False
    segment = None
    claims = None
    kind = "disk"

    def __init__(self, tier: TierActor, incarnation: bytes) -> None:
        self.actor = tier
        self.incarnation = incarnation
        self.node = tier.node

    def close(self) -> None:
        """Nothing is held."""

    def steps(self, call: Any, world: World) -> Steps:
        if isinstance(call, ReadCall):
            return self._read(call)
        return self._refuse(len(call.records))

    def _refuse(self, count: int) -> Steps:
        yield 0.0
        return failed(count, Status.REFUSED)

    def _read(self, call: ReadCall) -> Steps:
        count = len(call.slots)
        if self.actor.incarnation != self.incarnation:
            yield 0.0
            return failed(count, Status.UNREACHABLE)  # another tier has its place
        found = yield TierRpc(self.actor, call.slots.tolist(), call.generations.tolist())
        if found is None:
            return failed(count, Status.UNREACHABLE)
        status = np.zeros(count, np.uint8)
        sizes = np.zeros(count, np.uint64)
        for i, data in enumerate(found):
            if not isinstance(data, bytes):
                status[i] = data
                continue
            view = memoryview(call.buffers[i]).cast("B")
            if len(data) > len(view):
                status[i] = Status.BOUNDS
                continue
            view[: len(data)] = data
            sizes[i] = len(data)
        return Outcome(status, call.slots, call.generations, sizes=sizes)
