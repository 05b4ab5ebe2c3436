"""Ports over mapped memory: the client copies by itself, the agent only grants and seals.

A small put is one frame instead: two more copies cost less than a second waking of the agent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from moonpool.core.clock import Clock, Deadline, SystemClock
from moonpool.pool.agent_control import Control
from moonpool.pool.gathering import gather_pinned
from moonpool.pool.open_claims import OpenClaims, any_lost
from moonpool.pool.ports import (
    U8,
    U32,
    U64,
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
)
from moonpool.pool.timed_reads import note

if TYPE_CHECKING:
    from moonpool._core import SegmentClient

FRAME_BYTES_MAX = 256 << 10  # of a put that takes its bytes along to the agent


class ShmPort:
    """A mapped segment. `path` None: the agent's memory in this process."""

    local = True

    def __init__(
        self,
        segment: SegmentClient,
        control: Control,
        node: str,
        kind: str,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self.segment = segment
        self.node = node
        self.kind = kind
        self.incarnation: bytes = segment.incarnation
        self._control = control
        self._claims = OpenClaims(segment)
        self.read_one = segment.read_one
        self.read_bytes = segment.read_bytes
        self.read_times = segment.read_times

    def start(self, call: AgentCall, timeout_s: float) -> Finisher:
        match call:
            case ReadCall():
                return lambda: self._read(call)
            case PutCall():
                return self._put(call, timeout_s)
            case BatchPutCall():
                return self._put_batch(call, timeout_s)
            case ClaimCall():
                return self._claim(call, timeout_s)
            case WriteRangeCall():
                return lambda: self._each_range(self.segment.write_range, call, call.sources)
            case ReadRangeCall():
                return lambda: self._each_range(self._read_range, call, call.buffers)
            case GatherCall():
                return lambda: self._gather(call)
            case SealCall():
                return self._seal(call, timeout_s)
            case AbortCall():
                return self._abort(call, timeout_s)

    def pin(self, slot: int, generation: int, verify: bool) -> View | int:
        view: View | int = self.segment.pin(slot, generation, verify)
        return view

    def close(self) -> None:
        self._control.close()
        self.segment.close()

    def _read(self, call: ReadCall) -> Outcome:
        status, sizes = self.segment.read_into(
            call.slots, call.generations, call.buffers, call.verify
        )
        return Outcome(status, call.slots, call.generations, sizes=sizes)

    def _gather(self, call: GatherCall) -> Outcome:
        began = self._clock.monotonic()
        outcome = gather_pinned(self.segment, call)
        note(self.read_times, outcome, self._clock.monotonic() - began)
        return outcome

    def _read_range(self, slot: int, generation: int, offset: int, buffer: Buffer) -> int:
        got = self.segment.read_range(slot, generation, offset, buffer)
        return Status.OK if got >= 0 else -1 - got

    def _each_range(
        self,
        act: Callable[[int, int, int, Buffer], int],
        call: WriteRangeCall | ReadRangeCall,
        buffers: object,
    ) -> Outcome:
        columns = zip(
            call.slots.tolist(),
            call.generations.tolist(),
            call.offsets.tolist(),
            buffers,  # type: ignore[call-overload]
            strict=True,
        )
        status = [
            act(slot, generation, offset, buffer) for slot, generation, offset, buffer in columns
        ]
        return Outcome(np.array(status, np.uint8), call.slots, call.generations)

    def _put_batch(self, call: BatchPutCall, timeout_s: float) -> Finisher:
        if call.nbytes <= FRAME_BYTES_MAX:
            whole = self._control.put_batch(call, timeout_s)
            if whole is not None:
                return whole
        return self._put(call.written_out(), timeout_s)

    def _put(self, call: PutCall, timeout_s: float) -> Finisher:
        """Claim is on its way when this returns; the finisher writes and seals. All of it has one
        deadline: an agent that falls silent between two steps does not get it for each."""
        if call.nbytes <= FRAME_BYTES_MAX:
            whole = self._control.put(call, timeout_s)
            if whole is not None:
                return whole
        deadline = Deadline.after(self._clock.monotonic(), timeout_s)
        epoch = self._claims.begin()
        claimed = self._control.claim(call, self.segment.row, epoch, timeout_s)

        def finish_put() -> Outcome:
            lost = True
            try:
                outcome = self._write_claimed(call, claimed(), deadline)
                lost = any_lost(outcome.status)
                return outcome
            finally:
                self._claims.end(1, lost)

        return finish_put

    def _write_claimed(self, call: PutCall, claim: Outcome, deadline: Deadline) -> Outcome:
        if claim.status.any():
            return self._write_granted(call, claim, deadline)
        slots, generations = claim.slots, claim.generations
        written, crcs = self.segment.write(slots, generations, call.sources)
        if written.any():
            everything = np.arange(len(slots))
            return self._seal_written(call, claim, everything, written, crcs, deadline)
        sealed = self._control.seal(slots, generations, crcs, call.term, self._left_s(deadline))()
        if sealed.status.any():
            bad = sealed.status != Status.OK
            self._give_back(slots[bad], generations[bad], deadline)
        return Outcome(sealed.status, slots, generations, crcs, text=claim.text)

    def _write_granted(self, call: PutCall, claim: Outcome, deadline: Deadline) -> Outcome:
        """Some claims were refused."""
        granted = np.flatnonzero(claim.status == Status.OK)
        if len(granted) == 0:
            return _widen(claim, len(call.records))
        sources = [call.sources[i] for i in granted.tolist()]
        written, crcs = self.segment.write(
            claim.slots[granted], claim.generations[granted], sources
        )
        return self._seal_written(call, claim, granted, written, crcs, deadline)

    def _seal_written(
        self,
        call: PutCall,
        claim: Outcome,
        granted: npt.NDArray[np.intp],
        written: U8,
        crcs: U32,
        deadline: Deadline,
    ) -> Outcome:
        """Seal what was written as a whole of the granted claims, abort the rest."""
        status = claim.status.copy()
        status[granted] = written
        whole = written == Status.OK
        good = granted[whole]
        if len(good):
            sealed = self._control.seal(
                claim.slots[good],
                claim.generations[good],
                crcs[whole],
                call.term,
                self._left_s(deadline),
            )()
            status[good] = sealed.status
        bad = granted[status[granted] != Status.OK]
        if len(bad):
            self._give_back(claim.slots[bad], claim.generations[bad], deadline)
        all_crcs = np.zeros(len(call.records), np.uint32)
        all_crcs[granted] = crcs
        return Outcome(status, claim.slots, claim.generations, all_crcs, text=claim.text)

    def _give_back(self, slots: U32, generations: U64, deadline: Deadline) -> None:
        """Of an open put. An agent that did not hear it would wait for this writer for good."""
        aborted = self._control.abort(slots, generations, self._left_s(deadline))()
        self._claims.end(0, any_lost(aborted.status))

    def _left_s(self, deadline: Deadline) -> float:
        return deadline.left(self._clock.monotonic())

    def _claim(self, call: ClaimCall, timeout_s: float) -> Finisher:
        """Granted claims stay open until they are sealed or aborted."""
        epoch = self._claims.begin()
        claimed = self._control.claim(call, self.segment.row, epoch, timeout_s)

        def finish_claim() -> Outcome:
            granted, lost = 0, True
            try:
                outcome = claimed()
                granted = int((outcome.status == Status.OK).sum())
                lost = any_lost(outcome.status)
                return outcome
            finally:
                self._claims.end(1 - granted, lost)

        return finish_claim

    def _abort(self, call: AbortCall, timeout_s: float) -> Finisher:
        aborted = self._control.abort(call.slots, call.generations, timeout_s)

        def finish_abort() -> Outcome:
            lost = True
            try:
                outcome = aborted()
                lost = any_lost(outcome.status)
                return outcome
            finally:
                self._claims.end(len(call.slots), lost)

        return finish_abort

    def _seal(self, call: SealCall, timeout_s: float) -> Finisher:
        """The writer sums up what lies in its claimed extents, then seals."""

        def finish_seal() -> Outcome:
            sums = [
                self.segment.checksum(slot, generation)
                for slot, generation in zip(
                    call.slots.tolist(), call.generations.tolist(), strict=True
                )
            ]
            crcs = np.array([crc for _, crc in sums], np.uint32)
            lost = True
            try:
                sealed = self._control.seal(
                    call.slots, call.generations, crcs, call.term, timeout_s
                )()
                lost = bool((sealed.status != Status.OK).any())
                return Outcome(sealed.status, call.slots, call.generations, crcs, text=sealed.text)
            finally:
                self._claims.end(len(call.slots), lost)

        return finish_seal


def _widen(outcome: Outcome, count: int) -> Outcome:
    """All columns of full length, so that callers can zip them."""
    return Outcome(
        outcome.status,
        outcome.slots,
        outcome.generations,
        np.zeros(count, np.uint32),
        np.zeros(count, np.uint64),
        outcome.text,
    )
