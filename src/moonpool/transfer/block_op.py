"""The usual transfer over TCP, whole blocks of one layout to another, begun in one native step: ids
are checked, turned into offsets and sent without an array in between. What is not as usual goes
the long way of request.py, which finds the fault where there is one.

A read of 128 KiB leaves the caches cold, so that each line here costs several times what it does in
a loop of its own: that is why some steps of Op are written out once more.
"""

import math
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from moonpool import _core
from moonpool.transfer.base import OpResult, OpState, Transfer
from moonpool.transfer.layout import Layout
from moonpool.transfer.native_errors import NATIVE_ERRORS
from moonpool.transfer.op import STATES, VERDICT_GRACE_MS
from moonpool.transfer.open_ops import SWEEP_OPS
from moonpool.transfer.request import checked_deadline
from moonpool.transfer.segment import RemoteSegment, Segment
from moonpool.transfer.tcp import TcpGuard, TcpOp

if TYPE_CHECKING:
    from moonpool.transfer.engine import Engine

_POSTED, _DONE = OpState.POSTED, OpState.DONE
_U8 = np.dtype(np.uint8)
_NOT_SENT = (*NATIVE_ERRORS, BufferError)
_new_result = partial(tuple.__new__, OpResult)


class BlockOp(TcpOp):
    """One frame, POSTED from the start, since it is made when the frame has left. Its lists are
    made for who asks for them: the native op has them."""

    __slots__ = ("_far", "_frame", "_kind", "_made", "_near")

    def __init__(
        self,
        kind: str,
        near: Segment,
        far: RemoteSegment,
        rails: TcpGuard,
        frame: _core.Op,
        nbytes: int,
        checksum: bool,
        connection: _core.Connection,
        engine: "Engine",
    ) -> None:
        self.transport = "tcp"
        self._nbytes = nbytes
        self._state = _POSTED
        self._end = self._result = self._callbacks = None
        self._tally = engine.tally
        self.connection = connection
        self._frames = [frame]
        self._pump = engine.pump
        self._guard: TcpGuard = rails
        self._heirs = self._inherited = self._cancel_wanted = False
        self._heir = None
        self._checksum = checksum
        self._kind = kind
        self._near = near
        self._far = far
        self._frame = frame
        self._made: Transfer | None = None

    @property
    def transfer(self) -> Transfer:
        made = self._made
        if made is None:
            frame, nbytes = self._frame, self._nbytes
            here, there = frame.local_offsets, frame.remote_offsets
            lengths = np.full(len(here), nbytes // len(here), np.uint64)
            ends = (self._near, here, self._far, there, lengths)
            made = Transfer(self._kind, *ends, nbytes, frame.deadline_s, self._checksum)
            self._made = made
        return made

    def wait(self, timeout: float | None = None) -> bool:
        frame = self._frame
        if timeout is None:
            well = frame.wait_well_to_end(VERDICT_GRACE_MS)
        else:
            well = frame.wait_well(math.ceil(max(0.0, timeout) * 1000))
        if not well:
            return super().wait(0.0)
        if self._state is not _DONE:
            self._end_well()
        return True

    def _end_well(self) -> None:
        with STATES:
            if self._state is not _POSTED:
                return
            self._state = _DONE
            assert self._tally is not None
            self._tally.add("tcp", _DONE, self._nbytes)
            callbacks, self._callbacks = self._callbacks, None
        self._near.open_ops.pop(self, None)
        if callbacks:
            self._call(callbacks)

    def check(self) -> OpResult:
        if self._state is not _DONE:
            return super().check()
        if self._result is None:
            self._result = self._made_result()
        return self._result

    def _poll(self) -> None:
        frame = self._frame
        if not frame.terminal:
            return
        if frame.ok:
            self._end_well()
        else:
            super()._poll()

    def _made_result(self) -> OpResult:
        if self._state is not _DONE:
            return super()._made_result()
        frame = self._frame
        crc = frame.crcs if self._checksum else None
        columns = (_DONE, self._nbytes, np.zeros(frame.count, _U8), crc, "tcp", None)
        return _new_result(columns)


def begin_blocks(
    engine: "Engine",
    kind: Literal["read", "write"],
    local: object,
    local_ids: object,
    remote: object,
    remote_ids: object,
    deadline: float | None,
    checksum: bool | None,
    via: str | None,
) -> BlockOp | None:
    """None: not the usual case, and nothing was sent."""
    if type(local) is not Layout or type(remote) is not Layout:
        return None
    if not isinstance(local_ids, np.ndarray) or not isinstance(remote_ids, np.ndarray):
        return None
    near, far = local.segment, remote.segment
    if type(near) is not Segment or type(far) is not RemoteSegment:
        return None
    if near.closed or near.flush is not None or local.planes != 1 or remote.planes != 1:
        return None
    peer = far.peer
    rails = peer.rails
    if peer.closed or peer.hung or rails.many or not rails.primary:
        return None
    if via != "tcp" and (via is not None or peer.offers(far)[0] != "tcp"):
        return None
    connection = peer.link.connection
    if kind == "read":
        submit = connection.read_blocks
    elif far.writable and not rails.fences.unanswered:
        submit = connection.write_blocks
    else:
        return None
    config = engine.config
    if deadline is None:
        limit_ms = config.deadline_ms
    else:
        limit_ms = math.ceil(checked_deadline(deadline) * 1000)
    sums = config.checksum if checksum is None else checksum
    region, buffer = far.region, near.buffer
    there, here = remote.grid, local.grid
    try:
        frame = submit(
            far.epoch, region, there, remote_ids, here, local_ids, buffer, limit_ms, sums
        )
    except _NOT_SENT:
        return None
    if frame is None:
        return None
    op = BlockOp(kind, near, far, rails, frame, frame.nbytes, sums, connection, engine)
    held = near.open_ops
    if len(held) >= SWEEP_OPS:
        held.sweep()
    held[op] = None
    return op
