"""What a writer asks of a segment's agent: claims, seals, aborts, and puts that bring their bytes.

Over shared memory they travel on the agent's UNIX socket; in process they are plain calls. The
agent alone writes the segment's tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from moonpool.pool.ports import (
    U32,
    U64,
    BatchPutCall,
    ClaimCall,
    Finisher,
    Outcome,
    PutCall,
    Status,
    all_sealed,
    failed,
)

if TYPE_CHECKING:
    from moonpool._core import Connection, Op, SegmentAgent

SEAL_COMPUTES_CRC = 1


class Control(Protocol):
    """What a writer over mapped memory asks of the agent."""

    def claim(
        self, call: ClaimCall | PutCall, row: int, row_epoch: int, timeout_s: float
    ) -> Finisher: ...

    def seal(
        self, slots: U32, generations: U64, crcs: U32, term: int, timeout_s: float
    ) -> Finisher: ...

    def abort(self, slots: U32, generations: U64, timeout_s: float) -> Finisher: ...

    def put(self, call: PutCall, timeout_s: float) -> Finisher | None:
        """Claim, bytes and seal in one message. None: this agent takes none."""

    def put_batch(self, call: BatchPutCall, timeout_s: float) -> Finisher | None:
        """The same of a batch that was laid out."""

    def close(self) -> None: ...


class AgentControl:
    """The agent lives in this process."""

    def __init__(self, agent: SegmentAgent) -> None:
        self._agent = agent

    def claim(
        self, call: ClaimCall | PutCall, row: int, row_epoch: int, timeout_s: float
    ) -> Finisher:
        status, slots, generations = self._agent.claim(
            call.records, call.blob, call.term, row, row_epoch
        )
        return lambda: Outcome(status, slots, generations)

    def seal(
        self, slots: U32, generations: U64, crcs: U32, term: int, timeout_s: float
    ) -> Finisher:
        status = self._agent.seal(slots, generations, crcs, 0, term)
        return lambda: Outcome(status, slots, generations, crcs)

    def abort(self, slots: U32, generations: U64, timeout_s: float) -> Finisher:
        status = self._agent.abort(slots, generations)
        return lambda: Outcome(status, slots, generations)

    def put(self, call: PutCall, timeout_s: float) -> None:
        return None

    def put_batch(self, call: BatchPutCall, timeout_s: float) -> None:
        return None

    def close(self) -> None:
        pass


class ConnectionControl:
    """The agent is reached through its endpoint; `connect` opens (again) what has broken."""

    def __init__(self, connect: Callable[[float], Connection], incarnation: bytes) -> None:
        self._connect = connect
        self._incarnation = incarnation
        self._connection: Connection | None = None

    def connection(self, timeout_s: float) -> Connection:
        """Raises OSError. Threads may each open one at the same time; none closes another's."""
        connection = self._connection
        if connection is None or not connection.alive:
            if connection is not None:
                connection.close()
            connection = self._connection = self._connect(timeout_s)
        return connection

    def claim(
        self, call: ClaimCall | PutCall, row: int, row_epoch: int, timeout_s: float
    ) -> Finisher:
        what = (self._incarnation, call.records, call.blob, call.term, row, row_epoch)
        return self._submit(
            len(call.records), timeout_s, lambda peer, left_ms: peer.claim(*what, left_ms)
        )

    def seal(
        self, slots: U32, generations: U64, crcs: U32, term: int, timeout_s: float
    ) -> Finisher:
        what = (self._incarnation, slots, generations, crcs, 0, term)
        return self._submit(len(slots), timeout_s, lambda peer, left_ms: peer.seal(*what, left_ms))

    def abort(self, slots: U32, generations: U64, timeout_s: float) -> Finisher:
        what = (self._incarnation, slots, generations)
        return self._submit(len(slots), timeout_s, lambda peer, left_ms: peer.abort(*what, left_ms))

    def put(self, call: PutCall, timeout_s: float) -> Finisher:
        what = (self._incarnation, call.records, call.blob, call.term, call.sources)
        return self._submit(
            len(call.records), timeout_s, lambda peer, left_ms: peer.put_objects(*what, left_ms)
        )

    def put_batch(self, call: BatchPutCall, timeout_s: float) -> Finisher:
        count = len(call.batch)
        try:
            op = self.connection(timeout_s).put_batch(
                self._incarnation,
                call.batch,
                call.term,
                call.sequences,
                milliseconds(timeout_s),
            )
        except OSError as error:
            text = str(error)
            return lambda: failed(count, Status.UNREACHABLE, text)

        def finish_batch() -> Outcome:
            if op.wait(milliseconds(timeout_s) + 1000) and (sealed := op.all_well()) is not None:
                return all_sealed(sealed)
            return finish(op, count, timeout_s)

        return finish_batch

    def _submit(
        self, count: int, timeout_s: float, send: Callable[[Connection, int], Op]
    ) -> Finisher:
        """One request about `count` objects is on its way when this returns, or was not sent."""
        try:
            op = send(self.connection(timeout_s), milliseconds(timeout_s))
        except OSError as error:
            text = str(error)
            return lambda: failed(count, Status.UNREACHABLE, text)
        return lambda: finish(op, count, timeout_s)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def milliseconds(timeout_s: float) -> int:
    return max(1, int(timeout_s * 1000))


_TERMINAL = {"FAILED": Status.UNREACHABLE, "CANCELLED": Status.CANCELLED, "EXPIRED": Status.EXPIRED}


class OpCall:
    """An op of the native endpoint as an AwaitedCall."""

    def __init__(self, op: Op, count: int, timeout_s: float) -> None:
        self._op = op
        self._count = count
        self._timeout_s = timeout_s

    def __call__(self) -> Outcome:
        return finish(self._op, self._count, self._timeout_s)

    def wait(self, seconds: float) -> bool:
        return self._op.wait(milliseconds(seconds))

    def cancel(self) -> None:
        self._op.cancel()


def finish(op: object, count: int, timeout_s: float) -> Outcome:
    """Wait for a native op; it has a deadline of its own and is quiet when this returns."""
    from moonpool._core import Op

    assert isinstance(op, Op)
    while not op.wait(milliseconds(timeout_s) + 1000):
        op.cancel()
    if op.state != "DONE":
        # An expired call is the peer's silence, not the object's: Status.CANCELLED says deadline.
        status = Status.CANCELLED if op.state == "EXPIRED" else _TERMINAL[op.state]
        return failed(count, status, op.error)
    # Each look at a column of an op makes it anew.
    slots, generations, crcs, sizes = op.slots, op.generations, op.crcs, op.sizes
    return Outcome(
        op.status,
        slots if len(slots) else np.zeros(count, np.uint32),
        generations if len(generations) else np.zeros(count, np.uint64),
        crcs if len(crcs) else np.zeros(count, np.uint32),
        sizes if len(sizes) else np.zeros(count, np.uint64),
        op.error,
    )
