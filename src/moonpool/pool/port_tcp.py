"""A segment on another host: one frame per batch, nothing believed before its trailer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from moonpool._core import ReadTimes
from moonpool.core.clock import Clock, SystemClock
from moonpool.pool.agent_control import (
    SEAL_COMPUTES_CRC,
    ConnectionControl,
    OpCall,
    finish,
    milliseconds,
)
from moonpool.pool.ports import (
    AbortCall,
    AgentCall,
    BatchPutCall,
    Buffer,
    ClaimCall,
    Finisher,
    GatherCall,
    Outcome,
    PutCall,
    ReadCall,
    ReadRangeCall,
    SealCall,
    Status,
    View,
    WriteRangeCall,
    call_length,
    failed,
)
from moonpool.pool.timed_reads import TimedOp, TimedRows

if TYPE_CHECKING:
    from moonpool._core import Connection, Op

WHOLE_OBJECT = np.uint64(2**64 - 1)
NO_ROW = -1


class TcpPort:
    kind = "tcp"
    local = False

    def __init__(
        self,
        connect: Callable[[float], Connection],
        incarnation: bytes,
        node: str,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self.read_times = ReadTimes()
        self.incarnation = incarnation
        self.node = node
        self._control = ConnectionControl(connect, incarnation)

    def start(self, call: AgentCall, timeout_s: float) -> Finisher:
        count = call_length(call)
        try:
            connection = self._control.connection(timeout_s)
            op = self._submit(connection, call, milliseconds(timeout_s), timeout_s)
        except OSError as error:
            text = str(error)
            return lambda: failed(count, Status.UNREACHABLE, text)
        return op

    def _submit(
        self, connection: Connection, call: AgentCall, deadline_ms: int, timeout_s: float
    ) -> Finisher:
        incarnation = self.incarnation
        count = call_length(call)
        match call:
            case ReadCall():
                op = connection.read_objects(
                    incarnation,
                    call.slots,
                    call.generations,
                    np.zeros(count, np.uint64),
                    np.full(count, WHOLE_OBJECT, np.uint64),
                    call.buffers,
                    deadline_ms,
                    call.verify,
                )
            case ReadRangeCall():
                lengths = np.array([memoryview(b).nbytes for b in call.buffers], np.uint64)
                op = connection.read_objects(
                    incarnation,
                    call.slots,
                    call.generations,
                    call.offsets,
                    lengths,
                    call.buffers,
                    deadline_ms,
                    True,
                )
            case GatherCall():
                op = connection.gather_rows(
                    incarnation,
                    call.row_bytes,
                    call.unit_tokens,
                    call.slots,
                    call.generations,
                    call.offsets,
                    call.strides,
                    call.layers,
                    call.counts,
                    call.positions,
                    call.buffer,
                    deadline_ms,
                    True,
                )
            case PutCall():
                return self._control.put(call, timeout_s)
            case BatchPutCall():
                return self._control.put_batch(call, timeout_s)
            case ClaimCall():
                return self._control.claim(call, NO_ROW, 0, timeout_s)
            case SealCall():
                op = connection.seal(
                    incarnation,
                    call.slots,
                    call.generations,
                    np.zeros(count, np.uint32),
                    SEAL_COMPUTES_CRC,
                    call.term,
                    deadline_ms,
                )
            case AbortCall():
                op = connection.abort(incarnation, call.slots, call.generations, deadline_ms)
            case WriteRangeCall():
                return self._write_ranges(connection, call, deadline_ms, timeout_s)
        if isinstance(call, ReadCall | ReadRangeCall | GatherCall):
            timed = TimedRows if isinstance(call, GatherCall) else TimedOp
            return timed(op, count, timeout_s, self.read_times, self._clock)
        return OpCall(op, count, timeout_s)

    def _write_ranges(
        self, connection: Connection, call: WriteRangeCall, deadline_ms: int, timeout_s: float
    ) -> Finisher:
        columns = zip(
            call.slots.tolist(),
            call.generations.tolist(),
            call.offsets.tolist(),
            call.sources,
            strict=True,
        )
        ops: list[Op] = [
            connection.write_object(self.incarnation, slot, generation, offset, source, deadline_ms)
            for slot, generation, offset, source in columns
        ]

        def finish_all() -> Outcome:
            outcomes = [finish(op, 1, timeout_s) for op in ops]
            status = np.array([int(o.status[0]) for o in outcomes], np.uint8)
            text = next((o.text for o in outcomes if o.text), "")
            return Outcome(status, call.slots, call.generations, text=text)

        return finish_all

    def read_one(self, slot: int, generation: int, buffer: Buffer, verify: bool) -> int:
        return -1 - Status.BUSY

    def read_bytes(self, slot: int, generation: int, verify: bool) -> bytes | int:
        return -1 - Status.BUSY

    def pin(self, slot: int, generation: int, verify: bool) -> View | int:
        return -1 - Status.BUSY

    def close(self) -> None:
        self._control.close()
