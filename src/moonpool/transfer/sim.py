"""The sim transport: another transport behind a link that delays, drops, stalls and dies.

It runs on a manual clock and from a seed: the same calls give the same trace. Waiting for an op
moves the clock; nothing sleeps. Bytes move through the wrapped transport, chunk by chunk, at the
simulated moment they arrive.
"""

import heapq
import math
import random
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np

from moonpool.core.clock import ManualClock
from moonpool.core.errors import MoonpoolError, Unreachable
from moonpool.transfer.base import (
    U8,
    BlockStatus,
    OpResult,
    OpState,
    Transfer,
    Transport,
)
from moonpool.transfer.local import LocalTransport
from moonpool.transfer.op import Op, cancelled, expired, known, local_crcs
from moonpool.transfer.sim_link import SimEvent, SimLink

# Real time the wrapped transport gets for one chunk.
_CHUNK_DEADLINE_S = 5.0


class _Chunk(NamedTuple):
    op: "SimOp"
    block: int
    offset: int
    nbytes: int


class SimOp(Op):
    """An op on simulated time: wait() moves the clock until it is over."""

    __slots__ = ("_sim", "chunks_left", "number")

    def __init__(self, sim: "SimTransport", transfer: Transfer, number: int) -> None:
        super().__init__(transfer, sim.name)
        self._sim = sim
        self.number = number
        # Per block; a block of no bytes is one empty chunk.
        lengths = transfer.lengths.astype(np.int64)
        self.chunks_left = np.maximum(1, -(-lengths // sim.link.chunk_bytes))

    def wait(self, timeout: float | None = None) -> bool:
        until_ns = _ns(self.transfer.deadline_s) if timeout is None else self._sim.after_ns(timeout)
        self._sim.run_until(until_ns, stop=self.done)
        return self.done()

    def block_status(self, state: OpState) -> U8:
        """u8[n]: OK for blocks that arrived whole, else what goes with `state`."""
        missing = {
            OpState.FAILED: BlockStatus.UNREACHABLE,
            OpState.CANCELLED: BlockStatus.CANCELLED,
            OpState.EXPIRED: BlockStatus.EXPIRED,
        }.get(state, BlockStatus.OK)
        return np.where(self.chunks_left == 0, BlockStatus.OK, missing).astype(np.uint8)

    def _cancel_posted(self) -> None:
        self._sim.cancel(self)

    def __await__(self) -> Generator[Any, None, OpResult]:
        # Simulated time moves at once: there is nothing to suspend for.
        self.wait()
        yield from ()
        return self.result


class SimTransport:
    """Wraps `inner` (default: the local transport) in a simulated link. Not thread-safe."""

    name = "sim"

    def __init__(
        self,
        clock: ManualClock,
        seed: int,
        link: SimLink | None = None,
        inner: Transport | None = None,
    ) -> None:
        self.clock = clock
        self.link = link or SimLink()
        self.trace: list[SimEvent] = []
        self.alive = True
        self.arrived_bytes = 0
        self._inner = inner or LocalTransport()
        self._random = random.Random(seed)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._ops = 0
        self._open: dict[int, SimOp] = {}
        self._link_free_ns = 0
        self._stalled_until_ns: float = -math.inf
        self._stall_at_byte = self.link.stall_at_byte

    @property
    def now_ns(self) -> int:
        # Whole nanoseconds, as the clock keeps them: sums of floats would drift apart.
        return _ns(self.clock.monotonic())

    @property
    def next_ns(self) -> float:
        """The moment of the next event; inf when there is none. Several links on one clock are
        moved by always moving the one whose event is next."""
        return self._events[0][0] if self._events else math.inf

    def after_ns(self, seconds: float) -> int:
        return self.now_ns + _ns(seconds)

    def submit(self, transfer: Transfer) -> SimOp:
        """Puts all chunks on the link now; they arrive as time moves."""
        op = SimOp(self, transfer, self._ops)
        self._ops += 1
        if not self.alive:
            self._end(op, OpState.FAILED, Unreachable("the simulated peer is dead"))
            return op
        if self.now_ns >= _ns(transfer.deadline_s):
            self._expire(op)
            return op
        op.post()
        self._open[op.number] = op
        self._note("post", op)
        for chunk in self._chunks(op):
            self._send(chunk)
        self._at(_ns(transfer.deadline_s), lambda: self._expire(op))
        if not len(transfer.lengths):
            self._at(self.after_ns(self.link.delay_s), lambda: self._end(op, OpState.DONE))
        return op

    def step(self) -> bool:
        """Moves the clock to the next event and lets it happen; False when there is none."""
        if not self._events:
            return False
        self.run_until(self._events[0][0], events_max=1)
        return True

    def run_for(self, seconds: float) -> None:
        """Lets everything of the next `seconds` happen."""
        self.run_until(self.after_ns(seconds))

    def run_until(
        self,
        until_ns: int,
        stop: Callable[[], bool] = lambda: False,
        events_max: float = math.inf,
    ) -> None:
        """Lets everything up to a moment of the clock happen, unless `stop()` turns true first."""
        happened = 0
        while not stop() and happened < events_max:
            if not self._events or self._events[0][0] > until_ns:
                self._advance_to(until_ns)
                return
            at_ns, _, happen = heapq.heappop(self._events)
            self._advance_to(at_ns)
            happen()
            happened += 1

    def stall(self, seconds: float) -> None:
        """Nothing arrives for so long from now (math.inf: never again)."""
        self._note("stall", None)
        self._stalled_until_ns = self.now_ns + (_ns(seconds) if seconds < math.inf else math.inf)

    def kill(self) -> None:
        """The peer dies: all open ops fail, later ones fail at once."""
        self._note("die", None)
        self.alive = False
        for op in list(self._open.values()):
            self._end(op, OpState.FAILED, Unreachable("the simulated peer died"))

    def revive(self) -> None:
        """The peer is reachable again."""
        self.alive = True

    def cancel(self, op: SimOp) -> None:
        self._end(op, OpState.CANCELLED, cancelled(op))

    def close(self) -> None:
        for op in list(self._open.values()):
            op.cancel()
        self._events.clear()
        self._inner.close()

    def _chunks(self, op: SimOp) -> list[_Chunk]:
        size = self.link.chunk_bytes
        return [
            _Chunk(op, block, offset, min(size, length - offset))
            for block, length in enumerate(op.transfer.lengths.tolist())
            for offset in range(0, max(1, length), size)
        ]

    def _send(self, chunk: _Chunk) -> None:
        link, draw = self.link, self._random.random
        busy_ns = _ns(chunk.nbytes / link.bytes_per_s)
        self._link_free_ns = max(self.now_ns, self._link_free_ns) + busy_ns
        arrival_ns = self._link_free_ns + _ns(link.delay_s + link.jitter_s * draw())
        lost, late = draw() < link.loss, draw() < link.reorder
        if lost:
            self._at(arrival_ns, lambda: self._note_chunk("lost", chunk))
        else:
            late_ns = _ns(link.reorder_s) if late else 0
            self._at(arrival_ns + late_ns, lambda: self._arrive(chunk))

    def _arrive(self, chunk: _Chunk) -> None:
        op = chunk.op
        if op.done():
            return
        if self.now_ns < self._stalled_until_ns:
            if self._stalled_until_ns < math.inf:
                self._at(int(self._stalled_until_ns), lambda: self._arrive(chunk))
            return
        self._deliver(chunk)

    def _deliver(self, chunk: _Chunk) -> None:
        """Moves the chunk's bytes, then lets happen what was due at this byte."""
        op, nbytes = chunk.op, chunk.nbytes
        die_at = self.link.die_at_byte
        dies = die_at is not None and self.arrived_bytes + nbytes >= die_at
        if dies and die_at is not None:
            nbytes = die_at - self.arrived_bytes
        moved = self._inner.submit(_part(chunk, nbytes))
        moved.wait()
        if not moved.result.ok:
            self._end(op, OpState.FAILED, moved.error)
            return
        self.arrived_bytes += nbytes
        self._note_chunk("arrive", chunk._replace(nbytes=nbytes))
        op.chunks_left[chunk.block] -= nbytes == chunk.nbytes
        if not op.chunks_left.any():
            self._end(op, OpState.DONE)
        if dies:
            self.kill()
        elif self._stall_at_byte is not None and self.arrived_bytes >= self._stall_at_byte:
            self._stall_at_byte = None
            self.stall(self.link.stall_s)

    def _expire(self, op: SimOp) -> None:
        self._end(op, OpState.EXPIRED, expired(op))

    def _end(self, op: SimOp, state: OpState, error: MoonpoolError | None = None) -> None:
        if op.done():
            return
        self._open.pop(op.number, None)
        self._note(state.lower(), op)
        crc = None
        if state is OpState.DONE and op.transfer.checksum:
            # Now, not when asked: the memory may have changed by then.
            crc = known(local_crcs(op.transfer))
        op.settle(state, status=op.block_status(state), crc=crc, error=error)

    def _at(self, at_ns: int, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_ns, self._sequence, happen))
        self._sequence += 1

    def _advance_to(self, at_ns: int) -> None:
        self.clock.advance(max(0, at_ns - self.now_ns) / 1e9)

    def _note(self, what: str, op: SimOp | None) -> None:
        number = -1 if op is None else op.number
        self.trace.append(SimEvent(self.now_ns, what, number))

    def _note_chunk(self, what: str, chunk: _Chunk) -> None:
        op, block, offset, nbytes = chunk
        self.trace.append(SimEvent(self.now_ns, what, op.number, block, offset, nbytes))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _part(chunk: _Chunk, nbytes: int) -> Transfer:
    """The chunk as a transfer of its own, on real time."""
    whole, block = chunk.op.transfer, slice(chunk.block, chunk.block + 1)
    offset = np.uint64(chunk.offset)
    return whole._replace(
        local_offsets=whole.local_offsets[block] + offset,
        remote_offsets=whole.remote_offsets[block] + offset,
        lengths=np.array([nbytes], dtype=np.uint64),
        nbytes=nbytes,
        deadline_s=time.monotonic() + _CHUNK_DEADLINE_S,
    )
